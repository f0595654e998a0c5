"""Prometheus text with exactly the names, buckets and order of the capture in metrics.tsv."""

from __future__ import annotations

import os
import resource
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path

Labels = str


@dataclass
class Histogram:
    """Counts per bucket (not cumulative) and the sum."""

    counts: list[int]
    sum: float = 0.0


@dataclass
class Family:
    """One metric name with all its series, keyed by rendered label text (`a="1",b="2"`)."""

    name: str
    kind: str
    base: dict[str, str]
    bounds: list[str]
    help: str
    created: bool
    edges: list[float] = field(default_factory=list)
    values: dict[Labels, float] = field(default_factory=dict)
    histograms: dict[Labels, Histogram] = field(default_factory=dict)

    def labels(self, extra: dict[str, str]) -> Labels:
        return ",".join(f'{key}="{value}"' for key, value in sorted({**self.base, **extra}.items()))

    def declare(self, extra: dict[str, str]) -> Labels:
        """The series exists from now on, at zero until something is counted."""
        key = self.labels(extra)
        if self.bounds or self.kind == "summary":
            self.histograms.setdefault(key, Histogram([0] * max(1, len(self.bounds))))
        else:
            self.values.setdefault(key, 0.0)
        return key


class Metrics:
    """The engine's counters. `frozen` makes /metrics answer what it last answered (the hang fault)."""

    def __init__(self, model: str, draft_tokens: int, cache: dict[str, str]) -> None:
        self.started = time.time()
        self.families: dict[str, Family] = {}
        self.draft_tokens = draft_tokens
        self._last = ""
        for line in Path(__file__).with_name("metrics.tsv").read_text().splitlines()[1:]:
            name, kind, base, bounds, series, text = line.split("\t")
            if kind == "spec":
                if not draft_tokens:
                    continue
                kind = "counter"
            labels = {"engine": "0"} if "e" in base else {}
            if "m" in base:
                labels["model_name"] = model
            edges = bounds.split(",") if bounds != "-" else []
            family = Family(name, kind.rstrip("-"), labels, edges, text, not kind.endswith("-") and kind != "gauge")
            family.edges = [float(edge) for edge in edges]
            self.families[name] = family
            for one in series.split(";") if series else []:
                family.declare(_parse(one) if one != "." else {})
        info = self.families["vllm:cache_config_info"]
        known = _parse(next(iter(info.values)))
        info.values = {info.labels({**known, **cache}): 1.0}
        for position in range(draft_tokens):
            self.add("vllm:spec_decode_num_accepted_tokens_per_pos_total", 0, position=str(position))
        self.families["python_info"].values = dict.fromkeys(self.families["python_info"].values, 1.0)
        self.set("vllm:engine_sleep_state", 1, sleep_state="awake")

    def add(self, name: str, amount: float, **extra: str) -> None:
        family = self.families[name]
        key = family.declare(extra)
        family.values[key] += amount

    def set(self, name: str, value: float, **extra: str) -> None:
        family = self.families[name]
        family.values[family.declare(extra)] = value

    def observe(self, name: str, value: float, **extra: str) -> None:
        family = self.families[name]
        histogram = family.histograms[family.declare(extra)]
        histogram.counts[bisect_left(family.edges, value) if family.edges else 0] += 1
        histogram.sum += value

    def render(self, frozen: bool = False) -> str:
        if frozen and self._last:
            return self._last
        self._process()
        lines: list[str] = []
        for family in self.families.values():
            lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.kind}"]
            lines += _samples(family)
            if family.created:
                name = family.name.removesuffix("_total") if family.kind == "counter" else family.name
                lines += [f"# HELP {name}_created {family.help}", f"# TYPE {name}_created gauge"]
                lines += [_sample(f"{name}_created", key, self.started) for key in _series(family)]
        self._last = "\n".join(lines) + "\n"
        return self._last

    def _process(self) -> None:
        pages = Path("/proc/self/statm").read_text().split()
        size = resource.getpagesize()
        times = os.times()
        self.set("process_virtual_memory_bytes", int(pages[0]) * size)
        self.set("process_resident_memory_bytes", int(pages[1]) * size)
        self.set("process_start_time_seconds", self.started)
        self.set("process_cpu_seconds_total", round(times.user + times.system, 2))
        self.set("process_open_fds", len(list(Path("/proc/self/fd").iterdir())))
        self.set("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _parse(text: str) -> dict[str, str]:
    """Label text to a dictionary; the capture has no quote or comma inside a value."""
    return dict(pair.rstrip('"').split('="', 1) for pair in text.split('",'))


def _series(family: Family) -> list[Labels]:
    return list(family.histograms if family.bounds or family.kind == "summary" else family.values)


def _sample(name: str, labels: Labels, value: float) -> str:
    return f"{name}{{{labels}}} {float(value)!r}" if labels else f"{name} {float(value)!r}"


def _samples(family: Family) -> list[str]:
    lines = [_sample(family.name, key, value) for key, value in family.values.items()]
    for key, histogram in family.histograms.items():
        total = 0
        for bound, count in zip(family.bounds, histogram.counts, strict=False):
            total += count
            labels = ",".join(sorted([*filter(None, key.split(",")), f'le="{bound}"']))
            lines.append(_sample(f"{family.name}_bucket", labels, total))
        lines.append(_sample(f"{family.name}_count", key, sum(histogram.counts)))
        lines.append(_sample(f"{family.name}_sum", key, histogram.sum))
    return lines
