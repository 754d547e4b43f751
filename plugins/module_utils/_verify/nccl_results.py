# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What nccl-tests prints, as real jobs leave it in their logs.

The table that rank 0 prints has had several shapes: nccl-tests 2.9 names no root and shows the largest error, later
ones count wrong values; -C times the CPU, -c 0 leaves N/A, -S adds a timestamp and -I four columns about single
iterations. The line of column names says which. srun --label, mpirun --tag-output and Hydra put the rank in front of
each line, and NCCL_DEBUG=INFO writes into the middle of rows, because nccl-tests prints a row in three pieces.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from ansible_collections.pcluster.postboot.plugins.module_utils._verify.nccl_network import Network, NetworkReader

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "alltoall",
    "alltoallv",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "sendrecv",
    "hypercube",
)
_MOST_MESSAGES = 20

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# Open MPI: [1,0]<stdout>:, [prterun-head-123@1,0]<stdout>: and [1,mpirank:0,algo-1]<stdout>:
_TAGGED = re.compile(r"\[([^\s\]]*)\]<std\w+>:\s?")
_TAG = re.compile(r"mpirank:(\d{1,9})(?!\d)|(?<!\d)(\d{1,9})\Z")
_LABELS = (
    re.compile(r" {0,4}(\d{1,6}):(?: |$)"),  # srun --label
    re.compile(r"\[(\d{1,6})\] ?(?=\s|#|$|[\w.-]+:\d+:\d+ \[)"),  # Hydra's -prepend-rank
)
# ip-10-0-0-1:812:847 [3] NCCL INFO ..., with the source of a warning or a timestamp in some versions
_DEBUG = re.compile(
    r"(?:\[\d{4}-\d\d-\d\d [^\[\]]*\] |(?<!\S))(?P<who>\S+:\d+:\d+) \[\d+\] (?:\S+:\d+ (?:\([^()]*\) )?)?"
    r"NCCL (?P<level>INFO|WARN|ABORT) (?P<text>.*)"
)
_RANK = re.compile(
    r"#?\s*Rank\s+(\d{1,9})(?:\s+Group\s+(\d{1,9}))?\s+Pid\s+(\d{1,9})\s+on\s+(\S+)\s+device\s+(\d{1,9})\s+"
    r"\[([^\]]+)\]\s*(.*)"
)
# The nodes, as the list of devices and the debug lines that nothing precedes name them
_HOSTS = re.compile(
    r"Rank\s+\d+ (?:(?!Rank\s).)* on\s+(\S+)\s+device"
    r"|^(?:\[\S+\]<std\w+>:\s?| {0,4}\d+: |)([\w.-]+):\d+:\d+ \[\d+\] ",
    re.MULTILINE,
)
_VERSION = re.compile(r"nccl-tests version (\S+)(?: \(\w+\))? nccl-headers=(\d+) nccl-library=(\d{1,9})\b")
_OPTIONS = re.compile(
    r"#?\s*nThread (?P<threads>\d{1,9}) nGpus (?P<gpus>\d{1,9}) minBytes (?P<min_bytes>\d{1,18}) "
    r"maxBytes (?P<max_bytes>\d{1,18}) step: (?P<step>\d{1,18})\((?P<step_kind>\w+)\) "
    r"warmup iters: (?P<warmup>\d{1,9}) iters: (?P<iterations>\d{1,9})\b(?P<rest>.*)"
)
_LATER_OPTIONS = re.compile(r"(agg iters|validation|graph|unalign): (\d{1,9})\b")
# The width of a row's first five columns, where the name of a host that follows cannot be told from the root
_PREAMBLE_WIDTH = 52
_TYPE = re.compile(r"(?:u?int\d+|half|float|double|bfloat16|f(?:p)?8\w*)\Z")
_NUMBER = re.compile(r"-?(?:\d[\d.]*(?:e[+-]?\d+)?|inf|nan)\Z")
_COUNT = re.compile(r"\d{1,18}\Z")
_MOST_WORDS = 60  # of a row; the widest has half as many
_LONGEST_NAME = 255  # of a host, as Linux limits it
_TIMESTAMP = re.compile(r"(?<!\s)\s+\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\s*\Z")
# Hydra labels each piece of a row
_INNER_LABEL = re.compile(r"(?<=\S)\[\d{1,6}\](?= )")

