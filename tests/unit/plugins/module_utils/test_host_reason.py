# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which line states the reason, on what real programs have printed.

Not captured from a program, but written after its known messages: apt's unmet dependency, dpkg's script failure, gpgv,
systemctl, the Python traceback, and amazon-cloudwatch-agent-ctl.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.pcluster.postboot.plugins.module_utils._host.reason import reason
from ansible_collections.pcluster.postboot.plugins.module_utils._verify import cluster

# Program and version, its output, and the line that states the reason.
PRINTED = {
    "mksquashfs 4.4 of RHEL 9 in enroot import (enroot#276)": (
        """\
[INFO] Querying registry for permission grant
[INFO] Authenticating with user: <anonymous>
[INFO] Found all layers in cache
[INFO] Extracting image layers...
[INFO] Converting whiteouts...
[INFO] Creating squashfs filesystem...

enroot-mksquashovlfs: Compressor "lzo" is not supported!
enroot-mksquashovlfs: Compressors available:
\tgzip (default)
\txz
\tzstd
\tlzma
""",
        'enroot-mksquashovlfs: Compressor "lzo" is not supported!',
    ),
    "mksquashfs 4.5.1, an unknown option": (
        """\
mksquashfs: invalid option

SYNTAX:mksquashfs source1 source2 ...  FILESYSTEM [OPTIONS] [-e list of
exclude dirs/files]

Filesystem build options:
-comp <comp>\t\tselect <comp> compression
-version\t\tprint version, licence and copyright message
""",
        "mksquashfs: invalid option",
    ),
    "GNU parallel 20221122 and zstd 1.5.4": (
        "zstd: /tmp/z1: unsupported format \nparallel: This job failed:\nzstd -d -c /tmp/z1 > /dev/null\n",
        "zstd: /tmp/z1: unsupported format",
    ),
    "tar 1.34, no archive": (
        "tar: This does not look like a tar archive\ntar: Exiting with failure status due to previous errors\n",
        "tar: This does not look like a tar archive",
    ),
    "tar 1.34, no file": (
        "tar: nosuch.tar: Cannot open: No such file or directory\ntar: Error is not recoverable: exiting now\n",
        "tar: nosuch.tar: Cannot open: No such file or directory",
    ),
    "gzip 1.12": ("\ngzip: stdin: unexpected end of file\n", "gzip: stdin: unexpected end of file"),
    "apt-get 2.6.1, an unknown package": (
        "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"
        "E: Unable to locate package no-such-package-here\n",
        "E: Unable to locate package no-such-package-here",
    ),
    "apt-get 2.6.1, only a warning": (
        "W: Unable to read /tmp/nosrc - RealFileExists (2: No such file or directory)\n",
        "W: Unable to read /tmp/nosrc - RealFileExists (2: No such file or directory)",
    ),
    "apt-get 2.4, a dependency": (
        """\
Reading package lists...
Some packages could not be installed. This may mean that you have
requested an impossible situation or if you are using the unstable
distribution that some required packages have not yet been created
or been moved out of Incoming.
The following information may help to resolve the situation:

The following packages have unmet dependencies:
 docker-ce : Depends: containerd.io (>= 1.7.27) but it is not installable
E: Unable to correct problems, you have held broken packages.
""",
        "docker-ce : Depends: containerd.io (>= 1.7.27) but it is not installable",
    ),
    "dpkg, a script of a package": (
        """\
Selecting previously unselected package demo.
Preparing to unpack .../demo.deb ...
Setting up demo (1.0) ...
dpkg: error processing package demo (--configure):
 installed demo package post-installation script subprocess returned error exit status 1
Errors were encountered while processing:
 demo
E: Sub-process /usr/bin/dpkg returned an error code (1)
""",
        "dpkg: error processing package demo (--configure): installed demo package post-installation script subprocess "
        "returned error exit status 1",
    ),
    "dnf 4.14, an unknown package": (
        "Error: Unable to find a match: no-such-package-x\n",
        "Error: Unable to find a match: no-such-package-x",
    ),
    "dnf 4.14, a repository that does not answer": (
        """\
Added bad repo from http://127.0.0.1:9/x
bad                                             0.0  B/s |   0  B     00:00 \x20
Errors during downloading metadata for repository 'bad':
  - Curl error (7): Couldn't connect to server for http://127.0.0.1:9/x/repodata/repomd.xml [Failed to connect]
Error: Failed to download metadata for repo 'bad': Cannot download repomd.xml: All mirrors were tried
""",
        "Curl error (7): Couldn't connect to server for http://127.0.0.1:9/x/repodata/repomd.xml [Failed to connect]",
    ),
    "dnf 4.14, a dependency (llm-d#1648)": (
        """\
Error:\x20
 Problem: cannot install the best update candidate for package librdmacm-57.0-1.el9.x86_64
  - package librdmacm-60.0-1.amzn2023.x86_64 requires libibverbs = 60, but none of the providers can be installed
(try to add '--skip-broken' to skip uninstallable packages)
""",
        "package librdmacm-60.0-1.amzn2023.x86_64 requires libibverbs = 60, but none of the providers can be installed",
    ),
    "dockerd 28.5": (
        "unable to configure the Docker daemon with file /tmp/dj.json: invalid JSON: json: cannot unmarshal number\n",
        "unable to configure the Docker daemon with file /tmp/dj.json: invalid JSON: json: cannot unmarshal number",
    ),
    "nvidia-ctk 1.19.1, an unknown flag": (
        "Incorrect Usage: flag provided but not defined: -bogus\n\n"
        'time="2026-11-27T20:36:07Z" level=error msg="flag provided but not defined: -bogus"\n',
        'time="2026-11-27T20:36:07Z" level=error msg="flag provided but not defined: -bogus"',
    ),
    "nvidia-ctk 1.19.1, a panic": (
        """\
time="2026-11-27T20:36:07Z" level=info msg="Loading config from /tmp/dirs/o/dj.json"
panic: interface conversion: interface {} is []interface {}, not map[string]interface {}

goroutine 1 [running]:
github.com/NVIDIA/nvidia-container-toolkit/pkg/config/engine/docker.(*Config).AddRuntime(0x3131dab825a8, 0x0)
""",
        "panic: interface conversion: interface {} is []interface {}, not map[string]interface {}",
    ),
    "enroot 4.1.2, no image": (
        "\x1b[1m[INFO]\x1b[0m Querying registry for permission grant\n"
        "\x1b[1;31m[ERROR]\x1b[0m URL http://registry:5000/v2/x/manifests/1 returned error code: 404 Not Found\n",
        "[ERROR] URL http://registry:5000/v2/x/manifests/1 returned error code: 404 Not Found",
    ),
    "enroot 4.1.2, a container that is there": (
        "[ERROR] File already exists: /var/lib/enroot/data/user-1000/pyxis_81.4294967291\n",
        "[ERROR] File already exists: /var/lib/enroot/data/user-1000/pyxis_81.4294967291",
    ),
    "gpg 2.2.40, no signature": (
        """\
gpg: keybox '/tmp/tmp.YFmQn16TRh/pubring.kbx' created
gpg: no valid OpenPGP data found.
gpg: the signature could not be verified.
Please remember that the signature file (.sig or .asc)
should be the first file given on the command line.
""",
        "gpg: no valid OpenPGP data found.",
    ),
    "gpgv 2.2.40, another key": (
        """\
gpgv: Signature made Fri Nov 27 20:36:07 2026 UTC
gpgv:                using RSA key 9DC858229FC7DD38854AE2D88D81803C0EBFCD88
gpgv: Can't check signature: No public key
""",
        "gpgv: Can't check signature: No public key",
    ),
    "systemctl 252": (
        "Job for demo.service failed because the control process exited with error code.\n"
        'See "systemctl status demo.service" and "journalctl -xeu demo.service" for details.\n',
        "Job for demo.service failed because the control process exited with error code.",
    ),
    "amazon-cloudwatch-agent-ctl 1.300": (
        """\
****** processing amazon-cloudwatch-agent ******
I! Trying to detect region from ec2
2026/11/27 20:36:07 E! Failed to merge multiple json config files.
Configuration validation first phase failed. Agent version: 1.0. Verify the JSON input is only using features supported
""",
        "2026/11/27 20:36:07 E! Failed to merge multiple json config files.",
    ),
    "Python 3.11": (
        """\
Traceback (most recent call last):
  File "/usr/local/libexec/pcluster-postboot/prometheus-targets", line 3, in <module>
    raise OSError(5, "Input/output error")
OSError: [Errno 5] Input/output error
""",
        "OSError: [Errno 5] Input/output error",
    ),
    "a program that says one thing": ("no runtimes, please\n", "no runtimes, please"),
    "a program that says nothing": (" \n\n", ""),
}


@pytest.mark.parametrize("program", PRINTED)
def test_the_line_that_states_the_reason(program: str) -> None:
    output, line = PRINTED[program]
    assert reason(output) == line


def test_verify_quotes_the_reason_that_pyxis_shows() -> None:
    """Pyxis 0.24 shows the end of Enroot's log, each line indented."""
    log, _line = PRINTED["mksquashfs 4.4 of RHEL 9 in enroot import (enroot#276)"]
    shown = [f"    {line}" for line in log.splitlines()[-7:]]
    before = ["failed to import docker image", "printing enroot log file:", *shown, "couldn't start container"]
    errors = "".join(f"slurmstepd: error: pyxis: {line}\n" for line in before)
    assert cluster.telling(errors) == ['enroot-mksquashovlfs: Compressor "lzo" is not supported!']


def test_programs_that_cannot_import_it_have_a_copy(repo: Path) -> None:
    copy = "roles/container_images/files/container_images/reason.py"
    assert (repo / copy).read_text() == (repo / "plugins/module_utils/_host/reason.py").read_text()


def test_its_time_grows_with_the_output() -> None:
    """2 MB of lines, each of which matches almost."""
    assert reason("error" * 40_000 + "\n" + "level=info err\n" * 100_000) != ""
