# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How other programs read the values of variables, to refuse a value that they would misread.

A role declares the readers of its variables in `__<role>_parsers` of vars/main.yml, by name of a parser in this table.
Variables that end in a name of `SUFFIXES` need no declaration. Each parser names the source that it follows.

NCCL 2.30.7 reads numbers by `strtoll(text, nullptr, 0)` (src/misc/param.cc, ncclLoadParam): `8M` is 8, `010` is 8, and
`True` is 0. It splits lists of interfaces at commas and trims nothing (src/misc/utils.cc, parseStringList), so that
`^docker, lo` names an interface " lo". libfabric (src/var.c, fi_param_get) reads numbers by `strtol(text, NULL, 0)` and
accepts 1, true, yes and on. aws-ofi-nccl (include/nccl_ofi_param_impl.h) accepts true, false and whole numbers. UCX,
Open MPI, PMIx, CUDA and PyTorch accept 1 and 0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

_NUMBER = re.compile(r"[+-]?(0[xX][0-9A-Fa-f]+|0|[1-9][0-9]*)")
_ALMOST_NUMBER = re.compile(r"[+-]?[0-9][0-9A-Za-z. ]*")
_LONGEST = 1023  # bytes of a value in /etc/nccl.conf (src/misc/param.cc, setEnvFile)
# Readers that take 1 and 0 for true and false.
_SWITCHES = ("NCCL_", "OFI_NCCL_", "FI_", "UCX_", "OMPI_MCA_", "PMIX_MCA_", "CUDA_", "TORCH_")
_BY_STRTOLL = ("NCCL_", "FI_")
_BOOLEANS = {"true": "1", "yes": "1", "on": "1", "false": "0", "no": "0", "off": "0"}
_COMMAS = r"\S*"
# What NCCL reads as text (ncclGetEnv and DEFINE_NCCL_PARAM in src/), with a pattern where not every text is valid.
_NCCL_TEXT = {
    "NCCL_DEBUG": r"(?i:VERSION|WARN|INFO|ABORT|TRACE)",
    "NCCL_SOCKET_FAMILY": "AF_INET6?",
    **dict.fromkeys(("NCCL_SOCKET_IFNAME", "NCCL_OOB_NET_IFNAME", "NCCL_IB_HCA"), _COMMAS),
    **dict.fromkeys(("NCCL_ALGO", "NCCL_PROTO", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_TIMESTAMP_LEVELS"), _COMMAS),
    **dict.fromkeys(("NCCL_COMM_ID", "NCCL_CONF_FILE", "NCCL_DEBUG_FILE", "NCCL_DEBUG_TIMESTAMP_FORMAT"), ".*"),
    **dict.fromkeys(("NCCL_CHECK_MODE", "NCCL_CTA_POLICY", "NCCL_GRAPH_DUMP_FILE", "NCCL_GRAPH_FILE"), ".*"),
    **dict.fromkeys(("NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN", "NCCL_HOSTID", "NCCL_IBVERBS_LIB"), ".*"),
    **dict.fromkeys(("NCCL_IB_ADDR_FAMILY", "NCCL_IB_ADDR_RANGE", "NCCL_LAUNCH_MODE", "NCCL_NET"), ".*"),
    **dict.fromkeys(("NCCL_NETDEVS_POLICY", "NCCL_NET_FORCE_MERGE", "NCCL_NET_MERGE_LEVEL"), ".*"),
    **dict.fromkeys(("NCCL_NET_GDR_LEVEL", "NCCL_NET_PLUGIN", "NCCL_NO_CACHE", "NCCL_P2P_LEVEL"), ".*"),
    **dict.fromkeys(("NCCL_PROFILER_PLUGIN", "NCCL_PROXY_CPUSET", "NCCL_RAS_ADDR", "NCCL_RMA_PLUGIN"), ".*"),
    **dict.fromkeys(("NCCL_SYM_KERNEL", "NCCL_THREAD_THRESHOLDS", "NCCL_TOPO_DUMP_FILE", "NCCL_TOPO_FILE"), ".*"),
    "NCCL_TUNER_PLUGIN": ".*",
    "OFI_NCCL_EXCLUDE_TCP_IF": _COMMAS,
}
_EXAMPLES = {
    "NCCL_DEBUG": "VERSION, WARN, INFO, ABORT or TRACE",
    "NCCL_SOCKET_FAMILY": "AF_INET or AF_INET6",
}


class Misread(ValueError):
    """A value that its reader would take for something else; the message says what is needed."""


def setting(name: str, value: Any) -> str:
    """Return the text to which a variable of the environment is set. Booleans become 1 or 0 where that is certain."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise Misread("the name of a variable, such as NCCL_DEBUG")
    switch = name.startswith(_SWITCHES) and name not in _NCCL_TEXT
    if isinstance(value, bool) and switch:
        return "1" if value else "0"
    if isinstance(value, (bool, float)) or not isinstance(value, (str, int)):
        raise Misread(f"text in quotes{', or a whole number' if switch else ''}")
    text = str(value)
    if "\n" in text or "\0" in text or len(text.encode()) > _LONGEST:
        raise Misread(f"one line of {_LONGEST} bytes at most")
    if name in _NCCL_TEXT:
        if text and not re.fullmatch(_NCCL_TEXT[name], text):
            raise Misread(_EXAMPLES.get(name, "names with commas between them and no blanks"))
        return text
    if name.startswith("NCCL_") and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if name.startswith(_BY_STRTOLL) and _ALMOST_NUMBER.fullmatch(text) and not _NUMBER.fullmatch(text):
        raise Misread(f"a whole number without a leading zero, point or suffix, because this is read as {_read(text)}")
    return text


def _read(text: str) -> int:
    """Return the number that strtoll with base 0 makes of the beginning of a text."""
    sign, hexadecimal, octal, decimal = re.findall(r"([+-]?)(?:0[xX]([0-9A-Fa-f]+)|(0[0-7]*)|([0-9]+))", text)[0]
    base = 16 if hexadecimal else 8 if octal else 10
    return int(sign + (hexadecimal or octal or decimal), base)


def _environment(name: str, value: Any) -> list[str]:
    lines = []
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        try:
            if inner is not None:  # it removes the name
                setting(str(key), inner)
        except Misread as error:
            lines.append(f"{name}.{key} is {shown(inner)}; needed: {error}")
    return lines


# Enroot's config::fini (enroot.in) takes these for false, and every other text for true, such as 0 and off.
_ENROOT_FALSE = r"no?|N[oO]?|[fF](alse)?|FALSE"
_ENROOT_SWITCH = re.compile(
    r"ENROOT_(ALLOW_DEV|ALLOW_HTTP|ALLOW_SUPERUSER|BUNDLE_ALL|BUNDLE_CHECKSUM|FORCE_OVERRIDE|LOGIN_SHELL|MOUNT_HOME"
    r"|NATIVE_OVERLAYFS|REMAP_ROOT|RESTRICT_DEV|ROOTFS_WRITABLE)"
)


def _enroot_settings(name: str, value: Any) -> list[str]:
    settings = value if isinstance(value, Mapping) else {}
    return [
        f"{name}.{key} is {shown(inner)}; needed: true or false"
        for key, inner in settings.items()
        if _ENROOT_SWITCH.fullmatch(str(key)) and not isinstance(inner, bool) and inner is not None
        if not re.fullmatch(rf"{_ENROOT_FALSE}|(?i:y|yes|t|true)|1", str(inner))
    ]


def _modes(name: str, value: Any) -> list[str]:
    """Refuse a number that YAML may have read as octal: 0777 without quotes is 511. 1777 is no such number."""
    entries = enumerate(value) if isinstance(value, list) else ()
    modes = [(number, entry.get("mode")) for number, entry in entries if isinstance(entry, Mapping)]
    return [
        f"{name}[{number}].mode is {shown(mode)}; needed: an octal number in quotes, such as '0755'"
        for number, mode in modes
        if mode is not None
        if not re.fullmatch("[0-7]{3,4}", str(mode)) or (isinstance(mode, int) and mode < 1000)
    ]


def _prometheus_labels(name: str, value: Any) -> list[str]:
    """common/model/labels.go, LabelName.IsValidLegacy: names that every version of Prometheus accepts."""
    names = value if isinstance(value, Mapping) else {}
    return [
        f"{name} has the label {shown(key)}; needed: a name of letters, digits and underscores"
        for key in names
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", str(key))
    ]


@dataclass(frozen=True)
class Pattern:
    """A text that matches as a whole. Each element of a list has to."""

    pattern: str
    needed: str

    def __call__(self, name: str, value: Any) -> list[str]:
        parts = value if isinstance(value, list) else [value]
        return [
            f"{name} is {shown(part)}; needed: {self.needed}"
            for part in parts
            if not re.fullmatch(self.pattern, str(part), re.ASCII)
        ]


def shown(value: Any) -> str:
    """Write a value for an error message, on one line and not too long."""
    try:
        text = json.dumps(value, default=str)
    except (TypeError, ValueError):
        text = str(value)
    return text if len(text) <= 80 else text[:77] + "..."


_HOST = r"([A-Za-z0-9._-]{1,255}|\[[0-9A-Fa-f:.%]{2,64}\])"
_PORT = r"(0|[1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d{2}|655[0-2]\d|6553[0-5])"
PARSERS: dict[str, Callable[[str, Any], list[str]]] = {
    "environment": _environment,
    "enroot_settings": _enroot_settings,
    "modes": _modes,
    "prometheus_labels": _prometheus_labels,
    # net.Listen of Go, as exporter-toolkit, Prometheus and Alertmanager call it.
    "listen_address": Pattern(rf"{_HOST}?:{_PORT}", "an address and a port, such as 127.0.0.1:9100 or :9100"),
    "host_port": Pattern(rf"{_HOST}:{_PORT}", "a host and a port, such as localhost:9093"),
    # The name of a registry in a reference (distribution/reference, domain): no scheme and no path.
    "registry": Pattern(rf"{_HOST}(:{_PORT})?", "the host of a registry, with a port if it has one, and no http://"),
    "url": Pattern(r"[a-z][a-z0-9+.-]{0,30}:/\S+", "a URL, such as https://example.org/"),
    # prometheus/common, model/time.go, ParseDuration: units in this order, each a whole number.
    "prometheus_duration": Pattern(
        r"0|(?=[0-9])([0-9]+y)?([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?",
        "a duration, such as 60s, 5m or 15d",
    ),
    # Go, time.ParseDuration: no days.
    "go_duration": Pattern(r"0|([0-9]+(\.[0-9]*)?(ns|us|ms|s|m|h))+", "a duration, such as 500ms, 5s or 1m30s"),
    # grafana-plugin-sdk-go, backend/gtime, ParseInterval.
    "grafana_interval": Pattern(r"[0-9]{1,18}(ms|[smhdwMy])", "an interval, such as 15s or 1m"),
    # alecthomas/units, ParseBase2Bytes, by which Prometheus reads --storage.tsdb.retention.size.
    "prometheus_size": Pattern(r"0|([0-9]+(\.[0-9]*)?([KMGTPE]i?)?B)+", "a size with its unit, such as 512MB or 10GB"),
    # systemd, src/basic/parse-util.c, parse_size and parse_permyriad: a unit that it does not know is ignored with a
    # message in the journal alone, and then there is no limit.
    "systemd_memory": Pattern(
        r"|infinity|[0-9]+(\.[0-9]+)?[KMGTPEB]?|(100|[0-9]{1,2}(\.[0-9]{1,2})?)%",
        "a share such as 50%, bytes such as 4G (no B behind the G), or infinity",
    ),
    # nccl-tests, src/common.cu, parsesize: a number and one letter, of which only K, M and G are known.
    "nccl_tests_size": Pattern(r"[0-9]+(\.[0-9]+)?([KMG](i?B)?)?", "bytes, or a size such as 128M or 16G"),
    # docs.aws.amazon.com/IAM/latest/UserGuide/reference-arns.html
    "policy_arn": Pattern(
        r"arn:aws[a-z-]*:iam::([0-9]{12}|aws):policy/\S+",
        "the ARN of a policy, such as arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore",
    ),
    "role_arn": Pattern(
        r"arn:aws[a-z-]*:iam::[0-9]{12}:role/\S+", "the ARN of a role, such as arn:aws:iam::123456789012:role/metrics"
    ),
}
SUFFIXES = {
    "_base_url": "url",
    "_listen_address": "listen_address",
    "_assume_role_arn": "role_arn",
}


def parser_of(name: str, declared: Mapping[str, str]) -> str:
    """Return the name of a variable's parser; empty if every value is right."""
    suffix = next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")
    return declared.get(name, SUFFIXES.get(suffix, ""))


def problems(parser: str, name: str, value: Any) -> list[str]:
    return PARSERS[parser](name, value) if parser else []
