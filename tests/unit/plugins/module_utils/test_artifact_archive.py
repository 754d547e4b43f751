# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Archives, good and evil."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import IO, Any

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import archive as archives
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import install as installer
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.files import scratch
from ansible_collections.pcluster.postboot.plugins.module_utils._artifact.model import Artifact, Member
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.tests.strangers import within

GOOD: list[dict[str, Any]] = [
    {"name": "pkg/", "type": tarfile.DIRTYPE, "mode": 0o755},
    {"name": "pkg/bin/tool", "content": b"tool", "mode": 0o4775},
    {"name": "./pkg/lib/lib.so.2", "content": b"library"},
    {"name": "pkg/lib/lib.so", "type": tarfile.SYMTYPE, "linkname": "lib.so.2"},
    {"name": "pkg/run", "type": tarfile.SYMTYPE, "linkname": "bin/tool"},
    {"name": "pkg/lib/up", "type": tarfile.SYMTYPE, "linkname": "../bin/tool"},
    {"name": "pkg/bin/twin", "type": tarfile.LNKTYPE, "linkname": "pkg/bin/tool"},
    {"name": "pkg/empty", "type": tarfile.DIRTYPE, "mode": 0o700},
]


def make_tar(*members: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            content = member.get("content", b"")
            info = tarfile.TarInfo(member["name"])
            info.size, info.mode = len(content), member.get("mode", 0o644)
            info.type, info.linkname = member.get("type", tarfile.REGTYPE), member.get("linkname", "")
            info.mtime = member.get("mtime", 1_600_000_000)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def make_zip(members: dict[str, bytes], mode: int = 0) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            archive.writestr(info, content)
            info.external_attr = mode << 16
    return buffer.getvalue()


def zstd(data: bytes) -> bytes:
    if not shutil.which("zstd"):
        pytest.skip("needs zstd")
    return subprocess.run(["zstd", "-q"], input=data, stdout=subprocess.PIPE, check=True).stdout


def on_disk(data: bytes) -> IO[bytes]:
    file = scratch(tempfile.gettempdir())
    file.write(data)
    file.flush()
    return file


def names(data: bytes, strip: int = 0) -> dict[str, str]:
    with archives.open_archive(on_disk(data), "/tmp", strip) as archive:
        return {entry.name: entry.kind for entry in archive.entries.values()}


def contents(data: bytes) -> list[bytes]:
    with archives.open_archive(on_disk(data), "/tmp", 0) as archive:
        return [archive.open(entry).read() for entry in archive.entries.values() if entry.kind == archives.FILE]


def refused(*members: dict[str, Any], strip: int = 0) -> str:
    """Return why a tar with something evil among good things is refused."""
    with pytest.raises(Problem, match="archive refused, nothing unpacked") as caught:
        names(make_tar(*GOOD, *members), strip)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_every_packing_is_known_by_its_content(pack: Any) -> None:
    found = names(pack(make_tar(*GOOD)))
    assert found["pkg/bin/tool"] == archives.FILE
    assert found["pkg/lib/lib.so.2"] == archives.FILE
    assert found["pkg/lib/lib.so"] == archives.SYMLINK
    assert found["pkg/bin/twin"] == archives.HARDLINK
    assert found["pkg/empty"] == archives.DIRECTORY


def test_a_zip_is_read_with_its_modes_and_links() -> None:
    data = make_zip({"pkg/bin/tool": b"x"}, stat.S_IFREG | 0o4777)
    with archives.open_archive(on_disk(data), "/tmp", 1) as archive:
        assert archive.entries["bin/tool"].mode == 0o755
        assert archive.open(archive.entries["bin/tool"]).read() == b"x"
    with archives.open_archive(on_disk(make_zip({"a": b"x", "d/": b""})), "/tmp", 0) as archive:
        assert archive.entries["a"].mode == 0o644
        assert archive.entries["d"].kind == archives.DIRECTORY
    assert names(make_zip({"link": b"target"}, stat.S_IFLNK | 0o777)) == {"link": archives.SYMLINK}


def test_zstd_that_is_missing_or_broken_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = zstd(make_tar(*GOOD))
    with pytest.raises(Problem, match="cannot be unpacked with zstd"):
        names(packed[:-20])
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(Problem, match="needs the program `zstd`: install it first"):
        names(packed)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense" * 1000,
        gzip.compress(b"nonsense" * 1000),
        gzip.compress(make_tar(*GOOD))[:-60],
        lzma.compress(make_tar(*GOOD))[:150],
        b"PK\x03\x04 and no more",
        make_tar({"name": "long", "content": b"x" * 5000})[:3000],
    ],
    ids=["empty", "nonsense", "packed nonsense", "cut gzip", "cut xz", "cut zip", "cut tar"],
)
def test_damage_is_one_line(data: bytes) -> None:
    with pytest.raises(Problem, match="cannot be read as an archive") as caught:
        contents(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "pkg/../../x", "pkg/..", "..", "//x"])
