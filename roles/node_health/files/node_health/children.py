# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Work that may never end, such as a question to a file system that is dead, in a child of its own.

A child that cannot be ended is left to itself and remembered: as long as it is there, no other child asks the same.
So there is one child at most for each question, however long the hang lasts.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Sequence
from typing import Callable

from .look import Look

ENDS_WITHIN = 0.5  # seconds that killed children have to end; one that waits within the kernel does not


def started(process: int) -> str:
    """Return when a process was started, in the kernel's ticks: with its number that names it. Nothing if it ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as stream:
            fields = stream.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def hold(look: Look, question: str, process: int) -> None:
    """Remember a process that cannot be ended, also where this look does not come to its end."""
    begun = started(process)
    if begun:
        look.remembered("stuck")[question] = [process, begun, look.now]
        look.save()


def held(look: Look, question: str) -> str:
    """Return why a question may not be asked: since when a child waits for the answer. Nothing if none waits."""
    process, begun, since = look.remembered("stuck").get(question, (0, "", 0.0))
    if not process or started(process) != begun:
        look.remembered("stuck").pop(question, None)
        return ""
    return f"no answer for {look.now - since:.0f} s (process {process})"


def ask(look: Look, questions: Sequence[str], work: Callable[[str], str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return what `work` answers to each question, on one line, and why there is no answer to others.

    One child answers all. Where it hangs, each question that is left has a child of its own, all at the same time: so
    that any number of dead file systems takes twice the patience.
    """
    hangs = {question: why for question in questions for why in [held(look, question)] if why}
    left = [question for question in questions if question not in hangs]
    answers = _answers(look, [left], work) if left else {}
    answers.update(_answers(look, [[question] for question in left[len(answers) + 1 :]], work))
    silent = f"no answer within {look.patience:g} s"
    hangs.update({question: silent for question in left if question not in answers})
    return answers, hangs


def _answers(look: Look, groups: Sequence[list[str]], work: Callable[[str], str]) -> dict[str, str]:
    """Return what children answer, each of which has one group of questions; then they are ended."""
    answers: dict[str, str] = {}
    begun: dict[int, list[str]] = {}
    pipes = []
    try:
        for group in groups:
            child, pipe = _begin(group, work)
            begun[child] = group
            pipes.append(pipe)
        end = time.monotonic() + look.patience
        for group, pipe in zip(groups, pipes):
            answers.update(zip(group, _read(pipe, len(group), max(0.0, end - time.monotonic()))))
    finally:
        for pipe in pipes:
            os.close(pipe)
        for child in _end(list(begun)):
            for question in [one for one in begun[child] if one not in answers][:1]:
                hold(look, question, child)
    return answers


def _begin(questions: Sequence[str], work: Callable[[str], str]) -> tuple[int, int]:
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.close(reading)
        # A child that outlives this process must not hold its standard output open.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        for question in questions:
            os.write(writing, f"{work(question)}\n".encode())
        code = 0
    finally:
        os._exit(code)


def _read(pipe: int, count: int, patience: float) -> list[str]:
    """Return the answers that come, each within its time."""
    data = b""
    while data.count(b"\n") < count:
        ready = select.select([pipe], [], [], patience)[0]
        part = os.read(pipe, 65536) if ready else b""
        if not part:
            break
        data += part
    return [line.decode("utf-8", "replace") for line in data.split(b"\n")[:-1]]


def _end(begun: list[int]) -> list[int]:
    """End children; return those that could not be ended, as no process can that waits within the kernel."""
    for child in begun:
        os.kill(child, signal.SIGKILL)
    left, end = begun, time.monotonic() + ENDS_WITHIN
    while True:
        left = [child for child in left if not os.waitpid(child, os.WNOHANG)[0]]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(0.005)
