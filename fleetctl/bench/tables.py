"""The form of every result: checks with what they prove, tables with units. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleetctl.bench import measures, stats
from fleetctl.bench.measures import Window
from fleetctl.bench.samples import Sample

Cell = float | int | str | None
OK, FAILED, UNKNOWN, WARN = "ok", "failed", "unknown", "warn"


@dataclass(frozen=True)
class Check:
    """`bound`: what n requests prove at 95 % confidence."""

    what: str
    verdict: str
    expected: str
    seen: str
    n: int
    bound: str = ""


FORMS: dict[str, Callable[[float], str]] = {
    "ms": lambda v: f"{1000 * v:.0f}" if v >= 0.1 else f"{1000 * v:.1f}",
    "s": lambda v: f"{v:.2f}",
    "%": lambda v: f"{100 * v:.1f}",
    "x": lambda v: f"{v:.2f}",
    "rate": lambda v: f"{v:.1f}",
    "rate2": lambda v: f"{v:.2f}",
    "rate3": lambda v: f"{v:.3f}",
}


@dataclass(frozen=True)
class Column:
    """`unit`: ms and % are printed from seconds and shares; s, x, rate, int and text as they are."""

    name: str
    unit: str = "text"

    @property
    def suffix(self) -> str:
        """What follows the name in a head of columns."""
        return {"ms": " ms", "s": " s", "%": " %"}.get(self.unit, "")

    def text(self, value: float) -> str:
        return FORMS.get(self.unit, str)(value)


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: list[list[Cell]]

    def document(self) -> dict[str, Any]:
        names = [column.name for column in self.columns]
        return {"title": self.title, "rows": [dict(zip(names, row, strict=True)) for row in self.rows]}


@dataclass
class Result:
    """`invalid`: the numbers are the client's own; `partial`: the run was cut short, its numbers are valid."""

    scenario: str
    checks: list[Check] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)
    partial: str | None = None

    @property
    def verdict(self) -> str:
        if self.invalid:
            return "invalid"
        if any(check.verdict == FAILED for check in self.checks):
            return FAILED
        return "partial" if self.partial else OK

    def document(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "verdict": self.verdict,
            "invalid": self.invalid,
            "partial": self.partial,
            "checks": [check.__dict__ for check in self.checks],
            "tables": [table.document() for table in self.tables],
            "notes": self.notes,
        }


def columns(text: str) -> tuple[Column, ...]:
    """`cell | n:int | TTFT p50:ms` as columns."""
    pairs = [part.strip().partition(":") for part in text.split("|")]
    return tuple(Column(name, unit or "text") for name, _, unit in pairs)


LOAD = columns(
    "cell | n:int | failed:int | tok/s:rate | in flight:rate | tokens:int | TTFT p50:ms | TTFT p95:ms | TTFO p50:ms"
    " | TPOT p50:ms | ICL p99:ms | E2E p50:ms | E2E p95:ms | E2E p99:ms | E2E max:ms"
)


def load_row(cell: str, samples: Sequence[Sample], window: Window | None) -> list[Cell]:
    """One row of figures; a percentile that n does not carry is None, and the maximum stands beside it."""

    def at(measure: measures.Measure, percent: float) -> float | None:
        return stats.quantile(measures.values(samples, measure), percent).value

    tokens = [sample.completion_tokens for sample in samples if sample.ok and sample.completion_tokens is not None]
    latencies = measures.values(samples, measures.latency)
    return [
        cell,
        len(samples),
        sum(sample.failed for sample in samples),
        measures.throughput(samples, window),
        measures.in_flight(samples, window) if window else None,
        round(statistics.fmean(tokens)) if tokens else None,
        at(measures.ttft, 50),
        at(measures.ttft, 95),
        at(measures.ttfo, 50),
        at(measures.tpot, 50),
        stats.quantile(measures.gaps(samples), 99).value,
        at(measures.latency, 50),
        at(measures.latency, 95),
        at(measures.latency, 99),
        max(latencies, default=None),
    ]
