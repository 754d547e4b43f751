# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whatever prints or makes a page writes out what a terminal or browser would obey: nodes and users wrote parts of it.

The first tests find what prints without visible(). The last one sends a hostile text through each output.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from ansible_collections.pcluster.postboot.plugins.action import diagnose, node_run, report, status
from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.evidence import CAUSE, Finding
from ansible_collections.pcluster.postboot.plugins.module_utils._host import module as host_module
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.module_utils._host.text import all_visible, visible, visible_lines
from ansible_collections.pcluster.postboot.plugins.module_utils._pyxis import load
from ansible_collections.pcluster.postboot.plugins.module_utils._verify.report import Check
from ansible_collections.pcluster.postboot.plugins.modules import verify
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import page as diagnose_page
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import Node
from ansible_collections.pcluster.postboot.plugins.plugin_utils._fleet import rollout
from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import on_controller, terminal
from ansible_collections.pcluster.postboot.plugins.plugin_utils._verify import page as verify_page

REPO = Path(__file__).resolve().parents[3]
# C0 with its line breaks, DEL, C1, overrides of the writing direction, separators, marks of no width, a byte of no text
CODES = (*range(32), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029, 0x200E, 0x200B)
HOSTILE = f"\x1b[2J{''.join(map(chr, CODES))}\ufeff\udc9b<b>end"
# Where print() and its like take text that visible() has not seen, and why.
REASONS = {
    "plugins/module_utils/_verify/image.py": "a file goes to a program's standard output",
    "roles/node_exporter/files/amazon_efa_metrics.py": "the kernel's own words on files that root alone makes",
    "roles/node_health/files/node_health/main.py": "an option of a unit, and the kernel's words on root's own files",
}
# Who talks to Ansible's display, and why.
DISPLAYS = {
    "plugins/plugin_utils/_site/terminal.py": "it is the one way",
    "plugins/callback/grouped.py": "it is Ansible's own output, in colour",
}


def sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in ("plugins", "playbooks", *(str(one) for one in (REPO / "roles").glob("*/files"))):
        for path in sorted((REPO / folder).rglob("*")):
            if path.is_file() and (path.suffix == ".py" or path.read_bytes()[:30].startswith(b"# Copyright")):
                try:
                    yield str(path.relative_to(REPO)), ast.parse(path.read_text())
                except SyntaxError:  # a shell script
                    continue


TREES = dict(sources())


def is_shown(node: ast.expr) -> bool:
    """Say whether what is printed is plain text of ours, or has been made safe: JSON escapes all that is not ASCII."""
    text = ast.unparse(node)
    plain = isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id.isupper())
    safe = text.startswith(("visible(", "visible_lines(", "json.dumps(", "'\\n'.join(map(visible, "))
    return plain or (safe and "ensure_ascii" not in text)


def test_programs_print_what_is_safe_to_print() -> None:
    printers = ("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines")
    found = set()
    for name, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in printers and not all(map(is_shown, node.args)):
                found.add((name, ast.unparse(node)))
    assert {name for name, _call in found} <= set(REASONS), found
    used = {name for name, tree in TREES.items() if any(f"{printer}(" in ast.unparse(tree) for printer in printers)}
    assert set(REASONS) - {"plugins/module_utils/_verify/image.py"} <= used


def test_ansible_prints_by_one_function() -> None:
    found = {
        name
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "ansible.utils.display")
        or (isinstance(node, ast.Attribute) and node.attr in ("display", "_display"))
    }
    assert found == set(DISPLAYS)
    for node in ast.walk(TREES["plugins/callback/grouped.py"]):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("_display.display"):
            assert ast.unparse(node.args[0]).startswith("visible(")


def test_modules_are_of_the_class_that_cleans_what_ansible_prints() -> None:
    found = {
        (name, ast.unparse(node).split("\n", maxsplit=1)[0])
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("AnsibleModule"))
        or (isinstance(node, ast.ClassDef) and "AnsibleModule" in map(ast.unparse, node.bases))
    }
    assert found == {("plugins/module_utils/_host/module.py", "class Module(AnsibleModule):")}


