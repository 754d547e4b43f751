# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What goes wrong, on one line."""

from __future__ import annotations


class ImageError(Exception):
    """Why something cannot be done, on one line."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


class Trouble(ImageError):
    """Why an import failed, and whether (and when) it is worth another try."""

    def __init__(self, message: str, again: bool = False, after: float = 0) -> None:
        super().__init__(message)
        self.again, self.after = again, after
