"""How fast something goes and how long it will still take. Pure: the clock is given."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

HEARTBEAT = 5.0  # seconds between two lines that say what is waited for
WINDOW = 15.0  # seconds that the rate is taken over


@dataclass(frozen=True)
class Progress:
    """Of one job: bytes done and in all (None: not known), bytes a second, seconds left."""

    done: int
    total: int
    rate: float | None
    left: float | None
    words: str = ""

    def __str__(self) -> str:
        share = 100 * self.done / self.total if self.total else 100.0
        parts = [f"{share:.0f} % of {size(self.total)}"]
        if self.rate is not None:
            parts.append(f"{size(int(self.rate))}/s")
        if self.left is not None:
            parts.append(f"{duration(self.left)} left")
        return ", ".join([self.words, *parts] if self.words else parts)


@dataclass
class Meter:
    """Fed with `add(now, done)`, both only growing. What was there at the first call counts as done, not as speed."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    moved: float | None = None  # when the last byte came

    def add(self, now: float, done: int) -> None:
        if not self.samples or done != self.samples[-1][1]:
            self.moved = now
        self.samples.append((now, done))
        while len(self.samples) > 2 and now - self.samples[1][0] >= WINDOW:
            self.samples.popleft()

    @property
    def seconds(self) -> float:
        """What the rate is taken over."""
        return self.samples[-1][0] - self.samples[0][0] if self.samples else 0.0

    @property
    def still(self) -> float:
        """Seconds since the last byte came."""
        return self.samples[-1][0] - self.moved if self.samples and self.moved is not None else 0.0

    @property
    def rate(self) -> float | None:
        """Bytes a second, None until there is a second to measure."""
        if self.seconds < 1:
            return None
        return max(0.0, (self.samples[-1][1] - self.samples[0][1]) / self.seconds)

    def progress(self, total: int, words: str = "") -> Progress:
        done = self.samples[-1][1] if self.samples else 0
        rate = self.rate
        left = (total - done) / rate if rate else None
        return Progress(done, total, rate, left, words)


def size(count: int) -> str:
    """`1.5 GiB`, `300 MiB`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def duration(seconds: float) -> str:
    """`40 s`, `3 min 20 s`, `2 h 5 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