def test_pages_are_made_in_one_place() -> None:
    found = {name for name, tree in TREES.items() if "jinja2.Environment(" in ast.unparse(tree)}
    # The other one parses variables of a bundle, and renders nothing.
    assert found == {"plugins/plugin_utils/_site/html.py", "plugins/plugin_utils/_publish/inventory.py"}
    for path in REPO.glob("plugins/**/*.html.j2"):
        assert "|safe" not in path.read_text().replace(" ", ""), path


def test_programs_that_import_nothing_of_ours_have_the_same_function() -> None:
    def defined(tree: ast.Module) -> list[str]:
        return [ast.dump(node) for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "visible"]

    (ours,) = defined(TREES["plugins/module_utils/_host/text.py"])
    copies = {name: defined(tree) for name, tree in TREES.items() if defined(tree)}
    assert all(one == [ours] for one in copies.values()), copies.keys()
    assert len(copies) == 8


def test_what_is_printable_stays() -> None:
    for text in ("plain", "Größe 3 µs → 4 – fünf", "日本語", ""):
        assert visible(text) == visible_lines(text) == text
    assert visible_lines("a\n\tb\r") == "a\n        b\\r"
    assert visible("a\nb\u202e\x9b") == "a\\nb\\u202e\\x9b"
    assert all_visible({"a\x1b": ["b\x07", 1, None]}) == {"a\\x1b": ["b\\x07", 1, None]}


# Each output, with a hostile text in it


def program(path: str) -> ModuleType:
    """Return a program of a role, or a module of its package."""
    file = REPO / "roles" / path
    if "/" in path.split("/files/")[1]:
        sys.path.insert(0, str(file.parents[1]))
        try:
            return importlib.import_module(f"{file.parent.name}.{file.stem}")
        finally:
            sys.path.pop(0)
    spec = importlib.util.spec_from_file_location(f"output_{file.stem}", file)
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made  # of which a NamedTuple reads its annotations
    spec.loader.exec_module(made)
    return made


