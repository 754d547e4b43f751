#!/usr/bin/env python3
# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Record `make demo` in a terminal, and draw docs/images/demo.svg of what was printed, for README.md.

With the sandbox running:

  scripts/record_demo.py --cast demo.cast     # runs `make demo`; the recording is one of asciinema, version 2
  scripts/record_demo.py --from demo.cast     # draws a recording again
  scripts/record_demo.py --page verify-main.html    # has Chromium draw the page that verify wrote, for docs/verify.md

Nothing in the picture is typed by hand. What is left out of it says how long it was.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 124, 40
MARGIN = 16
# What is shown of a command's output: from a line that begins so to one that has this, for each part.
SHOWN = {
    "$ ansible-inventory": [("@all", "@pcluster_cluster_el")],
    "pcluster.postboot.site": [(" " * 20, "cloudwatch_agent"), ("pcluster.postboot:", "node")],
    "pcluster.postboot.verify": [("verify on ", "stage"), ("        STAGE", " checks "), ("On a real", "never there")],
}
GREY, PLAIN = "\x1b[90m", "\x1b[0m"
# Dark on any page, as terminals are; each colour is readable on the background.
THEME = TerminalTheme(
    (24, 27, 31),
    (204, 204, 220),
    [
        *((24, 27, 31), (242, 73, 92), (115, 191, 105), (242, 204, 12)),
        *((87, 148, 242), (184, 119, 217), (83, 185, 201), (204, 204, 220)),
    ],
    [
        *((142, 142, 154), (255, 115, 131), (150, 217, 141), (250, 222, 42)),
        *((138, 184, 255), (202, 149, 229), (110, 211, 226), (255, 255, 255)),
    ],
)
# Rich's own has fonts of another site, which a page that shows a picture does not fetch.
SVG = """<svg data-size="{terminal_width} {terminal_height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>make demo</title>
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
 font-size: {char_height}px; line-height: {line_height}px }}
{styles}
</style>
<defs>{lines}</defs>
<rect data-paper fill="#181b1f" rx="10"/>
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</svg>
"""


def record(command: list[str]) -> Iterator[tuple[float, str]]:
    """Run a command in a terminal of its own, and yield what it prints, with the seconds since it began."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    begin = time.monotonic()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS)}
    with subprocess.Popen(command, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        while True:
            try:
                found = os.read(ours, 65536)
            except OSError:  # the last writer is gone
                break
            sys.stdout.buffer.write(found)
            sys.stdout.flush()
            yield round(time.monotonic() - begin, 3), found.decode(errors="replace")
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: nothing is drawn")


def written(text: str) -> list[str]:
    """Return the lines that stay on a terminal: what a line has before a carriage return is written over."""
    return [line.rstrip("\r").rsplit("\r", 1)[-1] for line in text.split("\n")]


def folded(lines: list[str]) -> list[str]:
    """Leave out what is not to be shown of each command's output."""
    kept: list[str] = []
    parts: list[tuple[str, str]] = []
    ends, out = "", 0
    for line in lines:
        plain = re.sub(r"\x1b\[[\d;]*m", "", line)
        begins = next((end for begin, end in parts if plain.startswith(begin)), "")
        if plain.startswith("$ "):
            parts = next((found for name, found in SHOWN.items() if name in plain), [("", "never there")])
            ends = ""
            kept += [f"{GREY}… {out} lines …{PLAIN}"] * (out > 1) + [""] * bool(kept) + [line]
            out = 0
        elif kept and (ends or begins):
            kept += [f"{GREY}… {out} lines …{PLAIN}"] * (out > 1) + [line]
            ends, out = ends or begins, 0
            if ends in plain:
                ends = ""
        else:
            out += bool(plain.strip())
    return kept


def picture(lines: list[str]) -> str:
    """Draw lines with the colours that a terminal gives them."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False)
    for line in lines:
        console.print(Text.from_ansi(line), overflow="ellipsis", no_wrap=True, highlight=False)
    drawn = console.export_svg(title="make demo", theme=THEME, code_format=SVG, unique_id="demo")
    width, height = (float(size) for size in re.findall(r'data-size="([\d.]+) ([\d.]+)"', drawn)[0])
    size = f'width="{width + 2 * MARGIN:.0f}" height="{height + 2 * MARGIN:.0f}"'
    box = f'viewBox="-{MARGIN} -{MARGIN} {width + 2 * MARGIN:.0f} {height + 2 * MARGIN:.0f}"'
    drawn = re.sub(r'data-size="[^"]+"', box, drawn)
    return drawn.replace("<rect data-paper", f'<rect x="-{MARGIN}" y="-{MARGIN}" {size}')


def photograph(page: Path, out: Path) -> None:
    """Have a browser draw the beginning of a page."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if not browser:
        raise SystemExit("chromium is not installed; needed: apt-get install chromium")
    size = ("--window-size=1000,860", "--hide-scrollbars", "--force-device-scale-factor=1")
    line = [
        browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        *size,
        f"--screenshot={out}",
        page.resolve().as_uri(),
    ]
    subprocess.run(line, check=True, capture_output=True, timeout=120)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cast", type=Path, help="where the recording goes, too")
    parser.add_argument("--from", dest="source", type=Path, help="a recording to draw, instead of running anything")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/images/demo.svg", help="where the picture goes")
    parser.add_argument("command", nargs="*", default=["make", "--no-print-directory", "demo"], help="what is run")
    parser.add_argument("--page", type=Path, help="a page of verify to draw, instead of running anything")
    options = parser.parse_args(arguments)
    if options.page:
        photograph(options.page, ROOT / "docs/images/verify-report.png")
        return 0
    if options.source:
        events = [json.loads(line) for line in options.source.read_text().splitlines()[1:]]
        shown = "".join(event[2] for event in events)
    else:
        found = list(record(options.command))
        shown = "".join(text for _at, text in found)
        if options.cast:
            header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": "make demo"}
            lines = [json.dumps(header), *(json.dumps([at, "o", text]) for at, text in found)]
            options.cast.write_text("\n".join(lines) + "\n")
    drawn = picture(folded(written(re.sub(r"\x1b\[[\d;?]*[A-Za-ln-z]", "", shown))))
    options.out.write_text(drawn + "\n" if not drawn.endswith("\n") else drawn)
    print(f"{options.out}: {len(drawn) // 1024} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
