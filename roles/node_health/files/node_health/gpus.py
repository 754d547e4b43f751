# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUs: are all there, does their memory fail, do their links work, and are they as fast as they should be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from . import exporter, gpu_messages, units
from .exporter import Gpu
from .look import Hangs, Look

PCI, DRIVER = "/sys/bus/pci/devices", "/proc/driver/nvidia/gpus"
RECENT = 900.0  # seconds for which errors of NVLink are told after the last one
THROTTLED = 300.0  # seconds from which on slow clocks count
# NVML's reasons for slow clocks (nvml.h): the hardware's, its thermal, and its power brake.
SLOWED = {0x8: "HW slowdown", 0x40: "HW thermal slowdown", 0x80: "HW power brake slowdown"}
REASONS = "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"
ECC = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"
REMAP_FAILED, REMAP_PENDING = "DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_PENDING"
PERSISTENCE = "DCGM_FI_DEV_PERSISTENCE_MODE"
FABRIC = "DCGM_FI_DEV_FABRIC_MANAGER_STATUS"
FABRIC_FAILED = 4  # DcgmFMStatusFailure of dcgm_structs.h
# Errors of NVLink: up to version 4, and of version 5.
NVLINK = (
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_COUNT_RX_ERRORS",
    "DCGM_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS",
    "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
)
NVLINK_FAILED = "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS"
# What DCGM calls a link that is down (dcgm_errors.h).
DOWN = ("DCGM_FR_NVLINK_DOWN", "DCGM_FR_GPU_EXPECTED_NVLINKS_UP")
NEED_PAGE = ("gpu_memory", "nvlink", "nvlink_down", "gpu_clocks", "gpu_persistence")


def check(look: Look) -> None:
    if not look.settings["gpus"]:
        return
    loaded = _driver(look)
    gpus = _page(look) if loaded else {}
    look.remembered("gpus").update(exporter.known(gpus))
    _count(look, gpus, loaded)
    _fabric_manager(look, gpus.values())
    if gpus:
        _memory(look, gpus.values())
        _nvlink(look, gpus)
        _clocks(look, gpus.values())
        _persistence(look, gpus.values())


def xids_of_page(look: Look) -> None:
    """Take the exporter's XIDs of the last minutes where the kernel's log cannot be read."""
    for number, who, value in look.memory.pop("page_xids", []):
        kind = gpu_messages.of_xid(number)
        if look.kernel_log and kind:
            look.find(f"gpu_xid_{number}", f"{exporter.XIDS} {value}: {look.kernel_log}", who, kind=kind)


def _driver(look: Look) -> bool:
    """Tell whether NVIDIA's driver has the GPUs of PCI."""
    if not look.exists("/sys/module/nvidia") and not look.exists("/proc/driver/nvidia/version"):
        look.find("gpu_driver", "/sys/module/nvidia is not there: the driver is not loaded")
        for name in ("gpus", *NEED_PAGE):
            look.skip(name, "the driver is not loaded")
        return False
    for address in look.settings["gpu_addresses"]:
        if look.exists(f"{PCI}/{address}") and not look.exists(f"{PCI}/{address}/driver"):
            look.find("gpu_driver", f"{PCI}/{address} has no driver", f"PCI {address}")
    return True


def _page(look: Look) -> dict[str, Gpu]:
    """Return the exporter's GPUs; none, with the reason noted, where the exporter does not answer."""
    url = look.settings["page"]
    try:
        gpus = exporter.parse(exporter.fetch(url, look.patience))
        why = "" if gpus else f"{url} has no metrics of GPUs"
    except Hangs as error:
        gpus, why = {}, str(error)
        look.find("check_hangs", why, "dcgm-exporter", hold=2 * float(look.settings["interval"]))
    except OSError as error:
        gpus, why = {}, f"{url}: {error.strerror or error}"
    for name in NEED_PAGE if why else ():
        look.skip(name, why)
    look.memory["page_xids"] = [
        (xid, f"GPU {gpu.index}", f'{{gpu="{gpu.index}",xid="{xid}"}}') for gpu in gpus.values() for xid in gpu.xids
    ]
    return gpus


def _count(look: Look, gpus: dict[str, Gpu], loaded: bool) -> None:
    wanted = look.settings["gpus"]
    seen: dict[str, int] = {}
    addresses = look.settings["gpu_addresses"]
    if addresses:
        there = [address for address in addresses if look.exists(f"{PCI}/{address}")]
        seen["PCI"] = len(there)
    if loaded and look.exists(DRIVER):
        seen["the driver"] = len(look.names(DRIVER))
    if gpus:
        seen["dcgm-exporter"] = len({gpu.index for gpu in gpus.values()})
    if not seen:
        look.skip("gpus", "neither PCI, nor the driver, nor dcgm-exporter tells of GPUs")
    fewest = min(seen.values(), default=wanted)
    if fewest >= wanted:
        return
    told = ", ".join(f"{count} by {who}" for who, count in seen.items())
    look.find(
        "gpu_missing", f"{told}; a {look.settings['instance_type'] or 'node like this'} has {wanted}", _who(look, gpus)
    )


