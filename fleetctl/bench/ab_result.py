"""What all rounds of `bench ab` say together: checks, differences with their intervals, verdicts. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.bench import counters
from fleetctl.bench.ab import Row, arms_of, cells, compare, points
from fleetctl.bench.results import result
from fleetctl.bench.samples import Run
from fleetctl.bench.tables import FAILED, OK, UNKNOWN, WARN, Cell, Check, Result, Table, columns

WORST = (OK, UNKNOWN, WARN, FAILED)


def analysis(runs: Sequence[Run]) -> Result:
    """All rounds together; those that were cut short are left out."""
    whole = [run for run in runs if run.partial is None]
    found = Result("ab", invalid=[reason for run in runs for reason in run.invalid])
    parameters = runs[0].header.parameters
    arms = [int(arm) for arm in parameters["all_arms"]]
    found.checks = _checks(whole or runs)
    planned = int(parameters["rounds"])
    if len(whole) < planned:
        found.partial = f"{len(whole)} of {planned} rounds were measured whole"
    rows = [
        row
        for cell in cells(int(parameters["tokens"]), parameters["lengths"])
        for row in compare(cell, [point for run in whole for point in points(run, cell)], arms)
    ]
    found.tables = [_table(rows)] if rows else []
    found.notes = [*_notes(rows, arms, int(parameters["in_force"])), *_acceptance(whole, arms)]
    return found


def _table(rows: Sequence[Row]) -> Table:
    shape = columns("work | A | B | A tok/s or s:rate2 | B:rate2 | B-A %:rate | 95 % from:rate | to:rate | pairs:int")
    more = columns("detectable %:rate | verdict")
    lines: list[list[Cell]] = []
    for row in rows:
        d = row.difference
        figures = [row.first, row.second, d.percent, d.low, d.high, d.n, d.detectable]
        lines.append([row.cell, f"mtp {row.arms[0]}", f"mtp {row.arms[1]}", *figures, row.verdict])
    title = "arms beside each other: one instance under both is a pair, the round's own share taken out"
    return Table(title, (*shape, *more), lines)


def _notes(rows: Sequence[Row], arms: Sequence[int], in_force: int) -> list[str]:
    if not rows:
        return ["no instance has run every arm: nothing can be compared"]
    notes = []
    better = {arm: sum(row.faster == arm for row in rows) for arm in arms}
    worse = {arm: sum(row.faster is not None and arm in row.arms and row.faster != arm for row in rows) for arm in arms}
    ahead = [arm for arm in arms if better[arm] and not worse[arm]]
    if ahead:
        notes.append(f"faster somewhere and slower nowhere: {', '.join(f'mtp {arm}' for arm in ahead)}")
    elif not any(better.values()):
        stays = f": mtp {in_force} stays" if in_force in arms else ""
        notes.append(f"no difference shown between any two{stays}")
    else:
        notes.append("no arm is ahead everywhere: which one is better depends on the work")
    chance = 1 - (1 - 0.05) ** len(rows)
    notes.append(f"{len(rows)} comparisons at 5 % each: one false alarm somewhere has a chance of up to {chance:.0%}")
    return notes


def _acceptance(runs: Sequence[Run], arms: Sequence[int]) -> list[str]:
    """By arm, of the engines' own counters, over all kinds of work."""
    notes = []
    for arm in arms:
        own = [
            change
            for run in runs
            for name, change in counters.by_instance(run.end or {}).items()
            if arms_of(run).get(name) == arm
        ]
        seen = counters.acceptance(counters.total(own))
        if seen is not None:
            notes.append(f"mtp {arm}: {seen.rate:.1%} of draft tokens accepted, mean length {seen.length:.2f}")
    return notes


def _checks(runs: Sequence[Run]) -> list[Check]:
    """Those of every round as one line each, the worst of them speaking."""
    listed: dict[str, list[tuple[int, Check]]] = {}
    for run in runs:
        for check in result(run).checks:
            listed.setdefault(check.what, []).append((int(run.header.parameters["number"]), check))
    found = []
    for what, own in listed.items():
        number, worst = max(own, key=lambda pair: WORST.index(pair[1].verdict))
        seen = worst.seen if worst.verdict == OK else f"round {number}: {worst.seen}"
        found.append(Check(what, worst.verdict, worst.expected, seen, sum(check.n for _, check in own)))
    return found
