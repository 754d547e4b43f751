# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scripts that check roles, render their tables, and compare their pins with what publishers say."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.tests.programs import load
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

REPO = Path(__file__).resolve().parents[3]
check_roles, render_role_docs = load("scripts/check_roles.py"), load("scripts/render_role_docs.py")
pins = load("scripts/pins.py")
render_components, render_alerts = render_role_docs.render_components, render_role_docs.render_alerts
render_advisories, render_gpu_messages = render_role_docs.render_advisories, render_role_docs.render_gpu_messages


ROW = (
    r"\n        - name: [^\n]+\n +ansible.builtin.import_tasks: tasks/component.yml\n[^\n]+: (\w+)\}\n +tags: \[\w+\]\n"
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A checkout with four roles, a site.yml for them, what is written of components, and the pages of alerts."""
    kept = ("common", "node_exporter", "node_health", "prometheus")
    for name in kept:
        shutil.copytree(REPO / "roles" / name, tmp_path / "roles" / name)
    shutil.copytree(REPO / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("images"))
    tables = ("meta/deprecations.yml", "meta/supported.yml", render_advisories.SOURCE, render_gpu_messages.READER)
    for name in ("galaxy.yml", "playbooks/site.yml", *tables, *render_components.PLACES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / name, tmp_path / name)
    site = tmp_path / "playbooks/site.yml"
    site.write_text(re.sub(ROW, lambda row: row[0] if row[1] in kept else "", site.read_text()))
    for path, text in render_components.rendered(tmp_path).items():
        path.write_text(text)
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_roles_that_keep_the_contracts_are_let_be(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_roles.main(["--root", str(copy)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("file", "before", "after", "says"),
    [
        (
            "meta/argument_specs.yml",
            "      node_exporter_flags:",
            "      node_exporter_flag:",
            "node_exporter_flags is missing; defaults",
        ),
        ("defaults/main.yml", "node_exporter_flags:", "node_exporter_flag:", "node_exporter_flags is missing; meta"),
        (
            "defaults/main.yml",
            "1.12.1",
            "1.13.0",
            "node_exporter_version has the default '1.12.1', in defaults '1.13.0'",
        ),
        (
            "defaults/main.yml",
            "disabled: [cpu.guest, infiniband, netclass, nfs, schedstat, softnet]",
            "disabled: zfs=1",
            "node_exporter_collectors_disabled has the default ['cpu.guest', 'infiniband', 'netclass', 'nfs', "
            "'schedstat', 'softnet']",
        ),
        ("defaults/main.yml", "sha256:\n", "sha256: abc\nnode_exporter_x:\n", "node_exporter_sha256: "),
        ("defaults/main.yml", "# The version to install.\n", "", "node_exporter_version has no comment above it"),
        (
            "defaults/main.yml",
            "node_exporter_essential",
            "node_exporter_important",
            "node_exporter_essential is missing: every",
        ),
        ("meta/main.yml", "[pcluster.postboot.common]", "[]", "depends not on pcluster.postboot.common"),
        (
            "tasks/install.yml",
            "  register: __node_exporter_binary\n",
            "",
            "'install | Install the pinned node_exporter binary' registers nothing; needed",
        ),
        (
            "tasks/install.yml",
            "__node_exporter_binary",
            "node_exporter_user",
            "registers node_exporter_user; needed: __node",
        ),
        ("tasks/install.yml", "__node_exporter_binary", "__node_exporter_service", "one would hide the other"),
        ("tasks/install.yml", "---\n", "---\n" + "#\n" * 100, "lines; 100 at most"),
        (
            "tasks/install.yml",
            "---\n",
            "---\n- name: X\n  ansible.builtin.set_fact:\n    node_exporter_version: 1\n",
            "'X' sets node_exporter_version, which is not an internal of this role",
        ),
        (
            "tasks/install.yml",
            "---\n",
            "---\n- name: X\n  ansible.builtin.include_role:\n    name: a.b.c\n    tasks_from: d.yml\n",
            "'X': tasks_from is d.yml; without the suffix",
        ),
        ("tasks/install.yml", "  register:", "  ignore_errors: true\n  register:", "ignores errors"),
        ("vars/main.yml", "pcluster.postboot.template", "ansible.builtin.template", "template by Ansible's own lookup"),
        ("meta/component.yml", "title:", "titel:", "missing required arguments: title"),
        ("meta/component.yml", "where: all", "where: head", "has job node, and the role leaves no target with that"),
        ("meta/component.yml", "where: all", "where: some", "where must be one of: all, gpu, neuron, head"),
        ("meta/component.yml", "- name: node_exporter\n", "- name: node-exporter\n", "node-exporter is named nowhere"),
        (
            "meta/component.yml",
            "    job: node\n",
            "",
            "is on all nodes of a kind (all); needed: metrics, job and option",
        ),
        ("meta/component.yml", "    address: node_exporter_listen_address\n", "", "has job or option; needed: address"),
        ("meta/component.yml", "_listen_address", "_port", "node_exporter_port is None in defaults/main.yml; needed: "),
        ("meta/component.yml", "--web.listen-address", "--address", "no command line of the role has --address with "),
        ("meta/component.yml", "exposure: 2.4", "template: x.j2\n    exposure: 2.4", "templates/x.j2 is not there"),
    ],
)
def test_a_broken_contract_is_a_line(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, before: str, after: str, says: str
) -> None:
    change(copy / "roles/node_exporter" / file, before, after)
    assert check_roles.main(["--root", str(copy)]) == 1
    assert says in capsys.readouterr().out


def test_tasks_in_blocks_and_handlers_are_looked_at(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    role = copy / "roles/node_exporter"
    (role / "handlers").mkdir()
    (role / "handlers/main.yml").write_text("- name: H\n  service: {name: x}\n")
    (role / "tasks/more.yml").write_text(
        "- name: B\n  block:\n    - name: I\n      command: x\n  rescue:\n    - name: R\n      debug:\n        msg: y\n"
    )
    assert check_roles.main(["--root", str(copy)]) == 1
    said = capsys.readouterr().out
    assert "'H' registers nothing" in said
    assert "'I' registers nothing" in said
    assert "'R'" not in said
    assert "'B'" not in said


def test_what_a_role_keeps_for_itself_no_other_reads(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "roles/node_exporter_x").mkdir()
    (copy / "roles/node_exporter/templates/x.j2").write_text("{{ __node_exporter_xy }}{{ __common_x }}{{ __meta_x }}")
    check_roles.main(["--root", str(copy), "node_exporter"])
    assert capsys.readouterr().out == ""
    (copy / "roles/node_exporter/templates/x.j2").write_text("{{ __node_exporter_x_y }}")
    assert check_roles.main(["--root", str(copy), "node_exporter"]) == 1
    assert "x.j2: __node_exporter_x_y is an internal of role node_exporter_x" in capsys.readouterr().out


@pytest.mark.parametrize("first", ["It is there", "what is due is known", "Whoever asks", "One more"])
@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("roles/node_exporter/tasks/more.yml", "- name: more | {}\n  debug:\n    msg: x\n"),
        ("playbooks/tasks/more.yml", "- name: A\n  block:\n    - name: more | {}\n      debug:\n"),
        ("playbooks/more.yml", "- name: A\n  hosts: all\n  post_tasks:\n    - name: {}\n      debug:\n"),
        ("playbooks/more.yml", "- name: {}\n  hosts: all\n"),
    ],
)
def test_a_task_is_named_by_what_it_does(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, text: str, first: str
) -> None:
    (copy / "playbooks/tasks").mkdir()
    (copy / file).write_text(text.format("Itemise what is there"))
    assert check_roles.main(["--root", str(copy)]) == 0
    (copy / file).write_text(text.format(first))
    assert check_roles.main(["--root", str(copy)]) == 1
    assert f"{file}: '" in (said := capsys.readouterr().out)
    assert f"{first}' begins with '{first.split()[0]}': name the thing" in said


def test_the_rows_of_site_and_the_descriptions_have_to_agree(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = copy / "playbooks/site.yml"
    text = site.read_text()
    change(site, "tags: [node_exporter]", "tags: [metrics]")
    assert check_roles.main(["--root", str(copy)]) == 1
    assert "the tags of node_exporter are ['metrics']" in capsys.readouterr().out
    site.write_text(
        text.replace("vars: {postboot_component: node_exporter}", "vars: {'postboot_component': node_exporter}")
    )
    assert check_roles.main(["--root", str(copy)]) == 1
    assert (
        "runs ['node_exporter', 'node_health', 'prometheus'], and its lines read as ['node_health', 'prometheus']; "
        in capsys.readouterr().out
    )
    site.write_text(re.sub(ROW, "", text))
    assert check_roles.main(["--root", str(copy)]) == 1
    assert "has no row of node_exporter, which has meta/component.yml" in capsys.readouterr().out
    site.write_text(text)
    (copy / "roles/node_exporter/meta/component.yml").unlink()
    assert check_roles.main(["--root", str(copy)]) == 1
    assert "roles/node_exporter/meta/component.yml: is not there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("file", "before", "after", "place", "line"),
    [
        (
            "meta/component.yml",
            "title: m",
            "title: M",
            "README.md",
            "| `node_exporter`: Metrics of the node and its EFA",
        ),
        ("defaults/main.yml", '":9100"', '":9200"', "docs/observability.md", "| `node_exporter` | 9200 | `journalctl"),
        (
            "defaults/main.yml",
            "essential: false",
            "essential: true",
            "docs/pull.md",
            "- Essential are `node_exporter`.",
        ),
        ("meta/component.yml", "[/usr/local/bin/n", "[/opt/n", "plugins/module_utils/_node/software.py", '"/opt/node_'),
        (
            "meta/component.yml",
            "job: node",
            "job: n",
            "roles/prometheus/files/rules/node.yml",
            '{{- if eq $unit "n" }}`sys',
        ),
    ],
)
def test_what_is_written_of_components_follows_their_description(
    copy: Path, capsys: pytest.CaptureFixture[str], file: str, before: str, after: str, place: str, line: str
) -> None:
    root = ["--root", str(copy)]
    assert render_role_docs.main(["--check", *root]) == 0
    change(copy / "roles/node_exporter" / file, before, after)
    assert line not in (copy / place).read_text()
    assert render_role_docs.main(["--check", *root]) == 1
    assert f"{copy / place} is out of date" in capsys.readouterr().err
    assert render_role_docs.main(root) == 0
    assert line in (copy / place).read_text()
    assert render_role_docs.main(["--check", *root]) == 0
    change(copy / place, render_components.END, "the end")
    assert render_role_docs.main(["--check", *root]) == 1
    assert f"{place}: there is no place for the components" in capsys.readouterr().err


def test_a_table_that_is_out_of_date_is_found_and_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(copy)]
    assert render_role_docs.main(["--check", *root]) == 0
    change(copy / "roles/node_exporter/meta/argument_specs.yml", "The version to install.", "Which | version.")
    assert render_role_docs.main(["--check", *root]) == 1
    assert "is out of date" in capsys.readouterr().err
    assert render_role_docs.main(root) == 0
    text = (copy / "roles/node_exporter/README.md").read_text()
    assert "| `node_exporter_version` | str | `1.12.1` | Which \\| version. |" in text
    assert text.startswith("# node_exporter\n")
    assert render_role_docs.main(["--check", *root]) == 0


def test_a_readme_without_a_place_for_the_table_is_named(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "roles/common/README.md").write_text("# common\n")
    assert render_role_docs.main(["--root", str(copy)]) == 1
    assert "there is no place for the table" in capsys.readouterr().err


def test_every_alert_has_a_page_and_a_row(copy: Path) -> None:
    """Of those that fire, and of none that does not."""
    (text,) = render_alerts.rendered(copy).values()
    names = [rule["alert"] for rules in render_alerts.alerts(copy).values() for rule in rules]
    assert len(names) > 30
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == names


def test_a_changed_advisory_is_found_in_its_table_and_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(copy)]
    change(copy / render_advisories.SOURCE, "fixed: [1.19.1]", "fixed: [1.19.2]")
    render_advisories.read.cache_clear()
    assert render_role_docs.main(["--check", *root]) == 1
    assert f"{copy}/docs/advisories.md is out of date" in capsys.readouterr().err
    assert render_role_docs.main(root) == 0
    (row,) = [line for line in (copy / "docs/advisories.md").read_text().splitlines() if "CVE-2026-24260" in line]
    assert "| up to 1.19.0 | 1.19.2 | an older version is replaced. An older toolkit" in row
    change(copy / render_advisories.SOURCE, "answer: told", "answer: said")
    render_advisories.read.cache_clear()
    assert render_role_docs.main(["--check", *root]) == 1
    assert "advisories.yml: answer is 'said'; needed: one of replaced, pinned, told, outside" in capsys.readouterr().err


PAGE = "https://github.com/pcluster/postboot/blob/main/docs/runbooks/lost-gpu.md#how-many-does-the-node-see"


@pytest.mark.parametrize(
    ("before", "after", "line"),
    [
        (
            f"runbook_url: {PAGE}",
            "",
            "runbook_url is ''; needed: https://github.com/pcluster/postboot/blob/main/docs/<",
        ),
        (
            PAGE,
            PAGE.replace("main/docs", "next/docs"),
            "runbook_url is 'https://github.com/pcluster/postboot/blob/next",
        ),
        (PAGE, PAGE.replace("lost-gpu", "lost"), "docs/runbooks/lost.md#how-many-does-the-node-see'; needed: https:"),
        (
            PAGE,
            PAGE.partition("#")[0] + "#",
            "docs/runbooks/lost-gpu.md has no heading for ''; needed: one of a-lost-gpu, how-",
        ),
        (PAGE, PAGE + "s", "lost-gpu.md has no heading for 'how-many-does-the-node-sees'; needed: one of a-lost-gpu, "),
    ],
)
def test_an_alert_whose_page_is_not_there_is_named(
    copy: Path, capsys: pytest.CaptureFixture[str], before: str, after: str, line: str
) -> None:
    change(copy / "roles/prometheus/files/rules/gpu.yml", before, after)
    assert render_role_docs.main(["--check", "--root", str(copy)]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert told.startswith("roles/prometheus/files/rules: GpuLost: ")
    assert line in told


def test_a_changed_xid_is_found_in_its_tables_and_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(copy)]
    change(copy / render_gpu_messages.XIDS, "xids: [54]", "xids: [54, 999]")
    assert render_role_docs.main(["--check", *root]) == 1
    assert capsys.readouterr().err.count("is out of date") == 3
    assert render_role_docs.main(root) == 0
    assert "| 54, 999 | the GPU's auxiliary power" in (copy / render_gpu_messages.RUNBOOK).read_text()
    for name in (render_gpu_messages.READER, render_gpu_messages.COPY):
        assert 'dict.fromkeys((54, 64, 79, 999,), "replace")' in (copy / name).read_text()
    change(copy / render_gpu_messages.RUNBOOK, render_gpu_messages.END, "")
    assert render_role_docs.main(root) == 1
    assert "lost-gpu.md: there is no place for the XIDs; needed: lines with 'begin" in capsys.readouterr().err


def test_an_alert_may_lead_to_a_whole_page(copy: Path) -> None:
    change(copy / "roles/prometheus/files/rules/gpu.yml", PAGE, PAGE.partition("#")[0])
    (text,) = render_alerts.rendered(copy).values()
    assert " left | 5m | [A lost GPU](runbooks/lost-gpu.md) |\n" in text


def test_a_changed_alert_is_found_in_its_table_and_written(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = ["--root", str(copy)]
    change(copy / "roles/prometheus/files/rules/gpu.yml", "for: 5m", "for: 7m")
    assert render_role_docs.main(["--check", *root]) == 1
    assert f"{copy}/docs/alerts-table.md is out of date" in capsys.readouterr().err
    assert render_role_docs.main(root) == 0
    row = "| `GpuLost` | critical | *node* of *cluster* has *n* GPUs left | 7m | [How many does the node see?]"
    assert row in (copy / "docs/alerts-table.md").read_text()
    change(copy / "docs/alerts-table.md", render_alerts.MARK, "")
    assert render_role_docs.main(["--check", *root]) == 1
    assert "docs/alerts-table.md: there is no place for the table" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("summary", "text"),
    [
        ("{{ $labels.pc_node }} has {{ $value | humanize }} left", "*node* has *n* left"),
        ("{{ $value }} nodes{{ with $labels.pc_queue }} (queue {{ . }}){{ end }} wait", "*n* nodes wait"),
        (
            "Slow: {{- $a := 1 }} {{- range query $a }}{{ if $b }},{{ end }} {{ .Labels.c }}{{ end }} | so",
            "Slow: … \\| so",
        ),
    ],
)
def test_a_template_is_read_by_people(summary: str, text: str) -> None:
    assert render_alerts.plain(summary) == text


class Publisher:
    """A publisher's web server."""

    def __init__(self, top: Path, url: str) -> None:
        self.top, self.url = top, url

    def put(self, path: str, content: str) -> None:
        file = self.top / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    with lab.serving_files(tmp_path / "www") as url:
        yield Publisher(tmp_path / "www", url)


DEFAULTS = """---
# What it is.
tool_version: 1.0 # the newest

tool_base_url: URL
# Its hash.
tool_sha256:
  x86_64: "{x}"  # checked by hand
  aarch64: ""
other_sha256:
  aarch64: ""
"""
VARS = """
__tool_url: "{{ tool_base_url }}/v{{ tool_version }}/tool-{{ ansible_facts['pcluster']['go_architecture'] }}.tgz"
__tool_checksums: "{{ tool_base_url }}/v{{ tool_version }}/sums.txt"
"""
A, B = "a" * 64, "b" * 64


@pytest.fixture
def tool(tmp_path: Path, publisher: Publisher) -> Path:
    role = tmp_path / "roles/tool"
    (role / "defaults").mkdir(parents=True)
    (role / "vars").mkdir()
    (role / "defaults/main.yml").write_text(DEFAULTS.replace("{x}", A).replace("URL", publisher.url))
    (role / "vars/main.yml").write_text(VARS)
    return role


def run_pins(tool: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, list[str], str]:
    code = pins.main(["--root", str(tool.parents[1]), *arguments])
    return code, capsys.readouterr().out.splitlines(), (tool / "defaults/main.yml").read_text()


def test_what_is_missing_is_recorded_and_nothing_else_changes(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.put("v1.0/sums.txt", f"{A}  tool-amd64.tgz\n{B} *./dist/tool-arm64.tgz\n")
    before = (tool / "defaults/main.yml").read_text()
    code, said, after = run_pins(tool, capsys, "--check")
    assert (code, after) == (0, before)
    assert said[1] == f"tool_sha256['aarch64']: MISSING: what the publisher's list says is {B}"
    code, said, after = run_pins(tool, capsys)
    assert code == 0
    assert said[:2] == [
        "tool_sha256['x86_64']: what the publisher's list says",
        "tool_sha256['aarch64']: recorded, what the publisher's list says",
    ]
    assert after == before.replace('aarch64: ""', f'aarch64: "{B}"', 1)
    assert said[2] == "other_sha256['aarch64']: MISSING: the role has no __other_url"


def test_a_recorded_checksum_that_is_wrong_fails_and_is_replaced_on_request(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher.put("v1.0/sums.txt", f"{B}  tool-amd64.tgz\n{B}  tool-arm64.tgz\n")
    code, said, after = run_pins(tool, capsys)
    assert code == 1
    assert said[0].startswith(f"tool_sha256['x86_64']: WRONG: recorded is {A}, what the publisher's list says is {B}")
    assert f'x86_64: "{A}"  # checked by hand' in after
    code, said, after = run_pins(tool, capsys, "--update")
    assert code == 0
    assert f'x86_64: "{B}"  # checked by hand' in after


def test_a_publisher_that_cannot_be_asked_proves_nothing(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said, after = run_pins(tool, capsys)
    assert code == 0
    assert said[0].startswith("tool_sha256['x86_64']: recorded, and not verified: http://127.0.0.1")
    assert said[1].startswith("tool_sha256['aarch64']: MISSING: http://127.0.0.1")
    assert 'aarch64: ""' in after


def test_without_a_list_the_download_itself_has_to_do(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    (tool / "vars/main.yml").write_text(VARS.splitlines()[1] + "\n")
    publisher.put("v1.0/tool-amd64.tgz", "amd64")
    publisher.put("v1.0/tool-arm64.tgz", "arm64")
    code, said, after = run_pins(tool, capsys)
    assert "--download computes it from the file itself" in said[1]
    code, said, after = run_pins(tool, capsys, "--download")
    assert code == 1
    assert said[0].startswith("tool_sha256['x86_64']: WRONG")
    assert said[1] == "tool_sha256['aarch64']: recorded, computed from the download, for which no publisher vouches"
    assert hashlib.sha256(b"arm64").hexdigest() in after


def test_a_recorded_sha512_is_compared_with_a_sha512(
    tool: Path, publisher: Publisher, capsys: pytest.CaptureFixture[str]
) -> None:
    defaults, content = tool / "defaults/main.yml", "amd64"
    (tool / "vars/main.yml").write_text(VARS.splitlines()[1] + "\n")
    publisher.put("v1.0/tool-amd64.tgz", content)
    sha512 = hashlib.sha512(content.encode()).hexdigest()
    defaults.write_text(defaults.read_text().replace(A, sha512))
    code, said, after = run_pins(tool, capsys, "--download", "--check")
    assert (code, said[0]) == (
        0,
        "tool_sha256['x86_64']: computed from the download, for which no publisher vouches",
    )
    publisher.put("v1.0/tool-amd64.tgz", "another")
    code, said, after = run_pins(tool, capsys, "--download", "--update")
    assert hashlib.sha512(b"another").hexdigest() in after


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (f"{A}  tool.tgz\n{B}  tool.tgz.asc\n", A),
        (f"{A} *dist/tool.tgz\n", A),
        (f"SHA256 (tool.tgz) = {A}\n", A),
        (f"{A.upper()}\n", A),
        (f"tool.tgz: {A}\n", A),
        (f"{A}{B}  tool.tgz\n", A + B),
        (f"SHA512 (tool.tgz) = {A}{B}\n", A + B),
        (f"{A}{B}  tool.tgz\n{B}  tool.tgz\n", B),
    ],
)
def test_publishers_write_their_lists_in_many_ways(text: str, found: str) -> None:
    assert pins.published(text, "tool.tgz") == found


def test_a_list_with_both_hashes_is_asked_for_the_one_that_is_recorded() -> None:
    text = f"{A}{B}  tool.tgz\n{B}  tool.tgz\n"
    assert pins.published(text, "tool.tgz", 128) == A + B
    assert pins.published(text, "tool.tgz", 64) == B
    assert pins.published(f"{A}{B}  tool.tgz\n", "tool.tgz", 64) == A + B


def test_what_github_says_of_a_release_is_a_list() -> None:
    release = {
        "tag_name": "v1.0",
        "body": f"## Bug fixes\r\n\r\nChecksum (sha512) for tool.tgz:\r\n```\r\n{A}{B}  tool.tgz\r\n```\r\n",
        "assets": [
            {"name": "old.tgz", "digest": None},
            {"name": "other.tgz", "digest": f"sha256:{A}"},
            {"name": "tool.tgz", "digest": f"sha256:{B}"},
        ],
    }
    assert pins.published(json.dumps(release), "tool.tgz", 128) == A + B
    assert pins.published(json.dumps(release), "tool.tgz") == B
    with pytest.raises(pins.PinError, match=r"does not name old\.tgz"):
        pins.published(json.dumps(release), "old.tgz")


@pytest.mark.parametrize("text", [f"{A}  other.tgz\n", "", f"{A}\n{B}\n", f"{A}  tool.tgz.asc\n"])
def test_a_list_that_does_not_name_the_file_proves_nothing(text: str) -> None:
    with pytest.raises(pins.PinError, match=r"does not name tool\.tgz"):
        pins.published(text, "tool.tgz")
