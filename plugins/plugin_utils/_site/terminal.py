# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one way to print where Ansible prints, and how wide lines may be there.

Printed lines contain text of nodes, users and tags, so none of it may command the terminal.
"""

from __future__ import annotations

import os

from ansible import constants as C
from ansible.utils.display import Display

from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible, visible_lines

_LOG_WIDTH = 160
display = Display()


def quiet() -> bool:
    return str(C.DEFAULT_STDOUT_CALLBACK).endswith("json")


def say(*lines: str) -> None:
    """Print lines for people, unless what Ansible prints is for programs."""
    if lines and not quiet():
        display.display(visible_lines("\n".join(lines)))


def warn(line: str) -> None:
    display.warning(visible(" ".join(line.split())))


def whisper(line: str) -> None:
    """Print a line with -vvv alone."""
    display.vvv(visible(line))


def width() -> int:
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdigit():
        return int(wanted)
    try:
        # Ansible takes a log for a terminal of 79 columns. A worker asks what its parent writes to.
        terminal = os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:
        terminal = True
    return int(display.columns) if terminal else _LOG_WIDTH