def test_names_that_lead_outside_are_refused(name: str) -> None:
    assert "leads outside" in refused({"name": name, "content": b"x"})
    with pytest.raises(Problem, match="leads outside"):
        names(make_zip({name: b"x"}))


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../x", "../..", "lib/../../../x", "lib/../x", "a/../..", "./../../x"]
)
def test_links_that_may_lead_outside_are_refused(target: str) -> None:
    assert "outside" in refused({"name": "pkg/link", "type": tarfile.SYMTYPE, "linkname": target})
    with pytest.raises(Problem, match="outside"):
        names(make_zip({"pkg/link": target.encode()}, stat.S_IFLNK | 0o777))


def test_a_link_that_leads_inside_only_before_stripping_is_refused() -> None:
    link = {"name": "pkg/link", "type": tarfile.SYMTYPE, "linkname": "../other/x"}
    assert names(make_tar(link)) == {"pkg/link": archives.SYMLINK}
    assert "leads outside" in refused(link, strip=1)


@pytest.mark.parametrize(
    ("evil", "why"),
    [
        ([{"name": "pkg/h", "type": tarfile.LNKTYPE, "linkname": "/etc/shadow"}], "leads outside"),
        ([{"name": "pkg/h", "type": tarfile.LNKTYPE, "linkname": "../shadow"}], "leads outside"),
        ([{"name": "pkg/h", "type": tarfile.LNKTYPE, "linkname": "pkg/none"}], "is no file of the archive"),
        ([{"name": "pkg/h", "type": tarfile.LNKTYPE, "linkname": "pkg/run"}], "is no file of the archive"),
        ([{"name": "pkg/h", "type": tarfile.LNKTYPE, "linkname": "pkg/h"}], "is no file of the archive"),
        ([{"name": "pkg/run/x", "content": b"x"}], "lies below 'pkg/run'"),
        ([{"name": "pkg/bin/tool/x", "content": b"x"}], "lies below 'pkg/bin/tool'"),
        ([{"name": "pkg/dev", "type": tarfile.CHRTYPE}], "is a device or a pipe"),
        ([{"name": "pkg/dev", "type": tarfile.BLKTYPE}], "is a device or a pipe"),
        ([{"name": "pkg/pipe", "type": tarfile.FIFOTYPE}], "is a device or a pipe"),
        (
            [{"name": "pkg/d", "type": tarfile.SYMTYPE, "linkname": "lib"}, {"name": "pkg/d/x", "content": b"x"}],
            "lies below 'pkg/d'",
        ),
    ],
)
def test_evil_is_refused(evil: list[dict[str, Any]], why: str) -> None:
    assert why in refused(*evil)


