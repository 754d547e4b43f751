# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The stage `nodes`: what the last run of site left on each node that is up, and whether it works there now."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.pcluster.postboot.plugins.module_utils._efa import devices
from ansible_collections.pcluster.postboot.plugins.module_utils._host import document, lock
from ansible_collections.pcluster.postboot.plugins.module_utils._host import run as host_run
from ansible_collections.pcluster.postboot.plugins.module_utils._host.report import SHAPE
from ansible_collections.pcluster.postboot.plugins.module_utils._node.neuron import has_neuron
from ansible_collections.pcluster.postboot.plugins.module_utils._slurm.names import shown
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.cluster import Context, Options
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check

_RAN = ("changed", "unchanged")
# The number of reasons of failures with a line each.
_MOST_REASONS = 10

# Each word of $exporters is unit:port:option: the port counts where the unit's command line has no such option.
PROBE = f"""
report={os.path.join(lock.STATE_DIR, "report.json")}
# In parts: srun takes a line of more than 1024 bytes apart, and those of several nodes get mixed.
[ ! -r $report ] || (tr -d '\\n' < $report; echo) | fold -b -w 400 | while IFS= read -r part
  do say report "$part"
done
for exporter in $exporters; do
  unit=${{exporter%%:*}} option=${{exporter##*:}} address=localhost:${{exporter#*:}} address=${{address%:*}}
  systemctl is-enabled --quiet "$unit" 2> /dev/null || continue
  told=$(systemctl show --property=ExecStart "$unit" | sed -n "s/.* $option=\\([^ ;\\"]*\\).*/\\1/p")
  case $told in :*) address=localhost$told ;; ?*) address=$told ;; esac
  if curl -gsf --noproxy '*' -o /dev/null -m 10 "http://$address/metrics"
    then say up "$unit"
    else say down "$unit ($address)"
  fi
done
for device in /sys/class/infiniband/*/device/driver; do
  case $(readlink "$device") in */efa) say device "$device" ;; esac
done
fi_info=/opt/amazon/efa/bin/fi_info
[ ! -x $fi_info ] || $fi_info -p efa -t FI_EP_RDM 2> /dev/null | grep '^ *domain:' | while read -r domain
  do say domain "$domain"
done
"""


def run(context: Context) -> Iterator[Check]:
    """Yield what becomes of each check."""
    options = context.options
    exporters = " ".join(f"{one['unit']}:{one['port']}:{one['option']}" for one in options.exporters)
    probe = f"exporters={shlex.quote(exporters)}\n{PROBE}"
    say = f'say() {{ printf "\\n{cluster.MARK}|head|%s|%s\\n" "$1" "$2"; }}\n'
    try:
        said = host_run.run(["sh", "-c", say + probe], 120)
        yield from _judge("cluster", cluster.values_of(said.out), {"head": ""}, options)
    except host_run.NotRun:
        yield Check("last run", "cluster", "failed", "the head node did not say within 120 s how it is")
    for partition, nodes, skipped in context.selected("last run", every=True):
        if skipped:
            yield skipped
            continue
        # No GPUs: a node whose job has them all can still answer.
        seen, asked, busy = context.ask(partition, nodes, probe, gpus=False)
        if busy:
            yield Check("last run", partition, "skipped", context.no_room(busy))
        if asked and seen.code:
            yield Check("job", partition, "failed", f"srun ended with {seen.code}: {'; '.join(seen.errors)}")
        elif asked:
            kinds = {node.name: options.instance_types.get(node.name) or node.instance_type for node in asked}
            # Even a p5 has EFA devices only where its compute resource in the cluster's configuration enables EFA.
            with_efa = {kinds[node.name] for node in asked if node.efa or seen.values.get(node.name, {}).get("device")}
            gpus = {node.name for node in asked if node.gpus}
            yield from _judge(partition, seen.values, kinds, options, gpus, with_efa)


def _judge(
    subject: str,
    values: Mapping[str, Mapping[str, Sequence[str]]],
    kinds: Mapping[str, str],
    options: Options,
    gpus: Collection[str] = (),
    with_efa: Collection[str] = (),
) -> Iterator[Check]:
    """Yield the checks of the nodes in `kinds`, which has each node's instance type, or nothing.

    `gpus` has the nodes with GPUs, `with_efa` the instance types whose nodes should have EFA devices.
    """
    of = {name: values.get(name, {}) for name in kinds}
    whole = {name: _report(seen) for name, seen in of.items()}
    reports = {name: report if report is None else document.fitted(report, SHAPE) for name, report in whole.items()}
    yield from _last_run(subject, reports, {"reports": whole})
    if options.versions:
        yield from _versions(subject, reports, options.versions)
    neurons = {name for name, kind in kinds.items() if has_neuron(kind)}
    yield from _exporters(subject, of, reports, options.exporters, {"gpu": gpus, "neuron": neurons})
    if any(seen.get("device") for seen in of.values()) or any(kind in devices.DEVICES for kind in with_efa):
        yield from _fabric(subject, of, {name: kind if kind in with_efa else "" for name, kind in kinds.items()})


