# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""package_repository on real files and a real HTTP server, with small programs in place of apt-get and dnf."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from ansible_collections.pcluster.postboot.plugins.module_utils._packages import openpgp, repository, tool
from ansible_collections.pcluster.postboot.plugins.modules import package_repository
from ansible_collections.pcluster.postboot.tests.unit.plugins import lab

ONE = "8D3DC2447DED5A132723BA63BB3F9F431B4E8440"
TWO = "64D611E2705588227B721D46D66C153AC43AE1D0"
UPSTREAM = "https://apt.example.com"

# Keeps the lists that apt and dnf would keep, and a copy of what it was asked to read.
APT_GET = """#!/bin/sh
echo "$0 $*" >> "{home}/calls"
for word; do case "$word" in Dir::Etc::sourcelist=*) cp "${{word#*=}}" "{home}/read";; esac; done
[ -e "{home}/says" ] && cat "{home}/says" && rm "{home}/says" && exit $(cat "{home}/status")
mkdir -p "{home}/root/var/lib/apt/lists"
touch "{home}/root/var/lib/apt/lists/apt.example.com_debian_dists_stable_InRelease"
"""
DNF = """#!/bin/sh
echo "$0 $*" >> "{home}/calls"
for word; do case "$word" in --setopt=reposdir=*) cp "${{word#--setopt=reposdir=}}"/* "{home}/read";; esac; done
[ -e "{home}/says" ] && cat "{home}/says" && rm "{home}/says" && exit $(cat "{home}/status")
mkdir -p "{home}/root/var/cache/dnf/demo-0123456789abcdef/repodata"
touch "{home}/root/var/cache/dnf/demo-0123456789abcdef/repodata/repomd.xml"
"""


class Site:
    """What a test wants under each path; of a list, one answer after the other."""

    def __init__(self):
        self.asked, self.pages = [], {}
        site = self

        class Handler(lab.Pages):
            def do_GET(self):
                site.asked.append(self.path)
                answer = site.pages.get(self.path, 404)
                if isinstance(answer, list):
                    answer = answer.pop(0) if len(answer) > 1 else answer[0]
                status, body = (answer, b"") if isinstance(answer, int) else (200, answer)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(body)

        self.handler = Handler


class Host:
    def __init__(self, home, run_module, site, url, keys):
        self.home, self.root, self.site = home, home / "root", site
        self._run_module = run_module
        self.mirror = f"{url}/mirror"
        for name in ("one.asc", "two.asc"):
            site.pages[f"/mirror/apt.example.com/{name}"] = (keys / name).read_bytes()
        for name, text in (("apt-get", APT_GET), ("dnf", DNF)):
            lab.program(home / "bin" / name, text.format(home=home))

    def run(self, format="apt", check=False, **args):
        apt = {"suites": ["stable"], "components": ["main"], "architectures": ["amd64"]} if format == "apt" else {}
        given = {
            "name": "demo",
            "format": format,
            "url": f"{UPSTREAM}/debian",
            "key_url": f"{UPSTREAM}/one.asc",
            "key_fingerprints": [ONE],
            "mirrors": [self.mirror],
            **apt,
            **args,
        }
        result = self._run_module(
            package_repository, {key: value for key, value in given.items() if value is not None}, check=check
        )
        assert "\n" not in result.get("msg", "")
        return result

    def says(self, text, status=100):
        (self.home / "says").write_text(text)
        (self.home / "status").write_text(str(status))

    def calls(self):
        path = self.home / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.write_text("")
        return lines

    def text(self, path):
        return (self.root / path.lstrip("/")).read_text()

    def put(self, path, text):
        file = self.root / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return file

    def files(self):
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*") if not path.is_dir())


@pytest.fixture
def host(tmp_path, monkeypatch, run_module, repo):
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(repository, "ROOT", str(tmp_path / "root"))
    monkeypatch.setattr(repository, "_PAUSE", 0.01)
    monkeypatch.setattr(tool, "PAUSE", 0)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    site = Site()
    with lab.serving(site.handler) as url:
        yield Host(tmp_path, run_module, site, url, repo / "tests/unit/fixtures/keys")


def apt_lists(host):
    """Put the lists where apt keeps those of the mirror."""
    name = repository.apt_list_name(f"{host.mirror}/apt.example.com/debian/dists/stable/")
    return host.put(f"/var/lib/apt/lists/{name}InRelease", "")


