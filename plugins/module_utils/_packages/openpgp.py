# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Public keys of OpenPGP: in and out of their armor, and the fingerprints of the keys in them (RFC 4880, RFC 9580).

Nothing is verified here but the identity of the keys: their use is up to apt and rpm, which read the same bytes. No gpg
program is needed, so none can ask for a terminal.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator

_BLOCK = re.compile(
    r"^-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\n((?:(?!-----(?:BEGIN|END) PGP PUBLIC ).*\n)*)"
    r"-----END PGP PUBLIC KEY BLOCK-----[ \t]*$",
    re.MULTILINE,
)
_PUBLIC_KEY = 6
_SECRET_KEYS = (5, 7)
# What may stand in a transferable public key: signatures, keys, trust, user ids, attributes, markers, padding.
_EXPECTED = (2, 6, 10, 12, 13, 14, 17, 21)


class BadKey(ValueError):
    """What is wrong with a key, on one line."""


def crc24(data: bytes) -> int:
    """Return the checksum of an armor."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _bit in range(8):
            crc <<= 1
            if crc & 0x1000000:
                crc ^= 0x1864CFB
    return crc & 0xFFFFFF


def armor(data: bytes) -> str:
    """Return binary keys in an armor, as rpm wants them."""
    text = base64.b64encode(data).decode()
    lines = [text[start : start + 64] for start in range(0, len(text), 64)]
    check = base64.b64encode(crc24(data).to_bytes(3, "big")).decode()
    return "\n".join(
        ["-----BEGIN PGP PUBLIC KEY BLOCK-----", "", *lines, f"={check}", "-----END PGP PUBLIC KEY BLOCK-----", ""]
    )


def dearmor(data: bytes) -> bytes:
    """Return the binary keys of a file, which may be armored, also in several blocks, or binary already."""
    if data[:1] and data[0] & 0x80:
        return data
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    blocks = [_dearmor_block(match[1]) for match in _BLOCK.finditer(text)]
    if not blocks:
        if "PGP PRIVATE KEY" in text:
            raise BadKey("it holds a private key, a public one was expected")
        start = " ".join(text.split())[:40]
        raise BadKey(f"it is no OpenPGP key: it begins with {start!r}")
    return b"".join(blocks)


def _dearmor_block(body: str) -> bytes:
    lines = [line.strip() for line in body.rstrip().split("\n")]
    # Headers such as "Version: …" end at the first empty line.
    lines = lines[lines.index("") + 1 if "" in lines else 0 :]
    check = next((line[1:] for line in lines if re.fullmatch(r"=[A-Za-z0-9+/]{4}", line)), None)
    packed = "".join(line for line in lines if not line.startswith("="))
    try:
        data = base64.b64decode(packed, validate=True)
        wanted = None if check is None else int.from_bytes(base64.b64decode(check, validate=True), "big")
    except ValueError as error:
        raise BadKey("its armor is damaged: it is not base64") from error
    if wanted is not None and crc24(data) != wanted:
        raise BadKey("its armor is damaged: the checksum differs")
    return data


def packets(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the packets of a binary key as tag and body."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise BadKey(f"it is no OpenPGP key: byte {at} begins no packet")
        try:
            if head & 0x40:
                tag, at, length = head & 0x3F, *_new_length(data, at + 1)
            else:
                tag, at, length = head >> 2 & 0x0F, *_old_length(data, at + 1, head & 3)
        except IndexError as error:
            raise BadKey("it is cut off within a packet") from error
        if at + length > len(data):
            raise BadKey("it is cut off within a packet")
        yield tag, data[at : at + length]
        at += length


def _new_length(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 192:
        return at + 1, first
    if first < 224:
        return at + 2, ((first - 192) << 8) + data[at + 1] + 192
    if first < 255:
        raise BadKey("it uses partial packets, which a key may not")
    data[at + 4]  # too short a header is an IndexError
    return at + 5, int.from_bytes(data[at + 1 : at + 5], "big")


def _old_length(data: bytes, at: int, kind: int) -> tuple[int, int]:
    if kind == 3:
        raise BadKey("it has a packet without a length, which a key may not")
    size = 1 << kind
    data[at + size - 1]
    return at + size, int.from_bytes(data[at : at + size], "big")


def fingerprint(body: bytes) -> str:
    """Return the fingerprint of a key packet's body, in upper case."""
    version = body[0] if body else 0
    if version == 4:
        # SHA-1 is what names a version 4 key; it protects nothing here that the format does not already rest on it.
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise BadKey(f"it is an OpenPGP key of version {version}, 4 or 6 was expected")


def fingerprints(data: bytes) -> list[str]:
    """Return the fingerprint of every primary key in a file, armored or binary."""
    found = []
    for tag, body in packets(dearmor(data)):
        if tag in _SECRET_KEYS:
            raise BadKey("it holds a secret key, public ones were expected")
        if tag not in _EXPECTED:
            raise BadKey(f"it is no OpenPGP public key: it has a packet of type {tag}")
        if tag == _PUBLIC_KEY:
            found.append(fingerprint(body))
        elif not found and tag not in (10, 21):
            raise BadKey(f"it is no OpenPGP public key: it begins with a packet of type {tag}")
    if not found:
        raise BadKey("it holds no OpenPGP key")
    return found


def normalized(text: str) -> str:
    """Return a fingerprint, as a person may write it, in upper case without blanks and colons."""
    bare = re.sub(r"[\s:]", "", str(text)).upper()
    bare = bare[2:] if bare.startswith("0X") else bare
    if not re.fullmatch(r"[0-9A-F]{40}|[0-9A-F]{64}", bare):
        raise BadKey(f"{text!r} is no full fingerprint: 40 hexadecimal digits were expected")
    return bare
