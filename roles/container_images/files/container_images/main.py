# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What users and the service call.

`run`, on the head node, imports what the settings and the users' list name and the folder does not have, and goes on
watching both lists. `status`, `list` and `download` are for users, on any node. An image appears whole or not at all,
one that fails says why on one line, and the others go on. Whatever a killed run has left, the next one clears away.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

from .errors import ImageError
from .files import digest_of
from .importer import Importer
from .settings import read_settings
from .state import Entry, failures_of, is_settled, read_state, size, when
from .text import visible

SILENT = 180  # seconds without a sign of life after which an importer counts as gone


def row_of(name: str, entry: Entry, now: float) -> list[str]:
    state = str(entry["state"])
    if state == "present":
        return [name, "ready", size(entry.get("size", 0)), entry["file"]]
    if state == "importing":
        layers = entry.get("layers") or [0, 0]
        total = size(entry["download"]) if entry.get("download") else ""
        return [name, "importing", total, f"{layers[0]} of {layers[1]} layers, since {when(entry.get('since', now))}"]
    if state == "queued":
        return [name, "waiting", "", ""]
    left = max(0, entry.get("next_try", now) - now)
    return [name, state, "", f"{entry.get('why', '')} (next try in {left:.0f} s)"]


def columns(rows: list[list[str]]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]) - 1)]
    for row in rows:
        yield "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[-1]]).rstrip()


def status(options: argparse.Namespace) -> int:
    state, now = read_state(options.directory), time.time()
    if options.json:
        print(json.dumps(state, indent=1, sort_keys=True))
        return 0
    rows = [row_of(name, entry, now) for name, entry in sorted(state["images"].items())]
    for line in columns([["IMAGE", "STATE", "SIZE", ""], *rows]):
        print(visible(line))
    for line in [*state.get("problems", []), *state.get("warnings", [])]:
        print(visible(line))
    if any(entry["state"] == "failed" for entry in state["images"].values()):
        print("What failed is tried again at once by: sudo systemctl reload container-images, on the head node")
    age = now - state.get("updated", 0)
    advice = "on the head node: systemctl status container-images"
    if "updated" not in state:
        print(visible(f"Nothing has been imported into {options.directory} yet; {advice}"))
    elif not is_settled(state) and age > SILENT:
        print(visible(f"The importer on {state.get('host')} has said nothing for {age:.0f} s; {advice}"))
    return 0


def list_images(options: argparse.Namespace) -> int:
    known = {entry["file"]: (name, entry) for name, entry in read_state(options.directory)["images"].items()}
    rows = []
    for name in sorted(os.listdir(options.directory)):
        if name.startswith(".") or not name.endswith(".sqsh"):
            continue
        try:
            found = os.stat(os.path.join(options.directory, name))
        except OSError:  # a link that leads nowhere, or what has just been removed
            continue
        image, entry = known.get(name, ("", {}))
        rows.append([name, size(found.st_size), when(found.st_mtime)[:16], image, (entry.get("digest") or "")[:19]])
    if not rows:
        print(visible(f"There is no image in {options.directory} yet"))
        return 0
    for line in columns([["FILE", "SIZE", "SINCE", "IMAGE", "DIGEST"], *rows]):
        print(visible(line))
    print()
    print(visible(f"srun --container-image={options.directory}/{rows[0][0]} COMMAND"))
    return 0


def download(options: argparse.Namespace) -> int:
    """Ask for what is missing, and show how it goes on."""
    if options.status:
        return status(options)
    other = bool(options.list) and os.path.realpath(options.list) != os.path.realpath(options.file)
    if other:
        if not os.path.exists(options.list):
            raise ImageError(f"{options.list} is not there; needed: a list of images, one a line")
        if os.geteuid() != 0 or not os.path.exists(options.settings):
            raise ImageError(
                f"only root on the head node imports another list; add its lines to {options.file} instead"
            )
        return serve(Importer(options.settings, os.path.realpath(options.list)), once=True)
    asked = 0.0
    if os.geteuid() == 0 and os.path.exists(options.settings):
        asked = time.time()
        subprocess.run(["systemctl", "reload-or-restart", "container-images.service"], check=True)
    if options.no_wait:
        return 0
    return follow(options, asked)


def follow(options: argparse.Namespace, asked: float) -> int:
    """Show the log from now on until nothing is left to do."""
    position, silent_since = (os.path.getsize(options.log) if os.path.exists(options.log) else 0), time.monotonic()
    updated = None
    while True:
        state = read_state(options.directory)
        if state.get("updated") != updated:
            updated, silent_since = state.get("updated"), time.monotonic()
        seen = state.get("seen", {})
        with contextlib.suppress(OSError), open(options.log, encoding="utf-8", errors="replace") as stream:
            stream.seek(position)
            text = stream.read()
            position = stream.tell()
            if text:
                silent_since = time.monotonic()
                print("\n".join(map(visible, text.split("\n"))), end="", flush=True)
        current = seen.get("file", "") == digest_of(options.file) and seen.get("asked", 0) >= asked
        if current and is_settled(state):
            break
        if time.monotonic() - silent_since > SILENT:
            raise ImageError("the importer says nothing; on the head node: systemctl status container-images")
        time.sleep(1)
    options.json = False
    status(options)
    return 1 if failures_of(state) else 0


def serve(importer: Importer, once: bool) -> int:
    """Let an importer work until it is told to stop."""
    signal.signal(signal.SIGTERM, lambda *_: importer.stop.set())
    signal.signal(signal.SIGHUP, lambda *_: importer.asked.set())
    return importer.run(once)


def run(options: argparse.Namespace) -> int:
    code = serve(Importer(options.settings), options.once)
    return code if options.once else 0


def check(options: argparse.Namespace) -> int:
    read_settings(options.settings)
    return 0


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Container images in a shared folder.")
    steps = parser.add_subparsers(required=True, metavar="STEP")
    defaults = "/etc/pcluster-postboot/container-images.json"

    step = steps.add_parser("run", help="on the head node: import what is missing, and go on watching the lists")
    step.add_argument("--settings", default=defaults, help="(default: %(default)s)")
    step.add_argument("--once", action="store_true", help="end when nothing is left to try")
    step.set_defaults(step=run)

    step = steps.add_parser("check", help="check the settings")
    step.add_argument("--settings", default=defaults, help="(default: %(default)s)")
    step.set_defaults(step=check)

    step = steps.add_parser("status", help="show how far every image is")
    step.add_argument("--directory", required=True, help="the folder of the images")
    step.add_argument("--json", action="store_true", help="as JSON")
    step.set_defaults(step=status)

    step = steps.add_parser("list", help="show the images that can be used")
    step.add_argument("--directory", required=True, help="the folder of the images")
    step.set_defaults(step=list_images)

    step = steps.add_parser("download", help="ask for what is missing, and show how it goes on")
    step.add_argument("--directory", required=True, help=argparse.SUPPRESS)
    step.add_argument("--file", required=True, help=argparse.SUPPRESS)
    step.add_argument("--log", required=True, help=argparse.SUPPRESS)
    step.add_argument("--settings", default=defaults, help=argparse.SUPPRESS)
    step.add_argument("--status", action="store_true", help="only show how far every image is")
    step.add_argument("--json", action="store_true", help="with --status: as JSON")
    step.add_argument("--no-wait", action="store_true", help="only ask")
    step.add_argument("list", nargs="?", default="", help="another list of images (root, on the head node)")
    step.set_defaults(step=download)
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    os.umask(0o022)
    try:
        return int(options.step(options))
    except (OSError, ImageError, subprocess.SubprocessError) as error:
        print(visible(str(error)), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