def header(name: str, kind: bytes, size: int = 0) -> bytes:
    """Return a header of 512 bytes, whose size may be one that Python's own writer refuses."""
    block = bytearray(tarfile.TarInfo(name).tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = b"%011o\0" % size if size >= 0 else (size & (1 << 96) - 1).to_bytes(12, "big")
    block[148:156], block[156:157] = b" " * 8, kind
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def pax(**values: str) -> bytes:
    """Return a header of the format pax (POSIX.1-2001) for the member that follows."""
    lines = b""
    for key, value in values.items():
        line = f" {key}={value}\n".encode()
        length = len(line) + 1
        while len(str(length)) + len(line) != length:
            length += 1
        lines += str(length).encode() + line
    return header("pax", tarfile.XHDTYPE, len(lines)) + lines.ljust(-(-len(lines) // 512) * 512, b"\0")


FILE = header("file", tarfile.REGTYPE)
BLANK = b"\0" * 1024
HUGE = 100 << 20
ZEROS = b"\0" * HUGE


@pytest.mark.parametrize(
    "evil",
    [
        pax(size="9" * 400) + FILE,
        pax(size="9" * 5000) + FILE + b"x" * 512,
        pax(size="-512") + FILE,
        pax(mtime="nan") + FILE,
        header("file", tarfile.REGTYPE, -512),
        pax(path="x" * 5000) + FILE,
        pax(path="x/" * 1500 + "x") + FILE,
        pax(linkpath="x" * 5000) + header("link", tarfile.SYMTYPE),
        header("pax", tarfile.XHDTYPE, HUGE) + ZEROS + FILE,
        header("longlink", tarfile.GNUTYPE_LONGNAME, HUGE) + ZEROS + FILE,
        (pax(comment="x")) * 2000 + FILE,
        pax(**{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}) + FILE,
    ],
    ids=[
        *("400 digits", "5000 digits", "backwards by pax", "no time", "backwards", "long name", "deep name"),
        *("long link", "huge pax header", "huge long name", "many pax headers", "sparse of nothing"),
    ],
)
def test_numbers_and_names_that_no_archive_has_are_one_line(tmp_path: Path, evil: bytes) -> None:
    """Python's tarfile itself ends with other errors, reads names of any size, or goes round and round (CVE-2025-8194).

    A file whose size cannot be read is one of no bytes, so that an archive may be unpacked.
    """
    for data in (evil + BLANK, make_tar(*GOOD)[:-10240] + evil + BLANK):
        packed, said = gzip.compress(data, 1), ""
        tracemalloc.start()
        try:
            within(30, lambda packed=packed: tree(tmp_path, packed))
        except Problem as error:
            said = str(error)
        assert "\n" not in said
        assert len(said) < 500
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
        tracemalloc.stop()
        shutil.rmtree(tmp_path / "tree", ignore_errors=True)
        assert list(tmp_path.iterdir()) == []


def test_the_name_of_a_zips_link_is_short() -> None:
    data = make_zip({"link": b"x" * 5000}, stat.S_IFLNK | 0o777)
    with pytest.raises(Problem, match="'link' is a link to a name of more than 4096 bytes"):
        names(data)


def test_a_zip_that_is_encrypted_or_holds_a_device_is_refused() -> None:
    with pytest.raises(Problem, match="is a device or a pipe"):
        names(make_zip({"x": b"x"}, stat.S_IFCHR | 0o644))
    data = bytearray(make_zip({"x": b"x"}))
    data[data.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(Problem, match="is encrypted"):
        names(bytes(data))


def test_strip_components_drops_leading_directories_of_names_and_hard_links() -> None:
    with archives.open_archive(on_disk(make_tar(*GOOD)), "/tmp", 1) as archive:
        assert set(archive.entries) == {
            "bin/tool", "lib/lib.so.2", "lib/lib.so", "run", "lib/up", "bin/twin", "empty",
        }  # fmt: skip
        assert archive.entries["bin/twin"].target == "bin/tool"
        assert archive.open(archive.entries["bin/twin"]).read() == b"tool"
    assert names(make_tar(*GOOD), 9) == {}


def pick(members: list[tuple[str, str]], strip: int = 0) -> dict[str, str]:
    with archives.open_archive(on_disk(make_tar(*GOOD)), "/tmp", strip) as archive:
        return {chosen.dest: chosen.entry.name for chosen in archive.select(tuple(Member(*one) for one in members))}


def test_members_are_chosen_by_path_or_glob() -> None:
    assert pick([("pkg/bin/tool", "/a")]) == {"/a": "pkg/bin/tool"}
    assert pick([("*/bin/tool", "/a")]) == {"/a": "pkg/bin/tool"}
    assert pick([("bin/tool", "/a")], strip=1) == {"/a": "pkg/bin/tool".partition("/")[2]}
    assert pick([("**/tool", "/a")]) == {"/a": "pkg/bin/tool"}
    assert pick([("pkg/**/lib.so*", "/d/")]) == {"/d/lib.so": "pkg/lib/lib.so", "/d/lib.so.2": "pkg/lib/lib.so.2"}
    assert pick([("*/bin/*", "/d/")]) == {"/d/tool": "pkg/bin/tool", "/d/twin": "pkg/bin/twin"}


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([("bin/tool", "/a")], "no file in the archive matches 'bin/tool'; it holds pkg/bin/tool, pkg/lib/lib.so.2"),
        ([("pkg/bin", "/a")], "no file in the archive matches 'pkg/bin'"),
        ([("*", "/a")], "no file in the archive matches"),
        ([("*/bin/*", "/a")], "2 files match '*/bin/*' (pkg/bin/tool, pkg/bin/twin): end dest with / for several"),
        ([("*/bin/tool", "/a"), ("*/bin/twin", "/a")], "2 members would become /a"),
    ],
)
def test_a_choice_that_means_nothing_is_one_line(members: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(Problem) as caught:
        pick(members)
    assert why in str(caught.value)


def test_a_link_is_installed_as_the_file_it_leads_to() -> None:
    loop = [
        {"name": "a", "type": tarfile.SYMTYPE, "linkname": "b"},
        {"name": "b", "type": tarfile.SYMTYPE, "linkname": "a"},
        {"name": "dangling", "type": tarfile.SYMTYPE, "linkname": "nowhere"},
        {"name": "to-directory", "type": tarfile.SYMTYPE, "linkname": "pkg/empty"},
    ]
    with archives.open_archive(on_disk(make_tar(*GOOD, *loop)), "/tmp", 0) as archive:
        for name, content in (("pkg/lib/lib.so", b"library"), ("pkg/lib/up", b"tool"), ("pkg/run", b"tool")):
            assert archive.open(archive.entries[name]).read() == content
        for name in ("a", "b", "dangling", "to-directory"):
            with pytest.raises(Problem, match="leads to no file of the archive"):
                archive.open(archive.entries[name])


def tree(tmp_path: Path, data: bytes, strip: int = 0) -> Path:
    dest = tmp_path / "tree"
    artifact = Artifact("x", "http://x/x", "0" * 64, str(dest), unpack=True)
    with archives.open_archive(on_disk(data), str(tmp_path), strip) as archive:
        installer.install_tree(artifact, archive, os.geteuid(), os.getegid())
    return dest


def test_a_tree_has_files_links_and_directories_but_no_dangerous_bits(tmp_path: Path) -> None:
    dest = tree(tmp_path, make_tar(*GOOD), 1)
    assert (dest / "bin/tool").read_bytes() == b"tool"
    assert stat.S_IMODE((dest / "bin/tool").stat().st_mode) == 0o755
    assert os.path.samefile(dest / "bin/tool", dest / "bin/twin")
    assert os.readlink(dest / "lib/lib.so") == "lib.so.2"
    assert (dest / "lib/up").read_bytes() == b"tool"
    assert stat.S_IMODE((dest / "empty").stat().st_mode) == 0o700
    assert stat.S_IMODE(dest.stat().st_mode) == 0o755
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_the_last_of_two_entries_with_one_name_counts(tmp_path: Path) -> None:
    data = make_tar(
        {"name": "x", "type": tarfile.SYMTYPE, "linkname": "y"},
        {"name": "x", "content": b"file"},
        {"name": "mark/.pcluster-postboot.json", "content": b"{}"},
        {"name": ".pcluster-postboot.json", "content": b"{}"},
        {"name": "late", "content": b"", "mtime": 2**40},
    )
    dest = tree(tmp_path, data)
    assert (dest / "x").read_bytes() == b"file"
    assert not (dest / "x").is_symlink()
    assert (dest / ".pcluster-postboot.json").stat().st_size > 100  # ours, not the archive's


def test_a_tree_that_fails_in_the_middle_leaves_nothing(tmp_path: Path) -> None:
    data = make_tar(*GOOD, {"name": "long", "content": b"x" * 50_000})
    cut = data[: data.index(b"x" * 1000) + 30_000]
    with pytest.raises(Problem, match="cannot be read as an archive"):
        tree(tmp_path, cut)
    assert list(tmp_path.iterdir()) == []
