# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No secret that is planted in a text stays in it, and what a supporter needs does."""

from __future__ import annotations

import json

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import MARK, Redactor
from ansible_collections.pcluster.postboot.tests import patterns

SECRET = "Hunter2-correcthorse"
# In pieces, so that nothing that looks for secrets in a repository finds one here.
KEY_ID, TOKEN = "AKIA" + "IOSFODNN7EXAMPLE", "IQoJb3JpZ2lu" + "X2VjEJr9aBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789"
PEM = (
    "-----BEGIN RSA PRIVATE "
    + "KEY-----\nMIIEpAIBAAKCAQEA1234567890abcdef\nabcdefghijklmnopqrstuvwxyz==\n-----END RSA PRIVATE "
    + "KEY-----"
)

PLANTED = [
    f"grafana_admin_password: {SECRET}",
    f"grafana_admin_password: '{SECRET}'  # ours",
    f'grafana_admin_password: "{SECRET}"',
    f'{{"password": "{SECRET}", "user": "ubuntu"}}',
    json.dumps({"outer": json.dumps({"secret": SECRET})}),
    json.dumps({"password": f'with a " quote {SECRET}'}),
    f"StoragePass={SECRET}",
    f"+ export NGC_API_KEY={SECRET}",
    f"WANDB_API_KEY='{SECRET}' python train.py",
    f"docker login --password {SECRET} nvcr.io",
    f"run --token={SECRET} --verbose",
    f"aws_secret_access_key = {SECRET}",
    f"password: {SECRET}, and more, {SECRET}",
    f"password: {SECRET},{SECRET}",
    f'password: "{SECRET}',  # cut off
    f"dashboards_token: |\n  {SECRET}\n  more\nnext: 1",
    f"env:\n  - name: HF_TOKEN\n    value: {SECRET}\n",
    f"https://bot:{SECRET}@git.example.com/x.git",
    f"Authorization: Basic {SECRET}",
    f'curl -H "Authorization: Bearer {SECRET}" https://x',
    f"GET /x?X-Amz-Algorithm=AWS4&X-Amz-Signature={SECRET}&X-Amz-Date=1",
    f"s3 url https://b.s3.amazonaws.com/k?AWSAccessKeyId=x&Signature={SECRET}&Expires=1",
    f"https%3A%2F%2Fb%2Fk%3FX-Amz-Signature%3D{SECRET}",
]


@pytest.mark.parametrize("text", PLANTED)
def test_a_planted_secret_goes(text: str) -> None:
    redactor = Redactor()
    once, counts = redactor.clean(text)
    cleaned, _more = redactor.known(once)
    assert SECRET not in cleaned
    assert MARK in cleaned
    assert sum(counts.values()) >= 1


@pytest.mark.parametrize(
    "secret",
    [
        KEY_ID,
        TOKEN,
        "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0In0abc." + "dozjgNryP4J3jVmNHl0w5N",
        "hf_" + "abcdefghijklmnopqrstuvwxyzABCDEF",
        "nvapi-" + "abcdefghijklmnopqrstuvwxyz",
        "ghp_" + "a" * 36,
        "$6$" + "saltsalt$" + "h" * 40,
    ],
)
def test_a_secret_is_known_by_its_form(secret: str) -> None:
    cleaned, _counts = Redactor().clean(f"a line with {secret} in it")
    assert cleaned == f"a line with {MARK} in it"


def test_private_keys_go_also_where_a_file_was_cut() -> None:
    for text in (PEM, PEM.partition("\n")[2], PEM.rpartition("\n")[0]):
        cleaned, counts = Redactor().clean(f"before\n{text}\nafter\n")
        assert "MIIEpA" not in cleaned
        assert "abcdefghijklmnop" not in cleaned
        assert cleaned.startswith("before\n")
        assert sum(counts.values()) == 1


def test_the_beginning_of_a_key_hides_no_more_than_a_key() -> None:
    """As of srun -p '-----BEGIN PRIVATE KEY-----', which slurmctld writes into its log."""
    begin = "-----BEGIN PRIVATE " + "KEY-----"
    rejected = f"[2026-11-23T11:00:00.000] invalid partition specified: {begin}\n"
    fatal = "[2026-11-23T11:00:01.000] fatal: no such node\n"
    assert Redactor().clean(rejected + fatal)[0] == f"{rejected.strip()}{MARK}\n{fatal}"
    far = rejected + fatal * 1000 + "-----END PRIVATE " + "KEY-----\n"
    assert Redactor().clean(far)[0].count(fatal) == 1000
    # Each line of a key may have a beginning of the log's own.
    logged = "".join(f"11:00 job: {line}\n" for line in PEM.splitlines()[:-1]) + fatal
    assert Redactor().clean(logged)[0] == f"11:00 job: {PEM.splitlines()[0]}{MARK}\n{fatal}"


def test_a_value_that_stood_beside_a_name_goes_from_every_text() -> None:
    redactor = Redactor()
    redactor.clean(f"password: {SECRET}")
    assert redactor.known(f"login of admin with {SECRET} failed, {SECRET}") == (
        f"login of admin with {MARK} failed, {MARK}",
        2,
    )
    # A short value, a word or a path may stand anywhere.
    redactor = Redactor()
    redactor.clean("password: abc\npasswd: disabled\npassword: /etc/grafana/secret-place\ntoken: default\n")
    assert redactor.values == set()


