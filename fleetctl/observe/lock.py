"""What the lock's machine says of the lock, as values. Pure.

Every age is by the lock machine's own clock since its boot; clocks of two machines are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.commands.fleet_lock import STALE, TICKS


@dataclass(frozen=True)
class Process:
    """One process as no other ever was: `kernel` names one boot of one machine and one table of processes there.

    `started`: clock ticks from that boot to the process's start. Empty strings where the system does not say.
    """

    kernel: str
    pid: int
    started: str


@dataclass(frozen=True)
class Holder:
    """Who holds the lock. `since` is RFC 3339 by the owner's clock; `held` and `heartbeat` are seconds ago."""

    token: str
    owner: str
    host: str
    process: Process
    command: str
    since: str
    held: float
    heartbeat: float

    @property
    def stale(self) -> bool:
        """Nobody has heard of the owner for so long that the next command takes over."""
        return not 0 <= self.heartbeat <= STALE

    @property
    def who(self) -> str:
        return f"{self.owner}@{self.host}"

    def __str__(self) -> str:
        return (
            f"{self.who} (pid {self.process.pid}) since {self.since}, {duration(self.held)} ago, for "
            f"`fleetctl {self.command}`; last heartbeat {duration(self.heartbeat)} ago"
        )


@dataclass(frozen=True)
class LockState:
    """One answer. `freed`: seconds since it was let go, None while it is held and where it never was since the boot.

    `broken`: who broke it, empty when its owner let go.
    """

    answer: str
    holder: Holder | None = None
    freed: float | None = None
    broken: str = ""

    @property
    def unknown(self) -> bool:
        """Nobody has held it since the machine booted."""
        return self.holder is None and self.freed is None


def parse(text: str) -> LockState:
    """Of what `fleet_lock` prints. Lines that make no sense count as not there: the lock is the script's business."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def ago(name: str) -> float | None:
        now, then = values.get("now", ""), values.get(name, "")
        return (int(now) - int(then)) / TICKS if now.isdigit() and then.isdigit() else None

    holder = None
    if values.get("token"):
        pid = values.get("pid", "")
        holder = Holder(
            token=values["token"],
            owner=values.get("owner", "unknown"),
            host=values.get("host", "unknown"),
            process=Process(values.get("kernel", ""), int(pid) if pid.isdigit() else 0, values.get("started", "")),
            command=values.get("command", ""),
            since=values.get("since", ""),
            held=ago("taken") or 0.0,
            heartbeat=ago("beat") or 0.0,
        )
    return LockState(values.get("answer", ""), holder, ago("freed"), values.get("broken", ""))


def duration(seconds: float) -> str:
    """`8 s`, `2 min 10 s`, `1 h 5 min`, for people."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
