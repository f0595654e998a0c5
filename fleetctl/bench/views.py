"""A run cut as its scenario means it: levels of users, windows, phases, what a kill did. Pure; for tables and plots."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fleetctl.bench import counters, measures
from fleetctl.bench.measures import Window
from fleetctl.bench.samples import Run, Sample


def run_name(run: Run, address: str | None) -> str:
    return next((one.id for one in run.header.backends if one.address == address), address or "?")


def users_of(run: Run, cell: str) -> int:
    event = next((one for one in run.events if one.get("what") == "cell" and one.get("cell") == cell), {})
    return int(event.get("users", 1))


@dataclass(frozen=True)
class Level:
    """One number of users over all passes. `single`: tok/s of each pass."""

    users: int
    samples: tuple[Sample, ...]
    single: tuple[float, ...]

    @property
    def rate(self) -> float | None:
        return statistics.fmean(self.single) if self.single else None


def levels(run: Run) -> list[Level]:
    """Of a scaling run, by number of users."""
    cells: dict[int, list[str]] = {}
    for cell in run.cells():
        cells.setdefault(users_of(run, cell), []).append(cell)
    found = []
    for users, own in sorted(cells.items()):
        single = [measures.throughput(run.of(cell), measures.steady(run.of(cell), users)) for cell in own]
        samples = tuple(sample for cell in own for sample in run.of(cell))
        found.append(Level(users, samples, tuple(rate for rate in single if rate is not None)))
    return found


def knee(found: Sequence[Level]) -> Level | None:
    """The fewest users that give 90 % of the highest throughput: more only wait longer."""
    measured = [level for level in found if level.rate is not None]
    most = max((level.rate or 0 for level in measured), default=0)
    return next((level for level in measured if (level.rate or 0) >= 0.9 * most), None)


def phases(run: Run) -> dict[str, dict[str, list[Sample]]]:
    """Small requests of a mixed run: {same|other: {apart|during: samples}}. What overlaps an edge is in neither."""
    large = [s for s in run.measured if s.cell == "large" and s.sent is not None]
    spans = [(s.sent or 0.0, s.first if s.first is not None else s.end or 0.0) for s in large]
    found: dict[str, dict[str, list[Sample]]] = {}
    for group in ("same", "other"):
        apart: list[Sample] = []
        during: list[Sample] = []
        for sample in run.of(group):
            end = sample.end if sample.end is not None else sample.scheduled
            if any(begin <= sample.scheduled <= over for begin, over in spans):
                during.append(sample)
            elif not any(sample.scheduled <= begin <= end for begin, _ in spans):
                apart.append(sample)
        found[group] = {"apart": apart, "during": during}
    return found


@dataclass(frozen=True)
class Slice:
    """One window of a soak: requests that were due in it, seconds of the run."""

    window: Window
    samples: tuple[Sample, ...]


def slices(run: Run) -> list[Slice]:
    """A soak's windows, the last one whole or left out."""
    start = next((float(one["at_zero"]) for one in run.events if "at_zero" in one), 0.0)
    length = float(run.header.parameters["window"])
    planned = float(run.header.parameters["seconds"])
    seen = max((sample.scheduled for sample in run.measured), default=start) - start
    whole = int((planned if run.partial is None else seen) // length)
    found = []
    for number in range(whole):
        window = Window(start + number * length, start + (number + 1) * length)
        own = tuple(s for s in run.measured if window.start <= s.scheduled < window.end)
        found.append(Slice(window, own))
    return found


@dataclass(frozen=True)
class Recovery:
    """After the kill, in seconds. `recovered`: until the last request that failed was due, 0 when none did.

    `answered`: until the first request due after the kill was answered by another backend. `back`: until the killed
    instance answered again, None when it did not. `late`: those of `failed` that it did not hold: they were due after
    it was dead. `sessions`: how many were asked after that, `lost`: of how many the last request failed.
    """

    failed: int
    recovered: float
    answered: float | None
    back: float | None
    late: int = 0
    sessions: int = 0
    lost: int = 0


def recovery(run: Run) -> Recovery | None:
    """None when nothing was killed."""
    event = next((one for one in run.events if one.get("what") == "killing"), None)
    if event is None:
        return None
    at, victim = float(event["at"]), event["backend"]
    own = [s for s in run.of("its sessions") if s.end is not None and s.end >= at]
    failed = [s for s in own if s.failed]
    last = max((s.scheduled for s in failed), default=at)
    taken = [s.end - at for s in own if s.ok and s.backend not in (None, victim) and s.scheduled >= at and s.end]
    again = [s.scheduled - at for s in own if s.ok and s.backend == victim and s.scheduled > at + 0.5]
    dead = next((float(one["at"]) for one in run.events if one.get("what") == "killed"), at)
    after = {s.session: s for s in sorted(own, key=lambda s: s.scheduled) if s.scheduled > dead}
    return Recovery(
        len(failed),
        max(0.0, last - at),
        min(taken, default=None),
        min(again, default=None),
        late=sum(s.scheduled > dead for s in failed),
        sessions=len(after),
        lost=sum(s.failed for s in after.values()),
    )


def hit_rate(run: Run) -> float | None:
    """Share of prompt tokens that came from a prefix cache, by the engines' counters, else by the answers' usage."""
    change = counters.change(run.end or {})
    if change is not None and change.get(counters.QUERIES):
        return change.get(counters.HITS, 0.0) / change[counters.QUERIES]
    told = [s for s in run.measured if s.cached_tokens is not None and s.prompt_tokens]
    return sum(s.cached_tokens or 0 for s in told) / sum(s.prompt_tokens or 0 for s in told) if told else None
