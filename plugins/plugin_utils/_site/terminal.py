# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where Ansible prints: whether lines for people belong there, and how wide they may be."""

from __future__ import annotations

import os

from ansible import constants as C
from ansible.utils.display import Display

_LOG_WIDTH = 160


def quiet() -> bool:
    return str(C.DEFAULT_STDOUT_CALLBACK).endswith("json")


def width() -> int:
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdigit():
        return int(wanted)
    try:
        # Ansible takes a log for a terminal of 79 columns. A worker asks what its parent writes to.
        terminal = os.readlink(f"/proc/{os.getppid()}/fd/1").startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except OSError:
        terminal = True
    return int(Display().columns) if terminal else _LOG_WIDTH
