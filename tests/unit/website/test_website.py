# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The site of the documentation: it has all pages, their links lead on, and it shows them as GitHub does."""

from __future__ import annotations

import functools
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.pcluster.postboot.tests.programs import load

REPO = Path(__file__).resolve().parents[3]
pages, dialect, built = (load(f"website/{name}.py") for name in ("pages", "dialect", "built"))
reference = load("website/reference.py")
REPOSITORY = "https://git.example.org/postboot"


def flat(entries: Any) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for inner in entry.values():
                yield from flat(inner)


@functools.cache
def site() -> list[str]:
    return list(flat(pages.navigation(REPO)))


# --- the site is complete --------------------------------------------------------------------------------------------


def test_each_page_role_and_public_module_has_one_place() -> None:
    wanted = {path.relative_to(REPO).as_posix() for path in (REPO / "docs").rglob("*.md")}
    wanted |= {f"roles/{path.name}/README.md" for path in (REPO / "roles").iterdir()}
    internal = "pcluster.postboot.attributes.internal"
    modules = [path for path in (REPO / "plugins/modules").glob("*.py") if internal not in path.read_text()]
    assert len(modules) > 7
    wanted |= {f"plugins/modules/{path.stem}.md" for path in modules}
    wanted |= {"README.md", "CONTRIBUTING.md", "plugins/inventory/pcluster.md", "playbooks/README.md"}
    assert wanted - set(site()) == set()
    assert [page for page, count in Counter(site()).items() if count > 1] == []
    assert [where for where, count in Counter(map(pages.address, site())).items() if count > 1] == []


def test_the_page_of_the_playbooks_has_each_and_leads_to_its_options() -> None:
    text = reference.playbooks(REPO, pages.playbooks(REPO))
    rows = {line.split("`")[1]: line for line in text.splitlines() if line.startswith("| [`")}
    plays = {path.stem for path in (REPO / "playbooks").glob("*.yml")}
    assert set(rows) == plays - {"find_nodes"}
    assert "| Checks a cluster by jobs that an ordinary user submits on the head node, and changes nothing. |" in text
    for name, line in rows.items():
        assert name == "site" or f"](../roles/{name}/README.md)" in line
        assert len(line.split("|")[2]) > 20, f"playbooks/{name}.yml does not begin with what it does"


def test_the_page_of_a_module_has_all_of_its_options_and_results() -> None:
    module = REPO / "plugins/modules/directory_tree.py"
    parts = module.read_text().split('"""')
    options, results = yaml.safe_load(parts[3])["options"], yaml.safe_load(parts[7])
    told = reference.told("module", ["directory_tree"])["directory_tree"]
    text = reference.page("directory_tree", told, "the module")
    for name in [*options, *(f"directories[].{one}" for one in options["directories"]["suboptions"]), *results]:
        assert f"\n| `{name}` |" in text
    assert "\n| `check_mode` | full |" in text
    assert "## Examples\n\n```yaml\n- name: " in text


def test_titles_of_a_section_differ() -> None:
    for section in pages.navigation(REPO):
        ((name, entries),) = section.items()
        titles = [pages.title((REPO / page).read_text()) for page in entries if isinstance(page, str)]
        assert all(titles)
        assert [one for one, count in Counter(titles).items() if count > 1] == [], name


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """All that the navigation is made from."""
    for page in pages.written(REPO):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPO / page, tmp_path / page)
    return tmp_path


def test_a_page_to_which_no_question_leads_is_named(copy: Path) -> None:
    (copy / "docs/lonely.md").write_text("# Lonely\n")
    with pytest.raises(pages.PageError, match=r"docs/README.md does not link to docs/lonely.md: "):
        pages.navigation(copy)


