# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The runbooks, as far as they can be judged without a sandbox; molecule/cluster/tests/test_runbooks.py runs them."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load

ROOT = Path(__file__).resolve().parents[3]
runbooks = load("molecule/cluster/tests/runbooks.py")
PAGES = runbooks.pages()
EACH = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)

PROGRAMS = (
    *("ansible", "ansible-inventory", "ansible-playbook", "aws", "curl", "dcgmi", "grep", "journalctl", "lctl", "lfs"),
    *("nvidia-smi", "pcluster", "py-spy", "sacct", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun", "sstat"),
    *("sudo", "systemctl"),
)
# Units that the pages name and no role of ours writes: the system's, Slurm's, NVIDIA's, AWS's.
FOREIGN = ("amazon-cloudwatch-agent", "amazon-ssm-agent", "nvidia-dcgm", "nvidia-fabricmanager", "slurmctld", "slurmd")


def inline(text: str) -> list[str]:
    """The pieces of code in a page's sentences and tables."""
    return re.findall(r"`([^`\n]+)`", runbooks.BLOCK.sub("", text))


# The pages


@EACH
def test_the_commands_of_a_page_can_be_read(page: Path) -> None:
    found = runbooks.steps(page.read_text())
    assert found
    assert [str(step) for step in found if step.run], "a page of which nothing is run says nothing that was tried"


@EACH
def test_no_command_hides_in_a_sentence(page: Path) -> None:
    """What stands in a sentence is run by nobody: the name of a subcommand may, a command belongs into a block."""
    assert [code for code in inline(page.read_text()) if hides(code)] == []


def hides(code: str) -> bool:
    """Whether code in a sentence is a command with arguments."""
    program, *words = code.split()
    named = 2 if program == "aws" else 1
    return program in PROGRAMS and (len(words) > named or any(word.startswith("-") for word in words))


@EACH
def test_links_lead_to_what_is_there(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if path.startswith("https:"):
            continue
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(link)
    assert broken == []


def anchors(file: Path) -> set[str]:
    """The headings of a page as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in headings}


@functools.cache
def variables() -> set[str]:
    """The public variables of all roles."""
    found: set[str] = set()
    for spec in ROOT.glob("roles/*/meta/argument_specs.yml"):
        found |= set(yaml.safe_load(spec.read_text())["argument_specs"]["main"].get("options") or {})
    return found


@EACH
def test_variables_are_those_of_a_role(page: Path) -> None:
    roles = "|".join(sorted((path.name for path in ROOT.glob("roles/*")), key=len, reverse=True))
    named = re.findall(rf"(?<![\w.:-])((?:{roles})_[a-z0-9_]+)\b(?![.-])", "\n".join(inline(page.read_text())))
    named += re.findall(r" -e '?\{?\"?([a-z0-9_]+)[=\"]", page.read_text())
    assert sorted(set(named) - variables() - {path.name for path in ROOT.glob("roles/*")}) == []


@EACH
def test_playbooks_and_units_are_there(page: Path) -> None:
    text = page.read_text()
    for playbook in re.findall(r"ansible-playbook .*?pcluster\.postboot\.(\w+)", text):
        assert (ROOT / f"playbooks/{playbook}.yml").exists(), playbook
    known = {f"{unit}.service" for unit in (*units(), *FOREIGN)}
    assert set(re.findall(r"\b[\w-]+\.service\b", text)) - known == set()


@functools.cache
def units() -> set[str]:
    """The services that components run."""
    found = {"pcluster-postboot"}
    for description in ROOT.glob("roles/*/meta/component.yml"):
        found |= {unit["name"] for unit in yaml.safe_load(description.read_text()).get("units", [])}
    return found


@EACH
def test_metrics_are_recorded_or_exported(page: Path) -> None:
    text = page.read_text()
    rules = "".join(path.read_text() for path in (ROOT / "roles/prometheus/files/rules").glob("*.yml"))
    recorded = set(re.findall(r"record: (\S+)", rules))
    assert set(re.findall(r"\b(?:pc_node|hpc_job|fsx):\w+(?::\w+)?", text)) - recorded == set()
    exported = "".join(path.read_text() for path in (ROOT / "roles/dcgm_exporter").rglob("*") if path.is_file())
    assert [name for name in re.findall(r"\bDCGM_\w+", text) if name not in exported] == []


def test_every_log_stream_of_parallelcluster_is_on_the_page_of_logs() -> None:
    """The sandbox's agent has the names of ParallelCluster's."""
    agent = (ROOT / "molecule/cluster/standins/cookbook/templates/cloudwatch_agent.json.j2").read_text()
    streams = dict(re.findall(r"'([a-z_-]+)': '([a-z_.-]+(?:/[a-z_.-]+)?)'", agent))
    assert len(streams) > 15
    page = (runbooks.FOLDER / "logs.md").read_text()
    assert [name for name in streams if f"`{name}`" not in page] == []
    files = [file for file in streams.values() if f"/var/log/{file}" not in page and f"`{Path(file).name}`" not in page]
    assert files == []


@EACH
def test_a_page_has_its_place_in_the_tables(page: Path) -> None:
    assert f"]({page.name})" in (page.parent / "README.md").read_text()
    assert f"](runbooks/{page.name}" in (ROOT / "docs/README.md").read_text()


def test_each_scene_belongs_to_a_page() -> None:
    scenes = {path.stem for path in (ROOT / "molecule/cluster/tests/scenes").glob("*.py")} - {"__init__"}
    assert scenes <= {page.stem.replace("-", "_") for page in PAGES}


# How pages are read


def steps(*lines: str) -> list[Any]:
    found: list[Any] = runbooks.steps("\n".join([*lines, ""]))
    return found


def test_prompts_say_where_and_lines_below_what_is_printed() -> None:
    first, second, third = steps(
        "# A page", "", "```console", "$ aws ec2 \\", "    describe", "one", "", "two", "[head]$ sinfo", "$ true", "```"
    )
    assert (first.command, first.node, first.printed, first.line) == (
        "aws ec2 describe",
        runbooks.WORKSTATION,
        ["one", "two"],
        4,
    )
    assert (second.command, second.node, second.printed, second.run) == ("sinfo", "head", [], True)
    assert third.line == 10


def test_only_the_paragraph_above_a_block_speaks_of_it() -> None:
    found = steps(
        "Not run in the sandbox: there is no such machine.",
        "",
        "Within 2 minutes:",
        "```console",
        "$ one",
        "```",
        "Not run in the sandbox: there is no such machine.",
        "Costs nothing.",
        "",
        "```console",
        "$ two",
        "$ three",
        "```",
        "",
        "```console",
        "$ four",
        "```",
    )
    assert [(step.command, step.run, step.patience) for step in found] == [
        ("one", True, 120),
        ("two", False, 0),
        ("three", False, 0),
        ("four", True, 0),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["```console", "lost", "$ true", "```"], "line 2: 'lost' stands before the block's first command"),
        (["```bash", "true", "```"], "line 1: a block is 'bash'; needed: console"),
        (["", "```", "$ true", "```"], "line 2: a block is 'without a language'; needed: console"),
    ],
)
def test_a_block_that_nobody_would_run_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(runbooks.Problem, match=f"^{message}$"):
        steps(*lines)


def test_what_is_printed_is_compared_with_the_page() -> None:
    names = runbooks.Names({"my-cluster": "main"})
    names.compare(
        ["NODELIST  STATE", "my-cluster: idle since 2026-11-23T01:02:03", "…", "… of 8 GPUs"],
        "\nNODELIST STATE\nmain: idle since 2027-01-02T23:59:59\nmore\neven more\nall of 8 GPUs\n",
    )
    for wanted, printed in (
        (["my-cluster: idle"], "main: down\n"),
        (["8 GPUs"], "7 GPUs\n"),
        (["a", "b"], "b\na\n"),
        (["a", "…", "b"], "a\nc\n"),
    ):
        with pytest.raises(runbooks.Problem, match="not printed, or not there"):
            names.compare(wanted, printed)
    with pytest.raises(runbooks.Problem, match="more is printed"):
        names.compare(["a"], "a\nb\n")


def test_an_example_is_learnt_and_stays_the_same() -> None:
    names = runbooks.Names()
    with pytest.raises(runbooks.Problem, match="i-0123456789abcdef0 is in a command, and no earlier command has"):
        names.fill("aws ec2 describe-instances --instance-ids i-0123456789abcdef0")
    names.compare(
        ["i-0123456789abcdef0 10.0.16.5 job 1234", "i-0123456789abcdef0 ip-10-0-16-5.i-0123456789abcdef0.cfn-init"],
        "i-99f9b1a2c3d4e5f60 10.115.0.12 job 57\ni-99f9b1a2c3d4e5f60 ip-10-115-0-12.i-99f9b1a2c3d4e5f60.cfn-init\n",
    )
    assert names.fill("look i-0123456789abcdef0 10.0.16.5 1234") == "look i-99f9b1a2c3d4e5f60 10.115.0.12 57"
    with pytest.raises(runbooks.Problem, match="not printed"):
        names.compare(["i-0123456789abcdef0"], "i-11111111111111111\n")
    names.compare(["i-0fedcba9876543210"], "i-11111111111111111\n")
    assert names.fill("see i-0fedcba9876543210") == "see i-11111111111111111"


def test_one_example_may_not_be_two_things_in_one_answer() -> None:
    with pytest.raises(runbooks.Problem, match="not printed"):
        runbooks.Names().compare(["1234 1234"], "7 8\n")


def test_a_name_is_replaced_only_as_a_whole() -> None:
    names = runbooks.Names({"my-cluster": "main", "my-cluster-2": "el"})
    assert names.fill("a my-cluster-2 /aws/parallelcluster/my-cluster-x xmy-cluster") == (
        "a el /aws/parallelcluster/main-x xmy-cluster"
    )


def test_an_address_tells_a_host_name() -> None:
    names = runbooks.Names()
    names.compare(["('10.0.1.2')"], "('10.115.0.7')\n")
    assert names.fill("ip-10-0-1-2.cfn-init") == "ip-10-115-0-7.cfn-init"


@pytest.mark.parametrize(
    ("code", "command"),
    [
        ("pcluster", False),
        ("pcluster create-cluster", False),
        ("aws logs tail", False),
        ("/var/log/slurmd.log", False),
        ("aws logs tail my-group", True),
        ("pcluster list-clusters --region us-east-2", True),
        ("sudo reboot now", True),
    ],
)
def test_a_command_in_a_sentence_is_known_by_its_arguments(code: str, command: bool) -> None:
    assert hides(code) == command
