"""Plots as SVG text: lines, bars and dots with axes. Pure. No library for four shapes (docs/decisions/load-engine.md).

Colours are those of Okabe and Ito, which colour-blind people tell apart; every series also has its own dash. The
text keeps the reader's own font, so Chinese labels need nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from fleetctl.bench import measures, stats, views
from fleetctl.bench.samples import Run

WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 64, 56
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 4", "12 4")


@dataclass(frozen=True)
class Series:
    """Points by x. `spread`: for each point its lower and upper end, or nothing."""

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Axis:
    """A straight or logarithmic axis from `low` to `high`."""

    label: str
    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """0 at the low end, 1 at the high one."""
        if self.log:
            return (math.log(value) - math.log(self.low)) / ((math.log(self.high) - math.log(self.low)) or 1)
        return (value - self.low) / ((self.high - self.low) or 1)

    def ticks(self) -> list[float]:
        if self.log:
            return [2.0**n for n in range(math.floor(math.log2(self.low)), math.ceil(math.log2(self.high)) + 1)]
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step - 1e-9)
        return [step * n for n in range(first, math.floor(self.high / step + 1e-9) + 1)]


def lines(title: str, x: str, y: str, series: Sequence[Series], *, log_x: bool = False) -> str:
    """A line a series, with a whisker where a point has a spread. Empty text when there is not one point."""
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    tops = [y for _, y in points] + [high for one in series for _, high in one.spread]
    across = Axis(x, min(x for x, _ in points), max(x for x, _ in points), log_x)
    up = Axis(y, 0.0, max(tops) * 1.05 or 1.0)
    parts = [_frame(title, across, up)]
    for number, one in enumerate(series):
        colour, dash = COLOURS[number % len(COLOURS)], DASHES[number % len(DASHES)]
        spots = [(_x(across.place(px)), _y(up.place(py))) for px, py in one.points]
        way = " ".join(f"{px:.1f},{py:.1f}" for px, py in spots)
        parts.append(
            f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        for (px, py), ends in zip(spots, one.spread or ((),) * len(spots), strict=False):
            parts.append(f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>')
            if ends:
                low, high = _y(up.place(ends[0])), _y(up.place(ends[1]))
                parts.append(_line(px, low, px, high, colour))
        parts.append(_legend(number, one.name, colour, dash))
    return _svg(parts)


def bars(title: str, y: str, labels: Sequence[str], heights: Sequence[float], band: tuple[float, float] | None) -> str:
    """A bar a label; `band`: the range that is normal, drawn behind them."""
    if not heights:
        return ""
    top = max([*heights, band[1] if band else 0]) * 1.05 or 1.0
    across, up = Axis("", 0, len(labels)), Axis(y, 0.0, top)
    parts = [_frame(title, None, up)]
    if band is not None:
        low, high = _y(up.place(band[0])), _y(up.place(band[1]))
        parts.append(
            f'<rect x="{LEFT}" y="{high:.1f}" width="{WIDTH - LEFT - RIGHT}" height="{low - high:.1f}" '
            'fill="#000" opacity=".08"/>'
        )
    slot = (WIDTH - LEFT - RIGHT) / len(labels)
    for number, (label, height) in enumerate(zip(labels, heights, strict=True)):
        left, high = _x(across.place(number)) + slot * 0.15, _y(up.place(height))
        parts.append(
            f'<rect x="{left:.1f}" y="{high:.1f}" width="{slot * 0.7:.1f}" height="{_y(0) - high:.1f}" '
            f'fill="{COLOURS[0]}"><title>{escape(label)}: {height:g}</title></rect>'
        )
        parts.append(_text(left + slot * 0.35, HEIGHT - BOTTOM + 16, label, "middle", 11))
    return _svg(parts)


def plots(run: Run) -> dict[str, str]:
    """The plots of a run by name, such as `scaling`."""
    makers = {
        "distribution": _distribution,
        "scaling": _scaling,
        "instance": _scaling,
        "soak": _soak,
        "mixed": _mixed,
    }
    maker = makers.get(run.header.scenario)
    found = maker(run) if maker is not None and run.measured else {}
    return {name: text for name, text in found.items() if text}


def _distribution(run: Run) -> dict[str, str]:
    own = measures.by_backend(sample for sample in run.measured if sample.ok)
    counts = [len(own.get(one.address, [])) for one in run.header.backends]
    n, cells = sum(counts), max(1, len(counts))
    # A cell of a fair hash is binomial; this is where 95 of 100 of its bars end.
    half = 1.96 * math.sqrt(n / cells * (1 - 1 / cells))
    band = (max(0.0, n / cells - half), n / cells + half)
    title = f"{n} sessions over {cells} backends; grey: where a fair hash ends in 95 of 100 bars"
    return {"distribution": bars(title, "sessions", [one.id for one in run.header.backends], counts, band)}


def _scaling(run: Run) -> dict[str, str]:
    levels = [level for level in views.levels(run) if level.rate is not None]
    rates = Series(
        "seen",
        tuple((float(level.users), level.rate or 0.0) for level in levels),
        tuple((min(level.single), max(level.single)) for level in levels),
    )
    series = [rates]
    if levels:
        base = (levels[0].rate or 0.0) / levels[0].users
        top = max(level.rate or 0.0 for level in levels)
        straight = [(float(level.users), base * level.users) for level in levels if base * level.users <= 1.5 * top]
        series.append(Series("as if every user were alone", tuple(straight)))
    waits = []
    for name, measure in (("TTFT", measures.ttft), ("E2E", measures.latency)):
        for percent in (50, 95):
            points = []
            for level in levels:
                value = stats.quantile(measures.values(level.samples, measure), percent).value
                if value is not None:
                    points.append((float(level.users), 1000 * value))
            waits.append(Series(f"{name} p{percent}", tuple(points)))
    name = run.header.scenario
    return {
        name: lines("throughput; whiskers: least and most of the passes", "users", "tok/s", series, log_x=True),
        f"{name}-latency": lines("latencies at that concurrency", "users", "ms", waits, log_x=True),
    }


def _soak(run: Run) -> dict[str, str]:
    parts = views.slices(run)
    begin = parts[0].window.start if parts else 0.0

    def middle(part: views.Slice) -> float:
        return part.window.end - part.window.seconds / 2 - begin

    rate = [(middle(part), measures.throughput(run.measured, part.window) or 0.0) for part in parts]
    waits = []
    for percent in (50, 95):
        found = [(middle(p), stats.quantile(measures.values(p.samples, measures.ttft), percent).value) for p in parts]
        waits.append(Series(f"TTFT p{percent}", tuple((at, 1000 * v) for at, v in found if v is not None)))
    return {
        "soak": lines("output of every window", "seconds", "tok/s", [Series("tok/s", tuple(rate))]),
        "soak-latency": lines("time to the first token", "seconds", "ms", waits),
    }


def _mixed(run: Run) -> dict[str, str]:
    series = []
    for group in ("same", "other"):
        own = [(s.scheduled, measures.ttft(s)) for s in run.of(group) if s.ok]
        series.append(Series(f"{group} instance", tuple((at, 1000 * v) for at, v in sorted(own) if v is not None)))
    return {"mixed": lines("small requests beside long prompts", "seconds", "TTFT, ms", series)}


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _round_step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    if rough <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _frame(title: str, across: Axis | None, up: Axis) -> str:
    parts = [_text(LEFT, 22, title, "start", 14)]
    for value in up.ticks():
        y = _y(up.place(value))
        parts.append(_line(LEFT, y, WIDTH - RIGHT, y, "#ddd"))
        parts.append(_text(LEFT - 8, y + 4, f"{value:g}", "end", 11))
    parts.append(
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2:.0f}) rotate(-90)" text-anchor="middle" '
        f'font-size="12">{escape(up.label)}</text>'
    )
    if across is not None:
        for value in across.ticks():
            if -1e-9 <= across.place(value) <= 1 + 1e-9:
                parts.append(_text(_x(across.place(value)), HEIGHT - BOTTOM + 16, f"{value:g}", "middle", 11))
        parts.append(_text(_x(0.5), HEIGHT - 12, across.label, "middle", 12))
    parts.append(_line(LEFT, _y(0), WIDTH - RIGHT, _y(0), "#444"))
    return "".join(parts)


def _legend(number: int, name: str, colour: str, dash: str) -> str:
    left = LEFT + number * 160
    mark = f'<line x1="{left}" y1="42" x2="{left + 24}" y2="42" stroke="{colour}" stroke-width="2" '
    return f'{mark}stroke-dasharray="{dash}"/>' + _text(left + 30, 46, name, "start", 12)


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, size: int) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _svg(parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
    return f'{head}font-family="sans-serif" fill="#222">' + "".join(parts) + "</svg>\n"
