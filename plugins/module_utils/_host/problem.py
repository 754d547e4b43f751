# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one error that a module ends with."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import visible


class Problem(Exception):
    """What is wrong, on one line: what was found, what was needed, and what to do next.

    A failed result has `told` beside that line, such as the last lines of a log.
    """

    def __init__(self, message: str, **told: object) -> None:
        super().__init__(visible(" ".join(message.split())))
        self.told = told
