# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""dpkg's and rpm's records."""

from __future__ import annotations

from ansible_collections.pcluster.postboot.plugins.module_utils._packages import records


def test_dpkg() -> None:
    status = (
        b"Package: a\nStatus: install ok installed\nVersion: 2:1.2-3-4ubuntu1\n\n"
        b"Package: b\nStatus: deinstall ok config-files\nVersion: 1\n\n"
        b"Package: c\nStatus: install ok half-configured\nVersion: 1\n\n"
        b"Package: d\nStatus: deinstall ok config-files\nArchitecture: i386\nVersion: 2.9\n\n"
        b"Package: d\nStatus: install ok installed\nArchitecture: arm64\n\n"
        b"Package: d\nStatus: hold ok installed\nVersion: 2.23.4-1+cuda12.4\n\n"
        b"Package: e\nStatus: install ok installed\nVersion: 7"
    )
    found = records.dpkg_packages([status], {"a", "b", "c", "d", "e", "f"})
    assert found == ({"a": "1.2-3", "d": "2.23.4", "e": "7"}, ["c"])
    unfiled = b"Package: a\nStatus: install ok unpacked\nVersion: 2:1.3-1\n"
    assert records.dpkg_packages([status, unfiled], {"a", "e"}) == ({"e": "7"}, ["a"])
    for state in (b"half-installed", b"triggers-awaited", b"triggers-pending"):
        assert records.dpkg_packages([b"Package: a\nStatus: install ok " + state], {"a"}) == ({}, ["a"]), state


def test_rpm() -> None:
    answer = "package a is not installed\nb\t1.2\nc\t3\n"
    assert records.rpm_packages(answer, ["a", "b"]) == ({"b": "1.2"}, [])


def test_versions_match_by_whole_numbers() -> None:
    assert records.matches("29.7.2", "29")
    assert records.matches("20.10.24+dfsg1", "20.10.24")
    assert not records.matches("29.10.0", "29.1")
    assert not records.matches("2.9", "29")
