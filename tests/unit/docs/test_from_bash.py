# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/from-bash.md and the pages beside it: each entry of bash_world.yml stands where that says, and all is there.

The last column of the pages' tables says what is here: variables, playbooks, paths and ports that it names have to be
those of the collection.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.plugin_utils._site import components, roles
from ansible_collections.pcluster.postboot.tests import templating

pytestmark = pytest.mark.once

REPO = Path(__file__).resolve().parents[3]
DOCS = REPO / "docs"
PAGES = [DOCS / "from-bash.md", *sorted((DOCS / "from-bash").glob("*.md"))]
WORLD: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "bash_world.yml").read_text())
PLACES = [(place, entries) for kind in WORLD if kind != "left_out" for place, entries in WORLD[kind].items()]
CODE = re.compile(r"`([^`\n]+)`")
JOBS = {path.stem for path in (REPO / "playbooks").glob("*.yml")}
SHARED = "/fsx"


def slug(title: str) -> str:
    """Return the address of a title within its page, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


@functools.cache
def sections(page: Path) -> dict[str, str]:
    """Return the text below each title of a page, by the title's address."""
    parts = re.split(r"^##+ (.+)\n", page.read_text(), flags=re.MULTILINE)
    return {slug(title): text for title, text in zip(parts[1::2], parts[2::2])}


def codes(text: str) -> list[str]:
    """Return what a text has between backticks, and the numbers in first cells of tables."""
    return [*CODE.findall(text), *re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]


def stands_in(entry: str, text: str) -> bool:
    return any(re.search(rf"(?<![\w/.-]){re.escape(entry)}(?![\w-])", code) for code in codes(text))


def rows() -> Iterator[list[str]]:
    """Yield the cells of each row of each table of the pages."""
    for page in PAGES:
        for line in page.read_text().splitlines():
            if line.startswith("| ") and not line.startswith(("| then ", "| from ", "| port ")):
                yield [cell.strip() for cell in re.split(r"(?<!\\) ?\| ?", line)[1:-1]]


def here() -> str:
    """Return what the pages say is here: the last cell of each row, and the prose."""
    return "\n".join(cells[-1] for cells in rows())


# --- each entry has its place ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("place", "entries"), PLACES, ids=lambda one: one if isinstance(one, str) else "")
def test_each_entry_stands_where_the_list_says(place: str, entries: list[str]) -> None:
    page, _, title = place.partition("#")
    text = sections(DOCS / page).get(title)
    assert text is not None, f"docs/{page} has no section #{title}"
    assert [entry for entry in entries if not stands_in(entry, text)] == []


def test_no_entry_is_in_the_list_twice() -> None:
    entries = [entry for _place, some in PLACES for entry in some] + list(WORLD["left_out"])
    assert len(entries) > 300
    assert sorted(entry for entry in set(entries) if entries.count(entry) > 1) == []


def test_what_is_left_out_has_a_reason_and_no_place() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    for entry, reason in WORLD["left_out"].items():
        assert len(reason.split()) > 2, entry
        assert not stands_in(entry, text), f"{entry} is on a page: give its place"


def test_every_row_says_what_is_here() -> None:
    assert [cells for cells in rows() if not cells[-1]] == []
    assert len(list(rows())) > 150


# --- what the pages say is here, is there ----------------------------------------------------------------------------


def options() -> set[str]:
    return {name for path in (REPO / "roles").iterdir() for name in roles.read_roles([path.name])[path.name].options}


def test_variables_are_those_of_the_collection() -> None:
    known = options()
    begins = tuple(f"{path.name}_" for path in (REPO / "roles").iterdir())
    named = {word for code in CODE.findall(here()) for word in re.findall(r"(?<![\w/.-])[a-z]+(?:_[a-z0-9]+)+", code)}
    ours = {word for word in named if word.startswith(begins)} - {path.name for path in (REPO / "roles").iterdir()}
    assert len(ours) > 30
    assert sorted(ours - known) == []


def test_playbooks_and_roles_are_there() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert set(re.findall(r"pcluster\.postboot\.(\w+)", text)) <= JOBS
    named = re.findall(r"\[`(\w+)`\]\(([^)]+)\)", text)
    assert len(named) > 20
    assert {name for name, _target in named} <= JOBS | options()
    links = {name: re.search(r"roles/(\w+)/README\.md$", target) for name, target in named}
    assert {name: role[1] for name, role in links.items() if role and role[1] != name} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, title = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if title:
            found = {slug(one) for one in re.findall(r"^#+ (.+)$", there.read_text(), re.MULTILINE)}
            assert title in found, target


