# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Asks Slurm's controller."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._host.run import Said, run


def scontrol(prefix: str, *words: str, seconds: float, merged: bool = False, hint: str = "") -> Said:
    """Run the scontrol of the Slurm that is installed in `prefix`, with its other programs before the system's."""
    path = f"{prefix}/bin:{prefix}/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
    return run([f"{prefix}/bin/scontrol", *words], seconds, environment={"PATH": path}, merged=merged, hint=hint)
