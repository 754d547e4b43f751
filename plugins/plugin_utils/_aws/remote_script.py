# Copyright: Contributors to the pcluster.postboot project
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One script on many nodes: what is run, where, and what is answered, whatever brings the script to a node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ansible_collections.pcluster.postboot.plugins.plugin_utils._aws.errors import code_of, some

DELIVERY = 600  # seconds in which a node has to begin
LATE = 300  # seconds after what has begun should have ended
GONE_EVERY = 60.0  # seconds between two looks at whether the nodes still exist
QUIET, SLOWEST = 12.0, 60.0  # what has not ended for some time is looked at after a 12th of it again
PATIENCE = 1800.0  # seconds in which calls may go wrong in passing
_PASSING = ("Throttl", "TooManyRequests", "RequestLimitExceeded", "InternalServer", "ServiceUnavailable", "Timeout")
_PASSING_HERE = ("Timeout", "ConnectionClosed", "EndpointConnection", "ProxyConnection", "HTTPClient", "Incomplete")


class Node(NamedTuple):
    name: str
    instance_id: str
    region: str
    cluster: str
    kind: str  # head, login or compute
    group: str = ""  # its queue and instance type
    target: str = ""  # what Session Manager knows a node by that EC2 does not know


class Answer(NamedTuple):
    state: str  # success, failed, unreachable, again: it never had it, and may be sent it once more
    why: str = ""  # of what is no success; empty where the output tells
    output: str = ""


Answers = dict[Node, Answer]


class Script(NamedTuple):
    """What is run, what people see of it in the console, and how many seconds it may take."""

    text: str
    comment: str
    seconds: int
    enough: Callable[[str], bool] = lambda output: False  # whether the beginning of an output is all that is needed

    @property
    def too_long(self) -> str:
        return f"not done within {self.seconds} s (fleet_timeout)"


class Carrier(Protocol):
    """Brings a script to nodes, and knows where it has ended. A failed call is a CallError of one line."""

    notes: list[str]

    @property
    def sending(self) -> bool:
        """Whether it is unknown now who was sent it."""

    @property
    def running(self) -> list[Node]:
        """Where it has not ended."""

    @property
    def since(self) -> dict[Node, float]:
        """Where it has not ended, and when it was sent there."""

    @property
    def ids(self) -> Mapping[Node, str]:
        """What AWS knows the sending to each node by."""

    @property
    def batch(self) -> Mapping[str, int]:
        """Nodes at a time in regions that do not take as many as usual."""

    def silent(self, nodes: Iterable[Node]) -> Answers:
        """Return the nodes that cannot be reached."""

    def send(self, nodes: Sequence[Node]) -> tuple[Answers, list[Node]]:
        """Send it to nodes of one region. Return those that do not get it, and those that may later."""

    def poll(self) -> Answers:
        """Return where it has ended since the last call."""

    def forget(self, why: str) -> Answers:
        """Return what is known of the nodes where it goes on unobserved."""


class Patience:
    """Bears calls that go wrong in passing, for some time in each region."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: dict[str, float] = {}  # since when a region's calls go wrong

    def went_well(self, region: str) -> None:
        self._wrong.pop(region, None)

    def bears(self, error: Exception, region: str) -> bool:
        """Say whether a call may go well next time. boto3 has tried several times already."""
        code, kind = code_of(error), type(error).__name__
        if not (any(word in code for word in _PASSING) or (not code and any(word in kind for word in _PASSING_HERE))):
            return False
        return self._clock() - self._wrong.setdefault(region, self._clock()) < PATIENCE


def named(nodes: Iterable[Node]) -> str:
    return some((node.name for node in nodes), 3)