def _who(look: Look, gpus: dict[str, Gpu]) -> str:
    """Return which GPUs are gone, as far as earlier looks have known them."""
    known = look.remembered("gpus")
    gone = [known[uuid] for uuid in known if gpus and uuid not in gpus]
    gone = gone or [gpu for gpu in known.values() if not _on_pci(look, gpu["pci"])]
    return ", ".join(f"GPU {gpu['index']}" for gpu in sorted(gone, key=lambda gpu: str(gpu["index"])))


def _on_pci(look: Look, pci: str) -> bool:
    """Tell whether PCI has an address of DCGM's, whose domain has eight digits."""
    return look.exists(f"{PCI}/{pci[-12:].lower()}")


def _fabric_manager(look: Look, gpus: Iterable[Gpu]) -> None:
    if not look.settings["nvswitch"]:
        return
    for gpu in gpus:
        if gpu.values.get(FABRIC) == FABRIC_FAILED:
            look.find("fabric_manager", f'{FABRIC}{{gpu="{gpu.index}"}} {FABRIC_FAILED}', f"GPU {gpu.index}")
    units.expect(look, "nvidia-fabricmanager", "fabric_manager", "fabric_manager")


def _line(gpu: Gpu, name: str) -> str:
    return f'{name}{{gpu="{gpu.index}"}} {gpu.values[name]:g}'


def _has(look: Look, gpus: Iterable[Gpu], check: str, *names: str) -> None:
    """Note what the exporter's page does not have of any GPU."""
    missing = [name for name in names if not any(name in gpu.values for gpu in gpus)]
    if missing:
        look.skip(check, f"dcgm-exporter's page has no {', '.join(missing)}")


def _memory(look: Look, gpus: Iterable[Gpu]) -> None:
    _has(look, gpus, "gpu_memory", ECC)
    for gpu in gpus:
        for name, finding in (
            (ECC, "gpu_ecc_uncorrected"),
            (REMAP_FAILED, "gpu_row_remap_failed"),
            (REMAP_PENDING, "gpu_row_remap_pending"),
        ):
            if gpu.values.get(name, 0) > 0:
                look.find(finding, _line(gpu, name), f"GPU {gpu.index}")


def _nvlink(look: Look, gpus: dict[str, Gpu]) -> None:
    if not look.settings["nvswitch"]:
        return
    before, now = look.remembered("nvlink"), {}
    for uuid, gpu in gpus.items():
        counted = {name: gpu.values[name] for name in NVLINK if name in gpu.values}
        last: dict[str, Any] = before.get(uuid) or {"counted": counted, "at": 0, "line": ""}
        grown = [name for name in counted if counted[name] > last["counted"].get(name, counted[name])]
        if grown:
            line = f"{_line(gpu, grown[0])}, {last['counted'][grown[0]]:g} before"
            last = {"counted": counted, "at": look.now, "line": line}
        now[uuid] = {**last, "counted": counted}
        if last["at"] and look.now - last["at"] < RECENT:
            look.find("nvlink_errors", last["line"], f"GPU {gpu.index}")
        if gpu.values.get(NVLINK_FAILED, 0) > 0:
            look.find("nvlink_down", _line(gpu, NVLINK_FAILED), f"GPU {gpu.index}")
        elif gpu.nvlink in DOWN:
            look.find("nvlink_down", f'{exporter.HEALTH}{{gpu="{gpu.index}"}} {gpu.nvlink}', f"GPU {gpu.index}")
    look.memory["nvlink"] = now
    if not any(one["counted"] for one in now.values()):
        look.skip("nvlink", "dcgm-exporter's page has no errors of NVLink")
    if not any(NVLINK_FAILED in gpu.values or gpu.nvlink for gpu in gpus.values()):
        look.skip("nvlink_down", f"dcgm-exporter's page has neither {NVLINK_FAILED} nor {exporter.HEALTH}")


def _clocks(look: Look, gpus: Iterable[Gpu]) -> None:
    _has(look, gpus, "gpu_clocks", REASONS)
    for gpu in gpus:
        mask = int(gpu.values.get(REASONS, 0))
        reasons = [text for bit, text in SLOWED.items() if mask & bit]
        if reasons:
            said = f"{_line(gpu, REASONS)}: {', '.join(reasons)}"
            look.find("gpu_clocks_slowed", said, f"GPU {gpu.index}", hold=THROTTLED)


def _persistence(look: Look, gpus: Iterable[Gpu]) -> None:
    _has(look, gpus, "gpu_persistence", PERSISTENCE)
    for gpu in gpus:
        if gpu.values.get(PERSISTENCE) == 0:
            look.find("gpu_persistence", _line(gpu, PERSISTENCE), f"GPU {gpu.index}", hold=THROTTLED)