def test_apt_check_then_apply_then_nothing(host):
    foretold = host.run(check=True)
    assert foretold["actions"] == ["installed-key", "wrote", "refreshed"]
    assert host.files() == []
    assert host.site.asked == []
    assert host.calls() == []
    lists = apt_lists(host)
    result = host.run()
    assert result["actions"] == foretold["actions"]
    assert result["diff"] == foretold["diff"]
    assert result["fingerprints"] == [ONE]
    assert result["url"] == f"{host.mirror}/apt.example.com/debian"
    source = f"""# Managed by Ansible (pcluster.postboot.package_repository): changes are overwritten.
Types: deb
URIs: {host.mirror}/apt.example.com/debian
Suites: stable
Components: main
Architectures: amd64
Signed-By: /etc/apt/keyrings/demo.gpg
"""
    assert host.text(result["source_path"]) == source
    assert (host.home / "read").read_text() == source
    key = host.root / result["key_path"].lstrip("/")
    assert openpgp.fingerprints(key.read_bytes()) == [ONE]
    assert key.read_bytes()[0] & 0x80  # binary
    assert key.stat().st_mode & 0o777 == 0o644
    [call] = host.calls()
    for option in (
        "Dir::Etc::sourceparts=-",
        "APT::Get::List-Cleanup=0",
        "DPkg::Lock::Timeout=300",
        "APT::Update::Error-Mode=any",
    ):
        assert f"-o {option}" in call
    assert host.site.asked == ["/mirror/apt.example.com/one.asc"]
    for check in (True, False):
        again = host.run(check=check)
        assert again["actions"] == []
        assert again["diff"] == []
        assert again["changed"] is False
    assert host.calls() == []
    assert len(host.site.asked) == 1
    again = host.run(refresh="always")
    assert again["changed"] is False
    assert len(host.calls()) == 1  # old lists name packages that are gone
    assert host.run(refresh="always", check=True)["changed"] is False
    assert host.calls() == []
    lists.unlink()
    assert host.run(check=True)["actions"] == ["refreshed"]
    assert host.run()["actions"] == ["refreshed"]


def test_dnf(host):
    foretold = host.run("dnf", check=True)
    result = host.run("dnf", options={"priority": 10, "module_hotfixes": True, "excludepkgs": ["a*", "b"]})
    assert result["actions"] == foretold["actions"] == ["installed-key", "wrote", "refreshed"]
    assert (
        host.text(result["source_path"])
        == f"""# Managed by Ansible (pcluster.postboot.package_repository): changes are overwritten.
[demo]
name=demo
baseurl={host.mirror}/apt.example.com/debian
enabled=1
gpgcheck=1
repo_gpgcheck=0
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-demo
excludepkgs=a* b
module_hotfixes=1
priority=10
"""
    )
    assert host.text(result["key_path"]).startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    [call] = host.calls()
    assert call.endswith("makecache --repo demo")
    args = {"options": {"priority": 10, "module_hotfixes": True, "excludepkgs": ["a*", "b"]}}
    assert host.run("dnf", **args)["actions"] == []
    assert host.run("dnf", repo_gpgcheck=True, **args)["actions"] == ["wrote", "refreshed"]


def test_a_binary_key_becomes_armored_for_rpm(host):
    pages = host.site.pages
    pages["/mirror/apt.example.com/one.asc"] = openpgp.dearmor(pages["/mirror/apt.example.com/one.asc"])
    result = host.run("dnf")
    assert host.text(result["key_path"]).startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")


def test_another_key_is_refused_and_nothing_is_left(host):
    result = host.run(key_url=f"{UPSTREAM}/two.asc")
    assert result["failed"]
    assert f"holds the key {TWO}, needed is {ONE}; it was not installed" in result["msg"]
    assert "key_fingerprints" in result["msg"]
    assert host.files() == []
    assert host.calls() == []


def test_one_key_too_many_is_refused(host):
    pages = host.site.pages
    pages["/mirror/apt.example.com/one.asc"] += pages["/mirror/apt.example.com/two.asc"]
    assert f"holds the key {TWO}, needed is {ONE}" in host.run()["msg"]
    assert host.run(key_fingerprints=[ONE, TWO])["fingerprints"] == [ONE, TWO]


