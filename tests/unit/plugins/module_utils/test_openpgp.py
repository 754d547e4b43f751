# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

import contextlib
import random

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._packages import openpgp

ONE = "8D3DC2447DED5A132723BA63BB3F9F431B4E8440"
TWO = "64D611E2705588227B721D46D66C153AC43AE1D0"


@pytest.fixture
def keys(repo):
    folder = repo / "tests/unit/fixtures/keys"
    return {name: (folder / f"{name}.asc").read_bytes() for name in ("one", "two")}


def test_fingerprints_as_gpg_names_them(keys):
    # "two" is RSA with a subkey, whose fingerprint is not a primary key's.
    assert openpgp.fingerprints(keys["one"]) == [ONE]
    assert openpgp.fingerprints(keys["two"]) == [TWO]


def test_binary_several_keys_and_several_blocks(keys):
    binary = openpgp.dearmor(keys["one"]) + openpgp.dearmor(keys["two"])
    assert openpgp.fingerprints(binary) == [ONE, TWO]
    assert openpgp.fingerprints(keys["two"] + b"\n" + keys["one"]) == [TWO, ONE]
    assert openpgp.dearmor(binary) == binary


def test_armor_there_and_back(keys):
    binary = openpgp.dearmor(keys["two"])
    text = openpgp.armor(binary)
    assert max(map(len, text.splitlines())) == 64
    assert openpgp.dearmor(text.encode()) == binary
    # gpg's own armor, but for the text around it
    assert [line for line in text.splitlines() if line] == [line for line in keys["two"].decode().splitlines() if line]


def test_armor_as_people_publish_it(keys):
    text = keys["one"].decode()
    published = (
        "Our key:\n\n" + text.replace("BLOCK-----\n", "BLOCK-----\nVersion: 1\nComment: ours\n", 1) + "\nThe end\n"
    )
    assert openpgp.fingerprints(published.encode()) == [ONE]
    assert openpgp.fingerprints(text.replace("\n", "\r\n").encode()) == [ONE]
    without_check = "\n".join(line for line in text.splitlines() if not line.startswith("="))
    assert openpgp.fingerprints(without_check.encode()) == [ONE]


def _length(kind, size):
    if kind == "old":
        return bytes([0x80 | 6 << 2 | 1]) + size.to_bytes(2, "big")
    if kind == "old4":
        return bytes([0x80 | 6 << 2 | 2]) + size.to_bytes(4, "big")
    if kind == "new5":
        return bytes([0xC0 | 6, 255]) + size.to_bytes(4, "big")
    return bytes([0xC0 | 6, ((size - 192) >> 8) + 192, (size - 192) & 255])


@pytest.mark.parametrize("kind", ["old", "old4", "new2", "new5"])
def test_every_form_of_a_packet_s_length(keys, kind):
    (tag, body), *_rest = openpgp.packets(openpgp.dearmor(keys["two"]))
    assert tag == 6
    assert len(body) > 192
    assert openpgp.fingerprints(_length(kind, len(body)) + body) == [TWO]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "it is no OpenPGP key: it begins with ''"),
        (b"<html>not found</html>", "it begins with '<html>not found</html>'"),
        (b"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nAAAA\n-----END PGP PRIVATE KEY BLOCK-----\n", "a private key"),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n!!!!\n-----END PGP PUBLIC KEY BLOCK-----\n", "it is not base64"),
        (b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n-----END PGP PUBLIC KEY BLOCK-----\n", "holds no OpenPGP key"),
        (b"\x99\x01\x00short", "cut off within a packet"),
        (b"\x99", "cut off within a packet"),
        (b"\xc6\xff\x00", "cut off within a packet"),
        (b"\xc6\xe5abc", "partial packets"),
        (b"\x9babc", "a packet without a length"),
        (b"\x99\x00\x06\x03abcde", "version 3, 4 or 6 was expected"),
        (b"\x94\x00", "a secret key"),
        (b"\xb4\x01a", "it begins with a packet of type 13"),
        (b"\xcb\x01a", "a packet of type 11"),
        (b"\xc6\x01\x04trailing", "begins no packet"),
    ],
)
def test_what_is_no_key_is_refused_on_one_line(data, message):
    with pytest.raises(openpgp.BadKey, match=message) as caught:
        openpgp.fingerprints(data)
    assert "\n" not in str(caught.value)


def test_a_damaged_armor_is_noticed(keys):
    lines = keys["one"].decode().splitlines()
    lines[3] = lines[3].swapcase()
    with pytest.raises(openpgp.BadKey, match="the checksum differs"):
        openpgp.fingerprints("\n".join(lines).encode())


def test_version_6_is_named_by_sha256():
    body = b"\x06" + bytes(40)
    assert len(openpgp.fingerprints(bytes([0xC6, len(body)]) + body)[0]) == 64


def test_no_damage_ends_in_anything_but_a_refusal(keys):
    chance = random.Random(7)
    for data in (*keys.values(), *map(openpgp.dearmor, keys.values())):
        for _ in range(400):
            broken = bytearray(data[: chance.randrange(len(data) + 1)])
            for _ in range(chance.randrange(4)):
                if broken:
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
            with contextlib.suppress(openpgp.BadKey):
                openpgp.fingerprints(bytes(broken))


@pytest.mark.parametrize("text", [ONE, ONE.lower(), f"0x{ONE}", " ".join([ONE[:20], ONE[20:]]), ":".join(ONE)])
def test_fingerprints_as_people_write_them(text):
    assert openpgp.normalized(text) == ONE


@pytest.mark.parametrize("text", ["", "BB3F9F431B4E8440", "x" * 40, ONE + "00"])
def test_what_is_no_full_fingerprint(text):
    with pytest.raises(openpgp.BadKey, match="no full fingerprint"):
        openpgp.normalized(text)