# Lines in which a test says why it ends
_FATAL = re.compile(
    r"Test (?:NCCL|CUDA) failure|Test timeout|Invalid number of GPUs|CUDA driver version is insufficient"
    r"|Incompatible NCCL versions|This test requires|is not supported by this test"
)
# Lines that may tell why a run ended. A run with all its results is not judged by them.
_COMPLAINT = re.compile(
    r"error while loading shared libraries|cannot open shared object|command not found|execve\(\)"
    r"|(?:srun|slurmstepd): error:|DUE TO TIME LIMIT"
    r"|Segmentation fault|Bus error|[Oo]ut [Oo]f [Mm]emory|oom[-_]kill|MPI_ABORT was invoked|exited on signal"
    r"|There are not enough slots|ORTE was unable|PRTE (?:(?!PRTE ).)*unable|PMIX? ERROR"
    r"|unable to (?:launch|start)|UNREACHABLE"
)
_IGNORED = re.compile(r"\(ignored\)|[Ww]arning")
# Lines that follow from another line, which tells more
_CONSEQUENCE = re.compile(
    r"^\S+: error: \S+: task\S* \S+ (?:Exited|Terminated|Killed)|^srun: (?:error: )?(?:Terminating|launch/|Job step)"
    r"|Test failure \S+:\d+$"
)
# A row of a table, whatever its columns are
_ROW = re.compile(r"\s*\d+\s+\d+\s+(?:u?int\d*|half|float|double|bfloat16|char|f(?:p)?8\w*)\s+\S+\s.*\d\.\d")


class Values(NamedTuple):
    """One half of a row."""

    time_us: float
    algbw: float
    busbw: float
    wrong: int | None  # how many values were wrong; None where that was not counted


class Row(NamedTuple):
    """One message size."""

    size: int
    count: int  # type: ignore[assignment]  # hides the tuple's own
    type: str
    redop: str
    root: int | None
    out_of_place: Values
    in_place: Values | None

    @property
    def busbw(self) -> float:
        """Return the bus bandwidth that published figures mean, in GB/s: the one out of place."""
        return self.out_of_place.busbw


class Rank(NamedTuple):
    """One GPU of the test."""

    rank: int
    group: int
    pid: int
    host: str
    device: int
    bus_id: str
    gpu: str


class Result(NamedTuple):
    """One run of one test."""

    collective: str
    version: str  # of nccl-tests; those before 2.17.4 do not tell
    nccl: str
    label: str  # what stood before each line of its table
    options: dict[str, Any]
    ranks: list[Rank]
    rows: list[Row]
    cputime: bool
    average_busbw: float | None
    out_of_bounds: int | None
    complete: bool
    errors: list[str]
    warnings: list[str]
    network: Network

    @property
    def hosts(self) -> list[str]:
        """Return the names of the nodes, in the order of the ranks."""
        return list(dict.fromkeys(rank.host for rank in self.ranks))

    @property
    def groups(self) -> int:
        """Return how many sets of GPUs ran the same at the same time; bandwidths are those of one set."""
        return len({rank.group for rank in self.ranks}) or 1

    @property
    def checked(self) -> bool:
        """Say whether the values that arrived were compared with those that should."""
        return bool(self.options.get("validation")) and self.out_of_bounds is not None


def nccl_version(code: int) -> str:
    """Return the version that a number such as 23007 or 2708 means."""
    if code < 10000:
        return f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}"


def collective_of(program: str) -> str:
    """Return all_reduce for all_reduce_perf, all_reduce_perf_mpi or a path to it; nothing for what is none of them."""
    name = re.sub(r"_perf(_mpi)?$", "", program.strip().rsplit("/", 1)[-1])
    name = {"all_to_all": "alltoall", "allreduce": "all_reduce", "allgather": "all_gather"}.get(name, name)
    return name if name in COLLECTIVES else ""


