# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""EFA: are all devices there, are their ports active, and does libfabric list them."""

from __future__ import annotations

import os
import re

from . import slow
from .look import Look

DEVICES = "/sys/class/infiniband"
FI_INFO = "/opt/amazon/efa/bin/fi_info"
QUESTION = ("-p", "efa", "-t", "FI_EP_RDM")
# From libfabric 2 on fi_info lists each device for two fabrics.
_DOMAIN = re.compile(r"^\s*domain: *(\S+?)(?:-rdm)?\s*$", re.MULTILINE)


def devices(look: Look) -> list[str]:
    """Return the devices that EFA's driver has made, and no other's, such as those of InfiniBand cards."""
    return [name for name in look.names(DEVICES) if look.link(f"{DEVICES}/{name}/device/driver") == "efa"]


def check(look: Look) -> None:
    wanted = look.settings["efa"]
    if not wanted:
        return
    there = devices(look)
    if len(there) < wanted:
        kind = look.settings["instance_type"] or "node like this"
        look.find("efa_missing", f"{len(there)} EFA devices in {DEVICES}; a {kind} has {wanted}")
    for name in there:
        for port in look.names(f"{DEVICES}/{name}/ports"):
            state = look.text(f"{DEVICES}/{name}/ports/{port}/state").strip()
            if state and not state.endswith("ACTIVE"):
                look.find("efa_link_down", f"{DEVICES}/{name}/ports/{port}/state: {state}", name)


def provider(look: Look) -> None:
    """Ask libfabric, which opens each device: that takes time, and is done now and then."""
    there = devices(look)
    if not look.settings["efa"] or not there:
        return
    if not os.access(FI_INFO, os.X_OK):
        look.skip("efa_provider", f"{FI_INFO} is not there")
        return
    said = slow.program(look, "efa_provider", [FI_INFO, *QUESTION])
    if said is None:
        return
    listed = set(_DOMAIN.findall(said.out))
    if len(listed) < len(there):
        why = said.error.strip().splitlines()[0:1] if not listed else sorted(set(there) - listed)[:4]
        told = f"'fi_info {' '.join(QUESTION)}' lists {len(listed)} of {len(there)} EFA devices"
        look.find("efa_provider", f"{told}: {', '.join(why)}" if why else told)