def test_a_page_that_is_no_key(host):
    host.site.pages["/mirror/apt.example.com/one.asc"] = b"<html>log in</html>"
    assert "cannot be used: it is no OpenPGP key: it begins with '<html>log in</html>'" in host.run()["msg"]


def test_a_key_on_disk_is_kept_replaced_or_converted(host, repo):
    apt_lists(host)
    keys = repo / "tests/unit/fixtures/keys"
    path = "/etc/apt/keyrings/demo.gpg"
    host.put(path, openpgp.dearmor((keys / "one.asc").read_bytes()))
    assert "installed-key" not in host.run(check=True)["actions"]
    host.put(path, (keys / "one.asc").read_bytes())  # apt would not read armor from a .gpg file
    assert host.run()["actions"][0] == "installed-key"
    assert host.site.asked == []
    both = b"".join(openpgp.dearmor((keys / f"{name}.asc").read_bytes()) for name in ("one", "two"))
    for other in (both, b"garbage", b""):
        host.put(path, other)
        assert host.run(check=True)["actions"] == ["installed-key"]
        assert host.run()["actions"] == ["installed-key"]
    assert len(host.site.asked) == 3
    (host.root / path.lstrip("/")).chmod(0o600)
    assert host.run()["actions"] == ["installed-key"]
    assert len(host.site.asked) == 3


def test_a_repository_that_the_node_has_is_not_added_again(host):
    """apt would refuse to work at all."""
    asked = {"mirrors": [], "unless_provided": True, "check": True}
    folder, address = "/etc/apt/sources.list.d", f"{UPSTREAM}/debian"
    for name, text, provided in (
        ("theirs.list", f"# deb {address}/ /\n", False),
        ("theirs.list.save", f"deb {address}/ /\n", False),
        ("demo.sources", f"URIs: {address}\n", False),  # left by a run that was killed
        ("theirs.sources", f"URIs: {address}\nEnabled: no\n", False),
        ("theirs.list", f"deb [signed-by=/usr/share/keyrings/theirs.gpg] {address}/ /\n", True),
        ("../sources.list", f"deb {address} stable main\n", True),
    ):
        file = host.put(f"{folder}/{name}", text)
        assert host.run(**asked)["changed"] is not provided, name
        assert host.run(**{**asked, "unless_provided": False})["changed"]
        if provided:
            assert host.run(**{**asked, "mirrors": [host.mirror]})["changed"]
        file.unlink()


# As apt says it of InRelease, and dnf of repomd.xml.asc. A key that dnf has in its own keyring it never reads again.
APT_GET_THAT_CHECKS = """#!/bin/sh
echo "$0 $*" >> "{home}/calls"
cmp -s "{home}/root/etc/apt/keyrings/demo.gpg" "{home}/expired" || exit 0
echo "Err:1 http://x stable InRelease"
echo "  The following signatures were invalid: EXPKEYSIG 963FA27710458545 Demo <demo@example.com>"
echo "W: GPG error: http://x stable InRelease: The following signatures were invalid: EXPKEYSIG 963FA27710458545"
echo "E: The repository 'http://x stable InRelease' is not signed."
exit 100
"""
DNF_THAT_CHECKS = """#!/bin/sh
echo "$0 $*" >> "{home}/calls"
ring="{home}/root/var/cache/dnf/demo-0123456789abcdef/pubring"
mkdir -p "$ring"
[ -e "$ring/demo" ] || cp "{home}/root/etc/pki/rpm-gpg/RPM-GPG-KEY-demo" "$ring/demo"
cmp -s "$ring/demo" "{home}/expired" || exit 0
echo "Error: Failed to download metadata for repo 'demo': \\
repomd.xml GPG signature verification error: Bad GPG signature"
exit 1
"""


@pytest.fixture
def extended(host):
    """A key whose owner has extended its expiry: the one on disk has expired, and the site has the new one."""
    home = host.home / "gpg"
    home.mkdir(mode=0o700)

    def gpg(*words):
        line = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--passphrase", "", *words]
        return subprocess.run(line, check=True, capture_output=True).stdout

    def key():
        return gpg("--armor", "--export", "demo@example.com")

    gpg("--faked-system-time", "20240101T000000!", "--quick-generate-key", "demo@example.com", "ed25519", "sign", "1y")
    expired = key()
    [fingerprint] = openpgp.fingerprints(expired)
    gpg("--faked-system-time", "20240601T000000!", "--quick-set-expire", fingerprint, "10y")
    host.site.pages["/mirror/apt.example.com/one.asc"] = new = key()
    assert new != expired
    yield fingerprint, expired, new
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)