def published() -> set[str]:
    """Return the paths that roles publish on the shared file system, with the directories above them."""
    facts = {"components": {"cuda": "13.0"}, "cluster_user": "ubuntu"}
    found: set[str] = set()

    def add(role: str, expression: str, top: str = "", **more: Any) -> None:
        given = {"ansible_check_mode": False, **more}
        search = [str(REPO / "roles" / role)]
        value = templating.work_out(f"common {role}", facts, ansible_search_path=search, role_path=search[0], **given)
        found.update(str(Path(top or "/") / one["path"]) for one in value(expression))

    add("fsx", "fsx_directories", SHARED)
    add("fsx", "__fsx_files", f"{SHARED}/scripts")
    add("nccl", "__nccl_files", f"{SHARED}/nccl")
    mpi = {"stat": {"exists": True, "isdir": True}}
    add("nccl_tests", "__nccl_tests_files", f"{SHARED}/nccl", __nccl_tests_mpi_there=mpi)
    add("container_images", "__container_images_own_files")
    value = templating.work_out("common nccl nccl_tests", facts, __nccl_tests_mpi_there=mpi)
    found |= {value("nccl_dir") + "/current", value("nccl_tests_dir") + "/results"}
    found |= {f"{value('nccl_tests_dir')}/current/bin/{one}_perf" for one in value("__nccl_tests_programs")}
    return found | {str(parent) for path in found for parent in Path(path).parents}


@functools.cache
def sources() -> str:
    """Return the text of all roles and plugins, but for what people read."""
    files = [path for top in ("roles", "plugins") for path in (REPO / top).rglob("*") if path.is_file()]
    return "\n".join(path.read_text(errors="replace") for path in files if path.suffix not in (".md", ".json", ".pyc"))


def test_paths_are_published_or_written_by_roles() -> None:
    found = re.compile(r"(?<![\w:/.<>~…=*-])/[a-z][\w./-]*\w")
    named = {path for code in CODE.findall(here()) for path in found.findall(code)}
    assert len(named) > 15
    shared = published()
    ours = {
        path.rstrip("/") for path in named if path.startswith((f"{SHARED}/", "/opt/nccl", "/etc/", "/var/lib/pcluster"))
    }
    # Job files, which the page names by their whole paths, and links of roles.
    assert sorted(path for path in ours if path not in shared and path not in sources()) == []


def test_old_paths_that_stay_the_same_are_published() -> None:
    """The row says `the same`, so the path in its first cell has to be there under that very name."""
    shared = published()
    same = [cells for cells in rows() if cells[-1] == "the same" or cells[-1].startswith(("the same (", "the same,"))]
    codes_of_same = [code for cells in same for code in CODE.findall(cells[0])]
    paths = {path for code in codes_of_same for path in re.findall(rf"{SHARED}/[\w./-]+", code)}
    # What users put there, and what the importer writes while it works.
    theirs = {path for path in paths if path.endswith((".sqsh", "/train.py"))} | {f"{SHARED}/logs/ngc-download.log"}
    wanted = {path.rstrip("/.") for path in paths - theirs}
    assert len(wanted) > 10
    assert sorted(path for path in wanted if path not in shared) == []


def test_ports_are_those_of_the_components() -> None:
    """A port in the last cell of the table of ports, or else in the first one, is its component's default."""
    ports = {}
    for each in components.read():
        for unit in each.units:
            if unit.address:
                ports[each.name] = str(each.defaults[unit.address]).rpartition(":")[2]
    table = sections(DOCS / "from-bash/nodes.md")["ports"]
    seen = {}
    for line in table.splitlines():
        if row := re.match(r"\| (\d+) \| .* \| `(\w+)`(?: on (\d+))?", line):
            seen[row[2]] = row[3] or row[1]
    assert seen == {
        name: ports[name] for name in ("prometheus", "node_exporter", "dcgm_exporter", "grafana", "slurm_exporter")
    }


def test_the_list_and_the_pages_name_no_scratch_file() -> None:
    texts = [Path(__file__).parent / "bash_world.yml", *PAGES]
    for path in texts:
        assert "/tmp/" not in path.read_text(), path.name
