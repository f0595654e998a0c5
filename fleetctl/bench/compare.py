"""Two runs side by side: refused, with reasons, unless they did the same work in the same way. Pure.

What is compared (release, image, speculative tokens, engine flags, balancer) may differ; how it was measured may not.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fleetctl.bench import measures, stats, views
from fleetctl.bench.measures import Measure
from fleetctl.bench.samples import Run, Sample

FOREIGN_SHARE = 0.05
MEASURES: tuple[tuple[str, Measure, bool], ...] = (
    ("TTFT", measures.ttft, False),
    ("TPOT", measures.tpot, False),
    ("E2E", measures.latency, False),
    ("tok/s per user", measures.user_rate, True),
)


@dataclass(frozen=True)
class Row:
    """One measure of one cell. `first`, `second`: means over the pairs; seconds or tok/s."""

    cell: str
    measure: str
    first: float
    second: float
    difference: stats.Difference
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """`refused`: why these runs say nothing about each other; then there are no rows."""

    refused: list[str]
    subject: list[str]
    rows: list[Row]
    notes: list[str]


def compare(first: Run, second: Run) -> Comparison:
    """A against B, cell by cell, paired by instance where both ran on the same ones."""
    refused = unlike(first, second)
    subject = _subject(first, second)
    if refused:
        return Comparison(refused, subject, [], [])
    rows: list[Row] = []
    one, other = _work(first), _work(second)
    for cell, samples in one.items():
        for name, measure, more_is_better in MEASURES:
            row = _row(cell, name, measure, more_is_better, samples, other.get(cell, []))
            if row is not None:
                rows.append(row)
    notes = ["pairs are instances: requests to one instance are no independent runs of it"]
    if len(rows) > 1:
        chance = 1 - (1 - 0.05) ** len(rows)
        notes.append(
            f"{len(rows)} comparisons at 5 % each: one false alarm somewhere has a chance of up to {chance:.0%}"
        )
    if not subject:
        notes.append("nothing of the fleet differs between the two: an A/A run")
    blind = [label for label, run in (("A", first), ("B", second)) if (run.end or {}).get("foreign_requests") is None]
    if blind:
        notes.append(f"whether others used the fleet meanwhile could not be seen: {', '.join(blind)}")
    if tools := _tools(first, second):
        notes.append(f"measured with something else: {tools}")
    return Comparison([], subject, rows, notes)


def unlike(first: Run, second: Run) -> list[str]:
    """Why the two may not be compared; empty when they may."""
    a, b = first.header, second.header
    reasons = [
        f"{what}: {one!r} and {other!r}"
        for what, one, other in (
            ("other scenarios", a.scenario, b.scenario),
            ("other models", a.model, b.model),
            ("other seeds, so other prompts", a.seed, b.seed),
            ("other instances", [x.id for x in a.backends], [x.id for x in b.backends]),
            ("reached another way", a.url, b.url),
            ("another client", a.client.get("cpus"), b.client.get("cpus")),
        )
        if one != other
    ]
    if a.started and (a.fleet, a.started) == (b.fleet, b.started) and first.samples == second.samples:
        reasons.append("the same run twice")
    for name in sorted({*a.parameters, *b.parameters}):
        one, other = a.parameters.get(name), b.parameters.get(name)
        if one != other:
            reasons.append(f"parameter {name}: {one} and {other}")
    for label, run in (("A", first), ("B", second)):
        reasons += [f"{label} {problem}" for problem in _unfit(run)]
    if not reasons and first.cells() != second.cells():
        reasons.append(f"other cells: {first.cells()} and {second.cells()}")
    return reasons


def _unfit(run: Run) -> list[str]:
    problems = [f"is invalid: {reason}" for reason in run.invalid]
    if run.partial is not None:
        problems.append(f"is only a part: {run.partial}")
    failed = sum(sample.failed for sample in run.measured)
    if failed:
        problems.append(f"had {failed} failed requests of {len(run.measured)}: what is left is no fair sample")
    if not run.measured:
        problems.append("has no measured requests")
    pinned = [s for s in run.measured if s.ok and s.asked_tokens is not None]
    if other := sum(sample.completion_tokens != sample.asked_tokens for sample in pinned):
        problems.append(f"gave other lengths than asked: {other} of {len(pinned)} answers")
    foreign = (run.end or {}).get("foreign_requests") or 0
    if foreign > FOREIGN_SHARE * len(run.samples):
        problems.append(f"ran beside {foreign} foreign requests, more than {FOREIGN_SHARE:.0%} of its own")
    hit = views.hit_rate(run)
    if run.header.scenario == "longctx" and hit is not None and hit >= 0.01:
        problems.append(f"took {hit:.1%} of its prompts from the prefix cache")
    return problems


def _work(run: Run) -> dict[str, list[Sample]]:
    """Samples by what was done: the passes of a level are the same work."""
    found: dict[str, list[Sample]] = {}
    for cell in run.cells():
        found.setdefault(cell.partition(" pass ")[0], []).extend(run.of(cell))
    return found


def _subject(first: Run, second: Run) -> list[str]:
    """What is different about the fleet: the thing that is compared."""
    a, b = first.header, second.header
    found = [
        f"{what}: {one} -> {other}"
        for what, one, other in (
            ("release", (a.release or {}).get("number"), (b.release or {}).get("number")),
            ("image", a.image.get("content") or a.image, b.image.get("content") or b.image),
            ("speculative tokens", a.tokens, b.tokens),
            ("affinity", a.affinity, b.affinity),
            ("fleetctl", a.versions.get("fleetctl"), b.versions.get("fleetctl")),
        )
        if one != other
    ]
    flags = sorted({*a.engine, *b.engine})
    found += [
        f"--{flag}: {a.engine.get(flag)} -> {b.engine.get(flag)}"
        for flag in flags
        if a.engine.get(flag) != b.engine.get(flag)
    ]
    return found


def _tools(first: Run, second: Run) -> str:
    """What measured, where it differs: the client's computer and programs; fleetctl itself is in the subject."""
    found = []
    for one, other in ((first.header.versions, second.header.versions), (first.header.client, second.header.client)):
        names = sorted({*one, *other} - {"fleetctl"})
        found += [f"{n}: {one.get(n)} -> {other.get(n)}" for n in names if one.get(n) != other.get(n)]
    return ", ".join(found)


def _row(
    cell: str, name: str, measure: Measure, more_is_better: bool, first: Sequence[Sample], second: Sequence[Sample]
) -> Row | None:
    """None where the measure does not exist, as TTFT of answers in one piece."""
    one, other = _means(first, measure), _means(second, measure)
    both = [address for address in one if address in other]
    a, b = [one[address] for address in both], [other[address] for address in both]
    if not a:
        return None
    difference = stats.paired(a, b)
    verdict = difference.verdict(more_is_better=more_is_better)
    return Row(cell, name, statistics.fmean(a), statistics.fmean(b), difference, verdict)


def _means(samples: Sequence[Sample], measure: Measure) -> dict[str, float]:
    """By instance; only those with a value above zero, which ratios need."""
    means = {}
    for address, own in measures.by_backend(samples).items():
        values = measures.values(own, measure)
        if values and statistics.fmean(values) > 0:
            means[address] = statistics.fmean(values)
    return means
