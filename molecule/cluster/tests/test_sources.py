# Copyright (c) 2026 The pcluster.postboot contributors
# GNU General Public License v3.0 or later (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""SANDBOX_SOURCES=internet: the mirror's nginx passes a site on, and has everything else itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .bundles import SCENARIO, STATE

sys.path.insert(0, str(SCENARIO / "mirror"))
import internet

# Upstream is a server on loopback, with a certificate that the image trusts or not; the container has no network.
SCRIPT = """
mkdir -p /upstream/linux /srv/mirror/own && echo "a key" > /upstream/linux/gpg && echo own > /srv/mirror/own/file
cp /sites.conf /srv/mirror/
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=download.docker.com \\
  -addext subjectAltName=DNS:download.docker.com -keyout /tmp/key -out /tmp/certificate 2> /dev/null
if [ "$1" = trusted ]; then cat /tmp/certificate >> /etc/ssl/certs/ca-certificates.crt; fi
python3 -c '
import functools, http.server, ssl
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("/tmp/certificate", "/tmp/key")
server = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 443), functools.partial(http.server.SimpleHTTPRequestHandler, directory="/upstream"))
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()' 2> /dev/null &
echo 127.0.0.1 download.docker.com >> /etc/hosts
until curl -sk https://download.docker.com/ > /dev/null; do sleep 0.05; done
nginx > /dev/null 2>&1
for path in download.docker.com/linux/gpg download.docker.com/linux/none own/file; do
  code=$(curl -s -o /tmp/answer -w '%{http_code}' http://127.0.0.1/$path)
  echo "$code $(head -n 1 /tmp/answer | grep -v '<')"
done
"""


@pytest.mark.parametrize(
    ("certificate", "answers"),
    [("trusted", ["200 a key", "404 ", "200 own"]), ("unknown", ["502 ", "502 ", "200 own"])],
)
def test_a_site_is_passed_on_by_tls_that_is_verified(tmp_path: Path, certificate: str, answers: list[str]) -> None:
    (tmp_path / "sites.conf").write_text(internet.passed_on("download.docker.com"))
    (base,) = (line[len("base=") :] for line in (STATE / "images").read_text().splitlines() if line.startswith("base="))
    files = {SCENARIO / "mirror/nginx.conf": "/etc/nginx/nginx.conf", tmp_path / "sites.conf": "/sites.conf"}
    volumes = [f"--volume={source}:{at}:ro" for source, at in files.items()]
    line = ["podman", "run", "--rm", "--network=none", *volumes, base, "bash", "-c", SCRIPT, "bash", certificate]
    done = subprocess.run(
        line,
        env={**os.environ, "CONTAINERS_CONF": str(STATE / "containers.conf")},
        text=True,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == answers, done.stderr
