# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Jobs, for scenes: the cluster's user submits them, or another user who is named."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .conftest import host
from .helpers import as_user, until

USER = "ubuntu"


def slurm(command: str, user: str = USER) -> str:
    """What one of Slurm's programs prints on the head node."""
    done = as_user(host("head"), user, command)
    assert done.rc == 0, done.stdout + done.stderr
    return str(done.stdout).strip()


def submit(name: str, options: str, script: str, user: str = USER) -> str:
    """Submit a job, whose output is not kept, and return its id."""
    return slurm(f'sbatch --parsable --job-name {name} {options} --output /dev/null --wrap "{script}"', user)


@contextmanager
def running(name: str, options: str, script: str, user: str = USER) -> Iterator[str]:
    """A job that runs, until it is ended here or by the page."""
    job = submit(name, options, script, user)
    try:
        until(lambda: slurm(f"squeue --noheader --jobs {job} --format %T") == "RUNNING", 60, f"the job {name} runs")
        yield job
    finally:
        slurm(f"scancel {job}", user)
        until(lambda: not slurm(f"squeue --noheader --name {name} --format %T"), 60, f"the job {name} is gone")