def test_the_navigation_needs_its_two_sections(copy: Path) -> None:
    questions = copy / "docs/README.md"
    questions.write_text(questions.read_text().replace("## Reference", "## Look up"))
    with pytest.raises(pages.PageError, match=r"^docs/README.md: there is no section Reference$"):
        pages.navigation(copy)


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("page", "link", "leads"),
    [
        ("docs/push.md", "../roles/nccl/README.md#who", "../roles/nccl/README.md#who"),
        ("docs/push.md", "../roles/nccl", "../roles/nccl/README.md"),
        ("docs/push.md", "../roles/nccl/", "../roles/nccl/README.md"),
        ("docs/push.md", "../inventory/ansible.cfg", f"{REPOSITORY}/blob/main/inventory/ansible.cfg"),
        ("docs/push.md", "../molecule/cluster/tests", f"{REPOSITORY}/tree/main/molecule/cluster/tests"),
        ("README.md", "LICENSE", f"{REPOSITORY}/blob/main/LICENSE"),
        ("molecule/cluster/README.md", "aws/README.md#x", f"{REPOSITORY}/blob/main/molecule/cluster/aws/README.md#x"),
        ("docs/dashboards.md", "images/dashboard-efa.svg", "images/dashboard-efa.svg"),
        ("docs/push.md", "#which", "#which"),
        ("docs/push.md", "https://example.org/docs", "https://example.org/docs"),
        ("docs/push.md", "missing.md", "missing.md"),  # MkDocs tells of it
    ],
)
def test_a_link_leads_to_a_page_or_to_the_repository(page: str, link: str, leads: str) -> None:
    there = [*site(), *pages.pictures(REPO)]
    assert pages.settled(page, f"See [it]({link}).", there, REPO, REPOSITORY) == f"See [it]({leads})."


def test_the_table_of_modules_leads_to_their_pages() -> None:
    text = pages.settled("docs/modules.md", (REPO / "docs/modules.md").read_text(), site(), REPO, REPOSITORY)
    assert "\n| [`artifact`](../plugins/modules/artifact.md) | " in text


# --- what GitHub shows -----------------------------------------------------------------------------------------------

NESTED = """Text:
- one
  goes on
  - two

    ```console
    $ ls
      -l
    ```
- three

10. ten
    - eleven
"""
SHOWN = """Text:

- one
    goes on
    - two

        ```console
        $ ls
          -l
        ```
- three

10. ten
    - eleven
"""


def test_lists_are_indented_for_the_sites_parser() -> None:
    assert dialect.translated(NESTED) == SHOWN


def test_bars_in_the_code_of_a_table_stand_for_themselves() -> None:
    text = "| a |\n|---|\n| `x \\| y` \\| z |\n\n`a \\| b`"
    assert dialect.translated(text) == "| a |\n|---|\n| `x | y` \\| z |\n\n`a \\| b`"


def test_what_the_site_shows_otherwise_than_github_is_counted() -> None:
    text = "- one\n- two\n\n```yaml\na: '`b`'\n```\n\n`c`"
    html = "<ul><li>one</li><li>two</li></ul><pre><span></span><code>a</code></pre><p><code>c</code></p>"
    assert dialect.differences(text, html) == []
    assert dialect.differences(f'{text}\n\n<img src="x.svg">', f'{html}<p><img src="x.svg"></p>') == []
    assert dialect.differences(text, html.replace("</li><li>", "")) == ["2 <li> on GitHub, 1 here"]


def test_cells_have_the_heads_of_their_columns() -> None:
    row = "<tr>\n<td>1</td>\n<td>2</td>\n<td>3</td>\n</tr>"
    heads = "<tr>\n<th>a</th>\n<th><code>b</code></th>\n<th>c</th>\n</tr>"
    shown = dialect.labelled(f"<table>{heads}{row}</table><table><tr><th>a</th></tr><tr><td>1</td></tr></table>")
    assert '<td data-head="a">1</td>\n<td data-head="b">2</td>\n<td data-head="c">3</td>' in shown
    assert shown.endswith("<tr><td>1</td></tr></table>")
    assert dialect.labelled('<img alt="x" src="y.svg" />') == '<a href="y.svg"><img alt="x" src="y.svg" /></a>'
    led = '<p><a href="z"><img src="y.svg"></a></p>'
    assert dialect.labelled(led) == led


# --- the built site --------------------------------------------------------------------------------------------------


def test_a_site_that_has_all_it_shows_is_let_be(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "style.css").write_text("a { background: url('data:image/png;base64,AA') }")
    (tmp_path / "a/index.html").write_text(
        '<link rel="canonical" href="https://example.org/a/"><link rel="stylesheet" href="../style.css">'
        '<a href="https://example.org/">elsewhere</a>'
    )
    (tmp_path / "404.html").write_text('<link rel="stylesheet" href="/postboot/style.css">')
    assert built.problems(tmp_path, "/postboot/") == []


def test_what_a_page_fetches_elsewhere_or_in_vain_is_named(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<script src="//cdn.example.org/x.js"></script><img src="images/no.svg">')
    (tmp_path / "style.css").write_text("@font-face { src: url(https://fonts.example.org/f.woff2) }")
    assert built.problems(tmp_path) == [
        "index.html fetches //cdn.example.org/x.js, which is not the site's",
        "index.html fetches images/no.svg, which is missing",
        "style.css fetches https://fonts.example.org/f.woff2, which is not the site's",
    ]
