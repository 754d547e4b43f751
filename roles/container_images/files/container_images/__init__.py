# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Import container images into a shared folder, and tell how far they are.

The role installs these files, and the program beside them that users and the service call, on the head node and in the
shared directory. They run with the system's Python from 3.9 on, and its standard library alone.
"""

from __future__ import annotations