def program(host, name, text):
    (host.home / "bin" / name).write_text(text.format(home=host.home))


def test_apt_gets_a_key_anew_whose_expiry_was_extended(host, extended):
    fingerprint, expired, new = extended
    program(host, "apt-get", APT_GET_THAT_CHECKS)
    apt_lists(host)
    (host.home / "expired").write_bytes(openpgp.dearmor(expired))
    path = host.put("/etc/apt/keyrings/demo.gpg", openpgp.dearmor(expired))
    result = host.run(key_fingerprints=[fingerprint])
    assert result["actions"] == ["installed-key", "wrote", "refreshed"]
    assert path.read_bytes() == openpgp.dearmor(new)
    assert len(host.calls()) == 2
    assert host.run(key_fingerprints=[fingerprint], refresh="always")["changed"] is False
    assert len(host.site.asked) == 1


def test_dnf_gets_a_key_anew_whose_expiry_was_extended(host, extended):
    fingerprint, expired, new = extended
    program(host, "dnf", DNF_THAT_CHECKS)
    (host.home / "expired").write_bytes(expired)
    path = host.put("/etc/pki/rpm-gpg/RPM-GPG-KEY-demo", expired)
    result = host.run("dnf", key_fingerprints=[fingerprint])
    assert result["actions"] == ["installed-key", "wrote", "refreshed"]
    assert path.read_bytes() == new


def test_a_key_that_has_not_changed_is_not_taken_for_a_remedy(host, extended):
    fingerprint, expired, _new = extended
    program(host, "apt-get", APT_GET_THAT_CHECKS)
    (host.home / "expired").write_bytes(openpgp.dearmor(expired))
    host.put("/etc/apt/keyrings/demo.gpg", openpgp.dearmor(expired))
    host.site.pages["/mirror/apt.example.com/one.asc"] = expired
    failed = host.run(key_fingerprints=[fingerprint])
    assert failed["msg"].startswith("url: apt-get cannot use demo: W: GPG error: ")
    assert failed["msg"].endswith("it was not added; its key was fetched anew, and is the same")
    assert len(host.calls()) == 1
    host.site.pages["/mirror/apt.example.com/one.asc"] = 404
    failed = host.run(key_fingerprints=[fingerprint])
    assert "EXPKEYSIG" in failed["msg"]
    assert "its key could not be fetched anew: key_url: " in failed["msg"]


def test_a_repository_that_cannot_be_reached_is_no_reason_to_fetch_its_key(host):
    apt_lists(host)
    host.run()
    host.says("E: Failed to fetch http://x/InRelease  Could not connect\n")
    assert "Could not connect" in host.run(refresh="always")["msg"]
    assert len(host.site.asked) == 1


def test_a_key_s_diff_shows_fingerprints(host, repo):
    apt_lists(host)
    host.run()
    host.put("/etc/apt/keyrings/demo.gpg", openpgp.dearmor((repo / "tests/unit/fixtures/keys/two.asc").read_bytes()))
    for check in (True, False):
        [change] = host.run(check=check)["diff"]
        assert (change["before"], change["after"]) == (f"fingerprint: {TWO}\n", f"fingerprint: {ONE}\n")


def test_a_server_that_stumbles_is_asked_again(host):
    page = host.site.pages["/mirror/apt.example.com/one.asc"]
    host.site.pages["/mirror/apt.example.com/one.asc"] = [503, 500, page]
    assert host.run()["changed"]
    assert len(host.site.asked) == 3


@pytest.mark.parametrize(("status", "times"), [(503, 4), (404, 1), (403, 1)])
def test_a_key_that_can_not_be_had(host, status, times):
    host.site.pages["/mirror/apt.example.com/one.asc"] = status
    assert f"gave no key: it answered {status}" in host.run()["msg"]
    assert len(host.site.asked) == times


