"""A run of `fleetctl bench` for people: while it runs, and what it found."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from fleetctl.cli.output import Voice, table
from fleetctl.errors import visible

if TYPE_CHECKING:
    from fleetctl.bench.compare import Comparison
    from fleetctl.bench.load import Load
    from fleetctl.bench.scenarios import Scenario
    from fleetctl.bench.tables import Column, Result

BAR = 20  # characters
PROGRESS_SECONDS = 10.0  # between lines where standard error is no terminal


class Progress:
    """One line on standard error: rewritten on a terminal, a new one every ten seconds elsewhere. With a bar where it
    is known how much there is to do."""

    def __init__(self, voice: Voice, scenario: Scenario) -> None:
        self.voice = voice
        from fleetctl.bench.progress import share

        self.scenario = scenario
        self._share = share
        self.live = not voice.quiet and sys.stderr.isatty()
        self._last = 0.0
        self._longest = 0

    def __call__(self, load: Load) -> None:
        now = load.now()
        done = len(load.samples)
        bar = _bar(self._share(self.scenario, load.measured, load.begun, now))
        text = f"{now:6.0f} s  {bar}{load.cell:<16} {done} done, {load.in_flight} in flight, {load.errors} failed"
        if self.live:
            self._longest = max(self._longest, len(text))
            sys.stderr.write(f"\r{text:<{self._longest}}")
            sys.stderr.flush()
        elif now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self.voice.line(text)

    def end(self) -> None:
        if self.live and self._longest:
            sys.stderr.write("\r" + " " * self._longest + "\r")


def _bar(done: float | None) -> str:
    full = 0 if done is None else round(BAR * done)
    return "" if done is None else f"[{'#' * full}{'.' * (BAR - full)}] {done:4.0%}  "


def result_text(found: Result) -> str:
    """Verdict, checks, tables, notes."""
    lines = [f"{found.scenario}: {found.verdict.upper()}"]
    lines += [f"  ! INVALID, the client was the bottleneck: {reason}" for reason in found.invalid]
    lines += [f"  ! partial: {found.partial}"] if found.partial else []
    head = ("CHECK", "VERDICT", "EXPECTED", "SEEN", "N", "PROVES")
    rows = [(c.what, c.verdict, c.expected, c.seen, str(c.n), c.bound) for c in found.checks]
    lines += ["", table(head, rows, state_column=1)]
    for one in found.tables:
        shown = [[_cell(column, value) for column, value in zip(one.columns, row, strict=True)] for row in one.rows]
        names = [_title(column) for column in one.columns]
        lines += ["", one.title, table(names, shown)]
    lines += ["", *map(visible, found.notes)] if found.notes else []
    return "\n".join(lines)


def _title(column: Column) -> str:
    return f"{column.name}{column.suffix}"


def _cell(column: Column, value: Any) -> str:
    """A dash for what was not measured, or not often enough."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else column.text(value)


def comparison_text(found: Comparison) -> str:
    lines = [f"differs: {what}" for what in found.subject]
    if found.refused:
        return "\n".join(["these runs cannot be compared:", *(f"  {why}" for why in found.refused), *lines])
    head = ("CELL", "MEASURE", "A", "B", "B-A %", "95 % FROM", "TO", "DETECTABLE %", "PAIRS", "VERDICT")
    rows = []
    for row in found.rows:
        difference = row.difference
        figures = (difference.percent, difference.low, difference.high, difference.detectable)
        shown = ["-" if figure is None else f"{figure:+.1f}" for figure in figures]
        unit = 1.0 if row.measure.startswith("tok") else 1000.0
        means = [f"{row.first * unit:.1f}", f"{row.second * unit:.1f}"]
        rows.append([row.cell, row.measure, *means, *shown, str(difference.n), row.verdict])
    return "\n".join([*lines, "", table(head, rows), "", "times in ms", *found.notes])