KEPT = [
    "grafana_admin_password_file: /etc/grafana/admin",
    "grafana_admin_password_secret_arn: arn:aws:secretsmanager:us-east-2:123456789012:secret:grafana",
    "password: arn:aws:secretsmanager:us-east-2:123456789012:secret:grafana",
    "HttpTokens: required",
    '{"token": null, "password": "", "next": 1}',
    "2026-11-23T01:00:00Z pull: failed: enroot failed: no source delivered sha256 0000 (pinned by enroot_deb_sha256)",
    "s3://my-bucket/postboot/0.1.0-3f9e2c51ab07/pcluster-postboot.tar.gz is not what --sha256 says",
    "2026-11-23 01:00:00,123 - [slurm_plugin.clustermgtd:_handle] - WARNING - Found (x1) ['cpu-st-c5-1(10.0.0.5)']",
    "NVRM: Xid (PCI:0000:53:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "spank: required /usr/local/lib/slurm/spank_pyxis.so runtime_path=/run/pyxis",
    "2026-11-23 02:00:15,378 - 8304 - [botocore.credentials:load] - INFO - Found credentials in environment variables.",
    "Failed password for invalid user admin from 10.0.0.1 port 22 ssh2",
]


@pytest.mark.parametrize("text", KEPT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Redactor().clean(text) == (text, {})


def test_a_cleaned_text_stays_as_it_is() -> None:
    redactor = Redactor()
    once = redactor.clean("\n".join(PLANTED))[0]
    assert redactor.clean(once)[0] == once


HOSTILE = {
    # srun -p 'password="\\\…', rejected: slurmctld writes the name into its log and the journal.
    "a value that is never closed": lambda size: 'password="' + "\\" * size,
    "values that are never closed": lambda size: "token='x, token=\"x, " * (size // 20),
    "quotes of JSON within JSON": lambda size: "".join(
        f"token={chr(92) * (count % 70)}\"x, '" for count in range(size // 30)
    ),
    "lines of a key without an end": lambda size: ("A" * 64 + "\n") * (size // 65),
    "lines of a key with ends": lambda size: ("A" * 64 + "\n-----END PRIVATE KEY-----") * (size // 90),
    "beginnings of keys": lambda size: "-----BEGIN PRIVATE KEY-----\n" * (size // 28),
    "blocks": lambda size: "token: |\n" * (size // 9),
    "an empty block": lambda size: "token: |\n" + " \n" * (size // 2),
    "a block of blanks": lambda size: "token: |\n" + "\t" * size,
    "headers": lambda size: "Authorization: Bearer " * (size // 22),
    "a header and blanks": lambda size: "Authorization" + " \n" * (size // 2) + "x",
    "a variable and blanks": lambda size: 'name: "token"' + " " * size,
    "tokens": lambda size: "-eyJabcdefghijklm" * (size // 17),
    "options": lambda size: "--token " * (size // 8),
    "an archive": lambda size: "a" * size,
    "names": lambda size: "token" * (size // 5),
    "names with signs": lambda size: "key=" * (size // 4),
    "a JSON of one line": lambda size: 'x"' * (size // 2),
    "addresses": lambda size: "https://" + "a:" * (size // 2),
    "secrets": lambda size: "".join(f"token=Aa{count:06}\n" for count in range(size // 15)),
    "secrets that begin alike": lambda size: "".join(
        f"token=AAAAAAAA{chr(65) * (count % 300)}{count}\n" for count in range(size // 170)
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_time_grows_as_the_text_does(kind: str) -> None:
    def work(text: str) -> None:
        redactor = Redactor()
        redactor.known(redactor.clean(text)[0])

    # Eight times the text takes eight times as long, and quadratic work 64 times.
    small, large = (min(patterns.seconds(work, HOSTILE[kind](size), 3) for _ in (1, 2)) for size in (20_000, 160_000))
    assert large < max(20 * small, 0.05)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        # A path of Windows, whose last backslash is none that escapes.
        (rf'password="C:\{SECRET}, x\"', rf'password="{MARK}"'),
        (rf'password="a\"{SECRET}" user', rf'password="{MARK}" user'),
        ("token: |\n  one\n  " + SECRET, f"token: |\n  {MARK}\n"),
        (f"  token: >-\n    {SECRET}\n\n  next: 1\n", f"  token: >-\n    {MARK}\n  next: 1\n"),
        ("x-eyJabcdefghijkl.abcdefghijkl.abc y", f"x-{MARK} y"),
    ],
)
def test_values_end_where_they_did_before(text: str, cleaned: str) -> None:
    assert Redactor().clean(text)[0] == cleaned


def test_many_values_are_found_as_few_are() -> None:
    values = [f"Secret-{count:04}-of-{count * 7:06}" for count in range(5000)]
    text = "".join(f"{value} and {value[:-1]}x;" for value in values[::50])
    for known in (values[::50], values):
        assert Redactor(known).known(text) == ("".join(f"{MARK} and {v[:-1]}x;" for v in values[::50]), 100)
    # The longer of two, and one within a word.
    assert Redactor(["Hunter2-a", "Hunter2-abc"]).known("xHunter2-abcd") == (f"x{MARK}d", 1)
    alike = [f"Hunter2-{count}" for count in range(100)]
    assert Redactor(alike).known("a Hunter2-55 b Hunter-2\n") == (f"a {MARK} b Hunter-2\n", 1)
    # Of a long value the beginning is compared, and the line goes to its end.
    assert Redactor(["Aa1" * 100]).known(f"a {'Aa1' * 100} b\nc") == (f"a {MARK}\nc", 1)
