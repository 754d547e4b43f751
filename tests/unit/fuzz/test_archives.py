# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Archives from elsewhere are unpacked or refused with one line, however their bytes are damaged."""

from __future__ import annotations

import contextlib
import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.pcluster.postboot.plugins.module_utils._artifact import archive as archives
from ansible_collections.pcluster.postboot.plugins.module_utils._bundle.archive import Member, write
from ansible_collections.pcluster.postboot.plugins.module_utils._host.problem import Problem
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose import archive as diagnose
from ansible_collections.pcluster.postboot.plugins.plugin_utils._diagnose.model import Node

# What a header of a tar may hold in the place of a number or of a name.
FIELDS = (
    b"",
    b" ",
    b"\0",
    b"-1",
    b"7777777",
    b"\x80\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xb2",
    b"../a",
    b"/a",
    b"30 ",
    b"x",
)
PAX = {"size": ["1" * 400, "-1", "x", "1e999"], "mtime": ["nan", "1e999", "1" * 400], "path": ["../a", "a\0b"]}


def tar(kind: int = tarfile.PAX_FORMAT, pax: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=kind) as archive:
        for name, content, link in (
            ("pkg/bin/tool", b"tool", ""),
            ("pkg/lib", b"", "bin/tool"),
            ("p" * 120, b"long", ""),
        ):
            info = tarfile.TarInfo(name)
            info.size, info.linkname, info.pax_headers = len(content), link, pax or {}
            info.type = tarfile.SYMTYPE if link else tarfile.REGTYPE
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def packed(name: str = "pkg/bin/tool") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name), b"tool" * 20, zipfile.ZIP_DEFLATED)
        link = zipfile.ZipInfo("pkg/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "bin/tool")
    return buffer.getvalue()


SAMPLES = {
    "tar": tar(),
    "GNU tar": tar(tarfile.GNU_FORMAT),
    "tar.gz": gzip.compress(tar(), mtime=0),
    "zip": packed(),
}


def read(content: bytes, folder: Path) -> None:
    # A damaged checksum is an OSError, of which _host/module.py makes one line.
    with contextlib.suppress(Problem, OSError), archives.open_archive(io.BytesIO(content), str(folder), 0) as archive:
        for entry in archive.entries.values():
            if entry.kind == archives.FILE:
                with archive.open(entry) as stream:
                    stream.read(1 << 16)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Return an archive with bytes of its headers replaced, and perhaps without its end."""
    content = bytearray(whole)
    for _number in range(draw(st.integers(1, 3))):
        field = draw(st.sampled_from(FIELDS) | st.binary(min_size=1, max_size=8))
        at = draw(st.integers(0, len(content) - 1))
        content[at : at + len(field)] = field
    return bytes(content[: draw(st.just(len(content)) | st.integers(0, len(content)))])


@pytest.mark.parametrize("kind", SAMPLES)
@given(data=st.data())
def test_any_archive_is_read_or_refused(kind: str, tmp_path: Path, data: st.DataObject) -> None:
    read(data.draw(damaged(SAMPLES[kind])), tmp_path)


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in PAX.items() for value in values])
def test_any_pax_header_is_read_or_refused(key: str, value: str, tmp_path: Path) -> None:
    read(tar(pax={key: value}), tmp_path)


@given(data=st.data())
def test_a_nodes_part_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "part.tar.gz"
    path.write_bytes(data.draw(damaged(SAMPLES["tar.gz"]) | damaged(SAMPLES["tar"]).map(gzip.compress)))
    with contextlib.suppress(Problem):
        diagnose.read(Node("n", file=str(path)))


@given(
    st.dictionaries(
        st.from_regex(r"[a-z²]([\w .-]{0,150}/)?[a-z]{1,9}", fullmatch=True), st.binary(max_size=200), max_size=4
    )
)
def test_what_a_bundle_holds_is_read_back(files: dict[str, bytes]) -> None:
    """And the same files make the same bytes."""
    first, second = io.BytesIO(), io.BytesIO()
    for sink in (first, second):
        write({name: Member(content) for name, content in files.items()}, sink)  # type: ignore[arg-type]
    assert first.getvalue() == second.getvalue()
    with tarfile.open(fileobj=io.BytesIO(first.getvalue()), mode="r:gz") as archive:
        found = {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]
    assert found == files
