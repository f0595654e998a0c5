"""A plan is a tree of operations; printing and executing are two walks over the same tree (design, promise 1).

Pure values. What an operation does is its action: a script, a job that outlives the connection, a wait for a
condition, or an edit of the balancer's peers.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePosixPath

from fleetctl.balancer.peers import Peer
from fleetctl.commands.script import Script
from fleetctl.errors import FleetctlError

STAMP = re.compile(r"\d{4}-\d{2}-\d{2}T\d{6}Z")  # of the folder that things are saved in: not what would run


class Verdict(Enum):
    PASS = "pass"
    PENDING = "pending"
    DEAD = "dead"


@dataclass(frozen=True)
class Judgement:
    """What one look at a waiting condition means, in words for the person who waits."""

    verdict: Verdict
    words: str


@dataclass(frozen=True)
class ApiKey:
    """Standard input is the fleet's key, resolved when the operation runs."""


@dataclass(frozen=True)
class OutputOf:
    """Standard input is what an earlier operation printed."""

    operation: str


Stdin = bytes | ApiKey | OutputOf


@dataclass(frozen=True)
class Run:
    """One script, seconds long at most `timeout`.

    `judge` says whether what it printed is good; when not, things are in `state` and `next_command` is what to do.
    """

    script: Script
    stdin: Stdin = b""
    timeout: float = 60
    judge: Callable[[str], Judgement] | None = None
    state: str | None = None
    next_command: str | None = None


@dataclass(frozen=True)
class Job:
    """Long work as the transient unit `unit` on the machine; found again and followed when the view is lost.

    It ends after `deadline` seconds at the latest. `folder` has its secrets and ends with it, however it ends.
    """

    unit: str
    script: Script
    progress: PurePosixPath
    deadline: float
    folder: str = ""


@dataclass(frozen=True)
class Way:
    """How one source lets the receiver in: `programs` and `allow` (whose standard input is the public key that `key`
    printed on the receiver) run on the source, and `revoke` when the transfer has ended."""

    key: Run
    programs: Run
    allow: Script
    revoke: Run


@dataclass(frozen=True)
class Copy:
    """Bring `what` (image, model) to the operation's machine as a job there, from `source` once that has it.

    `ways` has every machine that could serve; one of them takes over from a `source` that is lost or slow. `holders`
    have it from the start, `after` are the receivers that `source` serves first, and nobody serves more than `serves`
    at a time. `follow`: the job runs already, an earlier command started it. `origin`: whose content is the wanted one;
    any other source that has something else is replaced.
    """

    what: str
    job: Job
    source: int
    ways: Mapping[int, Way]
    holders: frozenset[int]
    after: tuple[int, ...] = ()
    serves: int = 1
    follow: bool = False
    origin: int | None = None


@dataclass(frozen=True)
class Wait:
    """Look with `script` until `judge` passes; dead fails at once, slow fails at `deadline` seconds.

    `late_is_fine`: there is nothing to see, so that waiting the whole time is all that can be done. `on_failure` prints
    the last words of what failed, and `explain` knows what is usually behind them, or None.
    """

    script: Script
    judge: Callable[[str], Judgement]
    deadline: float
    timeout: float = 75
    interval: float = 0.5
    on_failure: Script | None = None
    late_is_fine: bool = False
    explain: Callable[[str], str | None] | None = None


@dataclass(frozen=True)
class EditPeers:
    """Change the balancer's peers file by compare-and-swap and wait until the workers have loaded it.

    `configuration`: for an nginx without Lua, the files that hold the peers, `unit` to reload after writing them, and
    `applied` where their hashes are noted.
    """

    edit: Callable[[tuple[Peer, ...]], tuple[Peer, ...]]
    path: PurePosixPath
    state_url: str
    unit: str = ""
    applied: str = ""
    configuration: Callable[[tuple[Peer, ...]], bytes] | None = None


Action = Run | Job | Copy | Wait | EditPeers


@dataclass(frozen=True)
class Operation:
    """One planned change on one machine: `target` is `67` or `67/2` or `balancer`."""

    step: str
    machine: int
    target: str
    summary: str
    action: Action
    id: str = ""

    @property
    def detail(self) -> str:
        """The command, for -v."""
        match self.action:
            case Run(script=script) | Wait(script=script) | Job(script=script):
                return str(script)
            case Copy(job=job):
                return str(job.script)
            case EditPeers(path=path):
                return f"edit {path}"

    @property
    def starts(self) -> bool:
        """Whether an instance starts here."""
        return "/" in self.target and isinstance(self.action, Run) and self.action.script.name == "unit_start"

    @property
    def content(self) -> str:
        """A hash of what its script gets to write, but for times; empty for a secret, what an earlier operation prints,
        and releases, which say who does it and when."""
        match self.action:
            case Run(stdin=bytes() as text) if text and self.step not in ("release", "record", "leave"):
                return hashlib.sha256(STAMP.sub("", text.decode(errors="replace")).encode()).hexdigest()
            case _:
                return ""


class Status(str, Enum):
    DONE = "done"
    FAILED = "failed"
    NOT_REACHED = "not reached"


@dataclass(frozen=True)
class StepResult:
    """What became of one operation. `seconds` it took."""

    operation: Operation
    status: Status
    seconds: float
    error: FleetctlError | None = None


@dataclass(frozen=True)
class Group:
    """Operations and groups, one after the other or side by side."""

    name: str
    children: tuple[Node, ...] = ()
    parallel: bool = False

    def operations(self) -> Iterator[Operation]:
        for child in self.children:
            if isinstance(child, Operation):
                yield child
            else:
                yield from child.operations()

    def __bool__(self) -> bool:
        return any(True for _ in self.operations())


Node = Operation | Group


@dataclass(frozen=True)
class Plan:
    """What a command would do, why, and what it will not do. `notes` are facts worth reading before a yes."""

    command: str
    fleet: str
    root: Group
    notes: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    unreachable: dict[int, str] = field(default_factory=dict)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return tuple(self.root.operations())

    @property
    def id(self) -> str:
        """Names what would run and what it would write; the same desired and observed state give the same id."""
        lines = [
            STAMP.sub("", f"{op.step} {op.machine} {op.target} {op.summary} {op.detail} {op.content}")
            for op in self.operations
        ]
        return hashlib.sha256("\n".join([self.command, *lines]).encode()).hexdigest()[:10]


def sequence(name: str, *children: Node | None) -> Group:
    return Group(
        name,
        tuple(child for child in children if child is not None and (isinstance(child, Operation) or child)),
    )


def side_by_side(name: str, *children: Node | None) -> Group:
    return Group(name, sequence(name, *children).children, parallel=True)