class Out:
    """What came out of an output."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.patch, self.capsys = tmp_path, monkeypatch, capsys
        self.lines: list[str] = []
        for name in ("display", "warning", "vvv"):
            monkeypatch.setattr(terminal.display, name, self.lines.append)

    def add(self, *more: object) -> None:
        """Add what Ansible prints of a result."""
        for one in more:
            self.lines += [one] if isinstance(one, str) else list(strings(one))

    def text(self) -> str:
        printed = self.capsys.readouterr()
        return "\n".join([*self.lines, printed.out, printed.err])


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for pair in value.items() for one in pair for text in strings(one))
    elif isinstance(value, (list, tuple)):
        yield from (text for one in value for text in strings(one))


def of_terminal(out: Out, text: str) -> None:
    terminal.say(text)
    terminal.warn(text)
    terminal.whisper(text)


class Failed(Exception):
    """A module has ended."""


def of_a_module(out: Out, text: str) -> None:
    def fail_json(_self: Any, msg: str, **more: Any) -> None:
        out.add(msg, more)
        raise Failed

    base = host_module.Module.__mro__[1]
    made = host_module.Module.__new__(host_module.Module)
    out.patch.setattr(base, "fail_json", fail_json)
    out.patch.setattr(base, "warn", lambda _self, warning, **_more: out.add(warning))
    out.patch.setattr(base, "exit_json", lambda _self, **_result: None)
    out.patch.setattr(host_module, "Module", lambda **_options: made)

    def fails(error: Exception) -> Callable[[Any], dict[str, Any]]:
        def work(_module: Any) -> dict[str, Any]:
            raise error

        return work

    for error in (Problem(text, log=[text], more={text: text}), OSError(2, text, text)):
        with pytest.raises(Failed):
            host_module.serve({}, fails(error), alive=False)
    host_module.serve({}, lambda _module: {"warnings": [text]}, alive=False)
    made.warn(text)


def of_an_action(out: Out, text: str) -> None:
    class Action(on_controller.OnController):
        def work(self, args: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
            if isinstance(args["do"], Exception):
                raise args["do"]
            return dict(args["do"])

    out.patch.setattr(on_controller.ActionBase, "run", lambda *_args: {})
    for do in (Problem(text), OSError(2, text, text), {"failed": True, "msg": text}):
        action = Action.__new__(Action)
        out.patch.setattr(action, "validate_argument_spec", lambda do=do, **_more: (None, {"do": do}), raising=False)
        out.add(action.run(None, {}))
    lost = node_run.ActionModule.__new__(node_run.ActionModule)

    def call(*_args: Any) -> Any:
        raise node_run.AnsibleConnectionFailure(text)

    out.patch.setattr(lost, "_call", call, raising=False)
    out.add(lost._ended({"lease": 1, "timeout": 1}, {}))


def of_diagnose(out: Out, text: str) -> None:
    one = Finding(text, CAUSE, text, text, text, text, "logs")
    node = Node(text, who={"node": text, "node_type": "compute", "instance_id": text, "bundle": text})
    node.findings, node.left, node.redacted, node.texts = [one], [text], {text: 1}, {text: text}
    node.files = [{"name": text, "source": text, "kept": 1, "whole": 2, "note": text}]
    run = diagnose_page.Run(text, text, text, [text])
    out.add(diagnose_page.text(run, [node]), diagnose_page.html(run, [node]))
    out.add(diagnose._said([one._asdict() | {"nodes": [text]}], "x", 1))
    diagnose._foretell([node], {text: {}}, {"begun": {"archive": "x"}, "gone": [text]})


def of_verify(out: Out, text: str) -> None:
    checks = [("health", Check(text, text, kind, text)) for kind in ("failed", "unknown")]
    out.patch.setattr(verify.stages, "carry_out", lambda *_args: checks)
    out.patch.setattr(verify, "nccl_options", lambda _given: None)
    out.patch.setattr(verify, "health_options", lambda _given: None)
    params = {"container_image": "", "partitions": [], "exporters": [], "instance_types": {}, "nccl": {}, "health": {}}
    params.update(user="", stages=[], cluster="", region="", output="")
    out.patch.setattr(verify.cluster, "Context", lambda _options: SimpleNamespace(close=lambda: None))
    out.patch.setattr(verify.cluster, "Options", FakeOptions)
    out.add(verify.verify(SimpleNamespace(params=params, check_mode=False)))
    asdict = [{"stage": text, **checks[0][1]._asdict()}]
    given = {"cluster": text, "begun": text, "checks": asdict, "verdict": text, "ok": False, "runs": [], "versions": {}}
    out.add(verify_page.render(given))


class FakeOptions:
    _fields = ()

    def __init__(self, **_more: Any) -> None:
        pass


def of_status(out: Out, text: str) -> None:
    status._say([text])
    result = {"seen": {"cluster": text}, "lines": [text], "complaint": text}
    play = {"ansible_play_hosts_all": ["a"], "hostvars": {"a": {"__status_watched": result}}}
    assert status._shown({"json": ""}, play)["failed"]  # whose msg the action cleans, as any other that failed


def of_the_report(out: Out, text: str) -> None:
    entry = {"name": text, "status": "failed", "task": text, "why": text, "seconds": 1.0, "changed": 0, "summary": text}
    mine = {"host": text, "outcome": "stopped", "stopped": {"component": "", "message": text}, "components": [entry]}
    mine.update(changed=0, seconds=1.0, advisories=[text], ended_badly=text)
    theirs = {"__postboot_report": {"report": mine}}
    action = report.ActionModule.__new__(report.ActionModule)
    action._task = SimpleNamespace(check_mode=True)
    out.patch.setattr(report.site_report, "printed_last", False)
    variables = {"hostvars": {"gpu": theirs}, "ansible_play_hosts_all": ["gpu"]}
    out.add(action._shown(report.site_report.Told.by({}), "", variables))


def of_fleet(out: Out, text: str) -> None:
    out.add(rollout.read(text).last)


def of_check_compute_setup(out: Out, text: str) -> None:
    check = program("fsx/files/check_compute_setup.py")
    entry = {"name": text, "status": "failed", "why": text}
    told = {"node": text, "kind": text, "finished": text, "outcome": text, "components": [entry]}
    told["stopped"] = {"component": text, "message": text}
    for report_, work in ((told, ""), ({}, text), ({**told, "components": [], "stopped": None}, text)):
        out.patch.setattr(check, "load", lambda _path, found=report_: found)
        out.patch.setattr(check, "run_at_work", lambda work=work: work)
        out.patch.setattr(check, "now", lambda *_args: iter([check.Line(text, "ok", text)]))
        check.main("/fsx")


def of_container_images(out: Out, text: str) -> None:
    main = program("container_images/files/container_images/main.py")
    images = {text: {"state": "failed", "why": text}, "b": {"state": "present", "file": text}}
    state = {"images": images, "problems": [text], "warnings": [text], "host": text}
    out.patch.setattr(main, "read_state", lambda _directory: state)
    out.patch.setattr(main, "is_settled", lambda _state: False)
    options = SimpleNamespace(json=False, directory=text)
    main.status(options)
    state["updated"] = 1.0
    main.status(options)
    main.status(SimpleNamespace(json=True, directory=text))
    importer = program("container_images/files/container_images/importer.py")
    log = out.folder / "log"
    out.patch.setattr(importer, "open_log", lambda *_args: os.open(log, os.O_WRONLY | os.O_CREAT))
    settings = SimpleNamespace(log=str(log), user="")
    importer.Importer.say(SimpleNamespace(settings=settings, guard=threading.Lock(), mute=""), text)
    out.add(log.read_text())


def of_the_decider(out: Out, text: str) -> None:
    command = program("node_health/files/node_health_decider/command.py")
    out.patch.setattr(command, "settings_of", lambda _path: SimpleNamespace(history=""))
    out.patch.setattr(command, "History", lambda _path: None)
    out.patch.setattr(command, "status", lambda *_args: [text])
    command.main(["status"])

    def refuse(*_args: Any) -> Any:
        raise ValueError(text)

    out.patch.setattr(command, "status", refuse)
    command.main(["status"])
    run = program("node_health/files/node_health_decider/run.py")
    run.say(text)
    out.patch.setattr(run, "settings_of", refuse)
    run.main([text])


def of_exporters(out: Out, text: str) -> None:
    program("node_exporter/files/aws_events.py").say(text)
    program("prometheus/files/prometheus_targets.py").say(text)
    program("neuron_exporter/files/neuron_exporter.py").say(text)


def of_pull(out: Out, text: str) -> None:
    pull = program("pull/files/pull.py")
    log = pull.Log(str(out.folder / "pull.log"))
    log.write(text, "site")
    log.say(text)
    out.add((out.folder / "pull.log").read_text())


def of_pyxis(out: Out, text: str) -> None:
    def refuse(_prefix: str) -> str:
        raise OSError(2, text, text)

    for withdraw in (lambda _prefix: text, refuse):
        out.patch.setattr(load, "withdraw", withdraw)
        load.main(["/opt/slurm"], {})


OUTPUTS = [
    of_terminal,
    of_a_module,
    of_an_action,
    of_diagnose,
    of_verify,
    of_status,
    of_the_report,
    of_fleet,
    of_check_compute_setup,
    of_container_images,
    of_the_decider,
    of_exporters,
    of_pull,
    of_pyxis,
]


@pytest.mark.parametrize("output", OUTPUTS)
def test_no_output_has_a_control_character(
    output: Callable[[Out, str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = Out(tmp_path, monkeypatch, capsys)
    output(out, HOSTILE)
    text = out.text()
    assert "end" in text
    wrong = {one for one in text if one != "\n" and not one.isprintable()}
    assert not wrong, json.dumps("".join(sorted(wrong)))
    assert all("<b>" not in one for one in out.lines if "<html" in one)