def test_no_way_to_the_server(host):
    result = host.run(mirrors=[], key_url="http://127.0.0.1:1/key", url="http://127.0.0.1:1/debian")
    assert "key_url: http://127.0.0.1:1/key gave no key: [Errno 111] Connection refused" in result["msg"]


def test_a_folder_as_mirror(host, tmp_path, repo):
    folder = tmp_path / "a mirror/apt.example.com"
    folder.mkdir(parents=True)
    (folder / "one.asc").write_bytes((repo / "tests/unit/fixtures/keys/one.asc").read_bytes())
    link = tmp_path / "mirror"
    link.symlink_to(tmp_path / "a mirror")
    result = host.run(mirrors=["s3://bucket/prefix", str(link)])
    assert result["url"] == f"file://{link}/apt.example.com/debian"
    assert host.site.asked == []


def test_s3_alone_is_no_mirror_for_a_package_manager():
    assert repository.through_mirror("https://a.example/x", ("s3://bucket",)) == "https://a.example/x"
    assert repository.through_mirror("https://a.example/x", ()) == "https://a.example/x"
    assert (
        repository.through_mirror("https://a.example/x/$basearch/", ("http://m/p/",))
        == "http://m/p/a.example/x/$basearch/"
    )


@pytest.mark.parametrize(
    ("said", "status", "told"),
    [
        (
            "Err:1 http://x\nW: GPG error: http://x stable: NO_PUBKEY 12\nE: other\n",
            100,
            "W: GPG error: http://x stable",
        ),
        (
            "Reading package lists...\nE: The repository 'http://x' is not signed.\n",
            100,
            "E: The repository 'http://x'",
        ),
        ("W: Skipping acquire: the repository doesn't have the component 'nope'\n", 0, "the component 'nope'"),
        ("", 3, "exit status 3"),
    ],
)
def test_a_repository_that_apt_can_not_read_is_not_added(host, said, status, told):
    host.says(said or "\n", status)
    result = host.run()
    assert result["msg"].startswith("url: apt-get cannot use demo: ")
    assert told in result["msg"]
    assert not (host.root / "etc/apt/sources.list.d/demo.sources").exists()
    assert host.run()["actions"] == ["wrote", "refreshed"]


def test_dnf_s_words_come_through(host):
    host.says("Errors during downloading metadata:\n  - Status code: 404\nError: Failed to download metadata\n", 1)
    assert "dnf cannot use demo: Error: Failed to download metadata; it was not added" in host.run("dnf")["msg"]


def test_a_lock_is_waited_for(host):
    host.says("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt)\n")
    assert host.run()["actions"] == ["installed-key", "wrote", "refreshed"]
    assert len(host.calls()) == 2
    (host.root / "etc/apt/sources.list.d/demo.sources").unlink()
    host.says("E: Could not get lock /var/lib/apt/lists/lock. It is held by process 1 (apt)\n")
    assert "Could not get lock" in host.run(lock_timeout=0)["msg"]


def test_a_vendor_s_list_with_the_same_url_goes(host):
    other = "deb https://other.example.com/ stable main\n"
    path = host.put(
        "/etc/apt/sources.list.d/demo.list", f"# vendor\ndeb [signed-by=/x] {UPSTREAM}/debian/ stable main\n"
    )
    assert [change["before_header"] for change in host.run(check=True)["diff"]][1:] == [
        "/etc/apt/sources.list.d/demo.sources",
        "/etc/apt/sources.list.d/demo.list",
    ]
    assert path.exists()
    assert host.run()["changed"]
    assert not path.exists()
    host.put("/etc/apt/sources.list.d/demo.list", f"{other}deb {host.mirror}/apt.example.com/debian stable main\n")
    assert host.run()["actions"] == ["wrote", "refreshed"]
    assert path.read_text() == other
    apt_lists(host)
    assert host.run()["actions"] == []


def test_other_files_with_the_same_repository_are_warned_of(host):
    apt_lists(host)
    host.put("/etc/apt/sources.list.d/vendor.sources", f"Types: deb\nURIs: {UPSTREAM}/debian\nSuites: stable\n")
    host.put("/etc/apt/sources.list.d/off.list", f"# deb {UPSTREAM}/debian stable main\n")
    changes, warnings = repository._conflicts(
        repository.Request("demo", "apt", suites=("stable",)), {f"{UPSTREAM}/debian"}
    )
    assert changes == {}
    assert [warning.split()[0] for warning in warnings] == ["/etc/apt/sources.list.d/vendor.sources"]
    host.put("/etc/yum.repos.d/vendor.repo", "[demo]\nbaseurl=x\n")
    _changes, warnings = repository._conflicts(repository.Request("demo", "dnf"), set())
    assert warnings[0].startswith("/etc/yum.repos.d/vendor.repo has a section [demo] too")