def _exporters(
    subject: str,
    of: Mapping[str, Mapping[str, Sequence[str]]],
    reports: Mapping[str, dict[str, Any] | None],
    exporters: Collection[Mapping[str, Any]],
    having: Mapping[str, Collection[str]],
) -> Iterator[Check]:
    """Check that enabled exporters answer, and that the exporters that site has installed are enabled.

    `having` has the nodes with GPUs (gpu) and with Neuron devices (neuron).
    """
    down: dict[str, list[str]] = {}
    missing: dict[tuple[str, str], list[str]] = {}
    for name, seen in of.items():
        for one in seen.get("down", []):
            down.setdefault(one, []).append(name)
        enabled = [one.split(" ")[0] for one in (*seen.get("up", []), *seen.get("down", []))]
        ran = {one.get("name") for one in (reports[name] or {}).get("components", []) if one.get("status") in _RAN}
        for exporter in exporters:
            expected = exporter["where"] == "all" or name in having.get(exporter["where"], ())
            if expected and exporter["component"] in ran and exporter["unit"] not in enabled:
                missing.setdefault((exporter["unit"], exporter["component"]), []).append(name)
    up = sorted({one for seen in of.values() for one in seen.get("up", [])})
    silent = ", ".join(f"{one} on {shown(names)}" for one, names in down.items())
    problems = [f"no answer from {silent}; see 'journalctl -u' there"] if down else []
    problems += [
        f"{unit} is not enabled on {shown(names)}, where site has run {component}: run it there again"
        for (unit, component), names in missing.items()
    ]
    if problems:
        yield Check("exporters", subject, "failed", "; ".join(problems))
    elif up:
        yield Check("exporters", subject, "ok", f"{', '.join(up)} answer{'s' if len(up) == 1 else ''}")


def _report(seen: Mapping[str, Sequence[str]]) -> dict[str, Any] | None:
    try:
        found = document.parse("".join(seen["report"]))
    except (KeyError, IndexError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _last_run(
    subject: str, reports: Mapping[str, dict[str, Any] | None], details: dict[str, Any]
) -> Iterator[Check]:
    without = [name for name, report in reports.items() if report is None]
    if without:
        yield Check("last run", subject, "failed", f"site has not run on {shown(without)}: there is no report")
        return
    bad: dict[str, list[str]] = {}
    for name, report in reports.items():
        failed = [
            f"{one.get('name')} ({'deferred: ' if one.get('status') == 'deferred' else ''}{one.get('why')})"
            for one in (report or {}).get("components", [])
            if one.get("status") in ("failed", "deferred")
        ]
        stopped = (report or {}).get("stopped") or {}
        if failed or stopped:
            why = ", ".join(failed) or str(stopped.get("message") or "it stopped")
            bad.setdefault(why, []).append(name)
    told = dict(list(bad.items())[:_MOST_REASONS])
    for why, names in told.items():
        yield Check("last run", subject, "failed", f"{shown(names)}: {why}", details)
        details = {}
    rest = [name for why, names in bad.items() if why not in told for name in names]
    if rest:
        yield Check("last run", subject, "failed", f"{shown(rest)}: {len(bad) - len(told)} other reasons")
    if bad:
        return
    finished = sorted(str((report or {}).get("finished")) for report in reports.values())
    yield Check("last run", subject, "ok", f"nothing failed on {shown(reports)}, as of {finished[0]}", details)


def _versions(
    subject: str, reports: Mapping[str, dict[str, Any] | None], versions: Mapping[str, Mapping[str, Any]]
) -> Iterator[Check]:
    """Check that the last run of site on these nodes was for the wanted versions."""
    # Without a report, the check of the last run has failed.
    told = {name: report.get("versions") for name, report in reports.items() if report}
    known = {name: found for name, found in told.items() if isinstance(found, dict)}
    others: dict[tuple[str, str, str], list[str]] = {}
    for name, found in known.items():
        wanted = versions.get(name) or versions.get("") or {}
        for component, seen in sorted(found.items()):
            has, needed = str(seen.get("version") or ""), str(wanted.get(f"{component}_version") or "")
            if needed and has != needed:
                others.setdefault((component, has or "any version", needed), []).append(name)
    details = {name: _phrases(found) for name, found in known.items()}
    if others:
        lines = [
            f"{component} was last run for {has} on {shown(names)}, wanted is {needed}"
            for (component, has, needed), names in others.items()
        ]
        yield Check("versions", subject, "failed", f"{'; '.join(lines)}; run site there", details)
    silent = [name for name in told if name not in known]
    if silent:
        why = f"the report of {shown(silent)} names no versions: run site there"
        yield Check("versions", subject, "unknown", why, details)
    if others or silent or not known:
        return
    count = len({component for found in known.values() for component in found})
    why = f"the last runs of site had {count} component{'' if count == 1 else 's'} at the versions that are wanted now"
    yield Check("versions", subject, "ok", why, details)


def _phrases(found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return each component's summary or version on a node."""
    return {component: str(seen.get("summary") or seen.get("version") or "") for component, seen in found.items()}


def _fabric(subject: str, of: Mapping[str, Mapping[str, Sequence[str]]], kinds: Mapping[str, str]) -> Iterator[Check]:
    bad: dict[str, list[str]] = {}
    for name, seen in of.items():
        answering, there = len(devices.domains("\n".join(seen.get("domain", [])))), len(seen.get("device", []))
        wanted = devices.DEVICES.get(kinds[name], there)
        if there != wanted:
            bad.setdefault(f"{{}} has {there} of the {wanted} EFA devices of a {kinds[name]}", []).append(name)
        elif answering != there:
            bad.setdefault(f"libfabric sees {answering} of {there} EFA devices on {{}}", []).append(name)
    for why, names in bad.items():
        yield Check("efa", subject, "failed", f"{why.format(shown(names))}; run site with --tags efa")
    if not bad:
        counts = sorted({len(seen.get("device", [])) for seen in of.values()})
        yield Check("efa", subject, "ok", f"libfabric sees {' or '.join(map(str, counts))} devices on each node")