def plain(value: Any) -> Any:
    """Return the same for JSON: dictionaries for named tuples, and None for what is no number."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def parse(text: str | Iterable[str], collective: str = "") -> list[Result]:
    """Return every test in a job's output, at least one; `collective` names it where the output does not.

    The output is a text, or lines that can be read more than once.
    """
    lines = text.splitlines() if isinstance(text, str) else text
    runs: list[_Run] = []
    streams: dict[str, _Run] = {}
    early = _Run("")
    hosts = {name for line in lines for names in _HOSTS.findall(line) for name in names if name}
    for line in lines:
        label, content = _unlabel(_COLOURS.sub("", line).rstrip("\r\n"))
        debug = _DEBUG.search(content) if "NCCL " in content else None
        if debug:
            before = content[: debug.start()] + _glued(content[: debug.start()], debug["who"], hosts)
            run = streams.get(label) or (runs[-1] if runs else early)
            run.debug(debug["who"][len(before) - debug.start() :].rsplit(":", 2)[0], debug["level"], debug["text"])
            if before.strip() and label in streams:
                streams[label].piece(before)
            continue
        if label not in streams or _begins(content, streams[label]):
            if not _starts(content):
                (streams.get(label) or (runs[-1] if runs else early)).other(content, label)
                continue
            streams[label] = _Run(label)
            runs.append(streams[label])
        streams[label].line(content)
    if not runs:
        if not early.errors and any(_ROW.match(_unlabel(line)[1]) for line in lines):
            early.errors.append(
                "its output has rows, and no line '# nThread …' before them that says how they were measured"
            )
        return [early.result(collective)]
    runs[0].adopt(early)
    _mark_apart(runs)
    return [run.result(collective) for run in runs]


def why(result: Result) -> str:
    """Return in one line why a run has no full result; nothing if it has one."""
    if result.errors:
        return "; ".join(result.errors[:2])
    if result.complete:
        return ""
    last = f"its output ends after {result.rows[-1].size} bytes" if result.rows else "its output has no results"
    return f"{last}; NCCL warned: {result.warnings[-1]}" if result.warnings else last


def _unlabel(line: str) -> tuple[str, str]:
    tagged = _TAGGED.match(line)
    rank = _TAG.search(tagged[1]) if tagged else None
    if tagged and rank:
        return str(int(rank[1] or rank[2])), line[tagged.end() :]
    for pattern in _LABELS:
        match = pattern.match(line)
        if match:
            return str(int(match[1])), line[match.end() :]
    return "", line


def _starts(line: str) -> bool:
    return bool(_VERSION.search(line) or re.match(r"#?\s*Collective test starting:", line) or _OPTIONS.match(line))


def _begins(line: str, run: _Run) -> bool:
    """Say whether this line begins another run than the one that is being read."""
    if not _starts(line):
        return False
    other = _Run("")
    other.head(line)
    if run.columns or run.errors or run.consequences:
        return bool(other.version or (run.options and (other.name or other.options)))
    # Several processes that run alone print the same at the same time.
    known = (other.version, run.version), (other.name, run.name), (other.options, run.options)
    return any(new and old and new != old for new, old in known)


def _glued(before: str, who: str, hosts: Set[str]) -> str:
    """Return what of the word before a debug line is the end of a row: -1p5-1:812:847 is root -1 and the node p5-1."""
    host = who.rsplit(":", 2)[0]
    if host in hosts:
        return ""
    for start in range(max(1, len(host) - _LONGEST_NAME), len(host)):
        if host[start:] in hosts:
            return host[:start]
    if before.strip() and len(before) < _PREAMBLE_WIDTH < len(before) + len(host):
        return host[: _PREAMBLE_WIDTH - len(before)]
    return ""


def _mark_apart(runs: list[_Run]) -> None:
    """Say so where each process ran the test by itself instead of all together: else only one prints a header."""
    begun = [run for run in runs if run.options]
    alone = [run for run in begun if len(run.ranks) <= run.copies * run.options["threads"] * run.options["gpus"]]
    count = max((len({run.label for run in alone}), *(run.copies for run in alone)), default=0)
    if count > 1 and all((run.name, run.options) == (alone[0].name, alone[0].options) for run in alone):
        problem = f"{count} processes each ran the test by themselves: "
        problem += "nccl-tests was built without MPI=1, or srun needs --mpi=pmix"
        for run in alone:
            run.errors.insert(0, problem)


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return math.nan


class _Run:
    """What has been read of one run."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.name = self.version = self.nccl = ""
        self.options: dict[str, Any] = {}
        self.copies = 0
        self.ranks: list[Rank] = []
        self.known: set[tuple[int, int]] = set()  # which of a group they are
        self.rows: list[Row] = []
        self.columns: list[str] = []
        self.pending = ""
        self.readable = True  # whether the columns are known
        self.average: float | None = None
        self.out_of_bounds: int | None = None
        self.errors: list[str] = []
        self.complaints: set[str] = set()  # those of the errors that do no harm to a run that is whole
        self.warnings: list[str] = []
        self.consequences: list[str] = []
        self.network = NetworkReader()

    def adopt(self, early: _Run) -> None:
        """Take over the lines before the first table."""
        self.errors[:0] = early.errors
        self.complaints |= early.complaints
        self.warnings[:0] = early.warnings
        self.consequences[:0] = early.consequences
        self.network.adopt(early.network)

    def debug(self, host: str, level: str, text: str) -> None:
        """Read a line of NCCL_DEBUG."""
        if level != "INFO":
            self.warnings.append(f"{host}: {text.strip()}")
        self.network.read(host, text)

    def other(self, line: str, label: str) -> None:
        """Read a line that belongs to no table: of another rank, of Slurm or of MPI."""
        self.network.version(line)
        text = " ".join(line.split())
        said = f"rank {label}: {text}" if label and label != self.label else text
        if _CONSEQUENCE.search(text):
            self.consequences.append(said)
        elif _FATAL.search(text):
            self.errors.append(said)
        elif _COMPLAINT.search(text):
            self.errors.append(said)
            self.complaints.add(said)

    def line(self, line: str) -> None:
        """Read a line of the process that prints the table."""
        for read in (self.head, self._device, self._foot):
            if read(line):
                return
        if not self.piece(line):
            self.other(line, self.label)

    def head(self, line: str) -> bool:
        """Read a line of the header."""
        version = _VERSION.search(line)
        if version:
            self.version, self.nccl = version[1], nccl_version(int(version[3]))
            return True
        match = re.match(r"#?\s*Collective test starting:\s*(\S+)", line)
        if match:
            self.name = match[1]
            return True
        match = _OPTIONS.match(line)
        if match:
            numbers = {key: value for key, value in match.groupdict().items() if key not in ("rest", "step_kind")}
            self.options = {key: int(value) for key, value in numbers.items()}
            self.copies += 1
            self.options["step_kind"] = match["step_kind"]
            for key, value in _LATER_OPTIONS.findall(match["rest"]):
                self.options[key.replace(" ", "_")] = int(value)
            return True
        match = re.match(r"#?\s*Reducing maxBytes to (\d{1,18}) due to memory limitation", line)
        if match:
            self.options["reduced_to"] = int(match[1])
        return bool(match)

    def _device(self, line: str) -> bool:
        match = _RANK.match(line)
        if match:
            rank, group, pid, device = (int(match[index] or 0) for index in (1, 2, 3, 5))
            if (rank, group) in self.known:
                self.ranks, self.known = [], set()  # the list of one that died before its first row
            self.known.add((rank, group))
            self.ranks.append(Rank(rank, group, pid, match[4], device, match[6], match[7].strip()))
        return bool(match)

    def _foot(self, line: str) -> bool:
        words = line.lstrip("# ").split()
        if words[:2] == ["bytes", "N"] and "busbw" in words:
            self.readable = False
            self.errors.append("its table has the columns of nccl-tests before 2.9; needed: a newer version")
            return True
        if words[:2] == ["size", "count"] and "busbw" in words:
            self.columns = [word for word in words if word != "timestamp"]
            return True
        match = re.match(r"#?\s*Out of bounds values\s*:\s*(\d{1,18})\b", line)
        if match:
            self.out_of_bounds = int(match[1])
            return True
        match = re.match(r"#?\s*Avg bus bandwidth\s*:\s*(\S+)\s*(FAILED)?", line)
        if match:
            self.average = _number(match[1])
            if match[2]:
                self.errors.append("the bandwidth is below NCCL_TESTS_MIN_BW")
            return True
        match = re.match(r"#\s*error:\s*(.*)", line)
        if match:
            self.errors.append(match[1].strip())
        return bool(match)

    def piece(self, text: str) -> bool:
        """Read a row, or the part of one that a line of NCCL's interrupts."""
        text = _TIMESTAMP.sub("", _INNER_LABEL.sub(" ", text))
        words = text.split()
        if len(words) > 2 and _COUNT.match(words[0]) and _COUNT.match(words[1]) and _TYPE.match(words[2]):
            self.pending = text
        elif self.pending and words and all(_NUMBER.match(word) or word == "N/A" for word in words):
            self.pending += " " + text
        else:
            return False
        row = self._row(self.pending.split())
        if row and self.readable:
            self.rows.append(row)
        if row or len(self.pending.split()) > _MOST_WORDS:
            self.pending = ""
        return True

    def _row(self, words: list[str]) -> Row | None:
        """Return the row that these words are; none while some are missing."""
        rest = words[3:]
        redop = rest.pop(0) if rest and rest[0].isalpha() else ""
        values = ["time", "algbw", "busbw", "#wrong"]
        leading, halves = ["size", "count", "type"], [values, values]
        if self.columns:
            starts = [index for index, name in enumerate(self.columns) if name in ("time", "cputime")]
            leading = self.columns[: starts[0]] if starts else []
            halves = [self.columns[a:b] for a, b in zip(starts, [*starts[1:], len(self.columns)])]
        has_root = "root" in leading if self.columns else len(rest) % 2 == 1
        root = int(rest.pop(0)) if has_root and rest and re.match(r"-?\d{1,18}\Z", rest[0]) else None
        if not halves or len(rest) < sum(len(half) for half in halves):
            return None
        found: list[Values] = []
        for half in halves:
            part, rest = dict(zip(half, rest)), rest[len(half) :]
            wrong = _number(part.get("#wrong", "N/A"))
            time = part.get("time", part.get("cputime", "nan"))
            algbw, busbw = _number(part.get("algbw", "nan")), _number(part.get("busbw", "nan"))
            found.append(Values(_number(time), algbw, busbw, int(wrong) if math.isfinite(wrong) else None))
        in_place = found[1] if len(found) > 1 else None
        return Row(int(words[0]), int(words[1]), words[2], redop, root, found[0], in_place)

    def result(self, collective: str) -> Result:
        """Return what was read."""
        complete = bool(self.rows) and self.average is not None
        harmless = self.complaints if complete else set()
        # What ended it first, then what may have, and last what says itself that it did not.
        errors = [error for error in self.errors if error not in harmless]
        ignored = [error for error in self.errors if error in harmless]
        errors.sort(key=lambda error: (error in self.complaints, bool(_IGNORED.search(error))))
        errors = errors or (self.consequences if self.average is None else [])
        if self.out_of_bounds:
            errors = [*errors, f"{self.out_of_bounds} results had wrong values: data was damaged on its way"]
        network = self.network.network()
        return Result(
            collective=collective_of(self.name) or collective_of(collective),
            version=self.version,
            nccl=self.nccl or network.nccl,
            label=self.label,
            options=self.options,
            ranks=sorted(self.ranks),
            rows=self.rows,
            cputime="cputime" in self.columns,
            average_busbw=self.average,
            out_of_bounds=self.out_of_bounds,
            complete=complete,
            errors=list(dict.fromkeys(errors))[:_MOST_MESSAGES],
            warnings=list(dict.fromkeys([*self.warnings, *ignored]))[:_MOST_MESSAGES],
            network=network,
        )