def test_absent(host):
    host.run()
    absent = {"state": "absent", "url": None, "key_url": None, "key_fingerprints": None}
    assert host.run(check=True, **absent)["actions"] == ["removed"]
    result = host.run(**absent)
    assert result["actions"] == ["removed"]
    assert result["diff"][1]["before"] == f"fingerprint: {ONE}\n"
    assert [name for name in host.files() if "demo." in name] == []
    assert host.run(**absent)["changed"] is False


def test_switched_off_and_unrefreshed(host):
    assert host.run(enabled=False)["actions"] == ["installed-key", "wrote"]
    assert "Enabled: no\n" in host.text("/etc/apt/sources.list.d/demo.sources")
    assert host.run(refresh="never")["actions"] == ["wrote"]
    assert host.calls() == []


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://download.docker.com/linux/ubuntu/dists/noble/", "download.docker.com_linux_ubuntu_dists_noble_"),
        ("http://127.0.0.1:8123/a_b/~c/", "127.0.0.1:8123_a%5fb_%7ec_"),
        ("file:///srv/x/", "_srv_x_"),
    ],
)
def test_how_apt_names_its_lists(url, name):
    assert repository.apt_list_name(url) == name


def test_flat_repositories_and_their_lists(host):
    args = {"suites": ["/"], "components": [], "architectures": [], "url": f"{UPSTREAM}/deb/$(ARCH)"}
    assert host.run(**args)["changed"]
    text = host.text("/etc/apt/sources.list.d/demo.sources")
    assert "Suites: /\n" in text
    assert "Components" not in text
    assert host.run(**args)["actions"] == ["refreshed"]
    name = repository.apt_list_name(f"{host.mirror}/apt.example.com/deb/amd64/")
    host.put(f"/var/lib/apt/lists/{name}InRelease", "")
    assert host.run(**args)["actions"] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"name": "../x"}, "name: '../x' cannot name a file"),
        ({"url": "ftp://x/"}, "url: 'ftp://x/' is no http, https or file URL"),
        ({"url": "https://x/ y"}, "url: 'https://x/ y' is no http, https or file URL"),
        ({"url": "https://me:secret@x/"}, "url: it holds a password"),
        ({"suites": []}, "suites: apt needs at least one"),
        ({"components": []}, "components: found [] with suites ['stable']"),
        ({"suites": ["/"]}, "components: found ['main'] with suites ['/']"),
        ({"suites": ["a b"]}, "suites, components, architectures: 'a b' is not one word"),
        ({"key_fingerprints": ["1B4E8440"]}, "key_fingerprints: '1B4E8440' is no full fingerprint"),
        ({"key_fingerprints": []}, "key_fingerprints: at least one is needed"),
        ({"options": {"Trusted": True}}, "options: 'Trusted' is refused"),
        ({"options": {"URIs": "x"}}, "options: 'URIs' has an argument of its own"),
        ({"options": {"a\nb": 1}}, "options: 'a\\nb' is refused"),
        ({"options": {"Languages": "en\nTrusted: yes"}}, "options: 'en'… must be one line"),
        ({"description": "a\nb"}, "description: it must be one line"),
    ],
)
def test_what_can_not_be_meant_is_refused(host, args, message):
    result = host.run(**args)
    assert result["failed"]
    assert message in result["msg"]
    assert "secret" not in result["msg"]
    assert host.files() == []


def test_the_wrong_system(host):
    (host.home / "bin/apt-get").unlink()
    (host.home / "bin/dnf").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", str(host.home / "bin"))
        assert "the program dnf is not there: check 'manager' or 'format'" in host.run("dnf")["msg"]


def test_every_option_is_documented():
    documented = yaml.safe_load(package_repository.DOCUMENTATION)["options"]
    assert set(documented) == set(repository.Request._fields) - {"check"}
