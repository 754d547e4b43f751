# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No secret that is planted in a text stays in it, and what a supporter needs does."""

from __future__ import annotations

import json
import time

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._diagnose.redact import MARK, Redactor

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


def test_long_words_and_long_lines_cost_no_time() -> None:
    """As in a log with an archive in base64, or a JSON of one line."""
    begin = time.process_time()
    for text in ("a" * 500_000, "token" * 50_000, 'x"' * 200_000, "key=" * 100_000, "https://" + "a:" * 100_000):
        Redactor().clean(text)
    assert time.process_time() - begin < 10
