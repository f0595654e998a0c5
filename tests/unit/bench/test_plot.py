"""Plots are well-formed, within their frame, and show what they are given."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.bench import plot
from fleetctl.bench.plot import Series
from tests.unit.bench.build import run

numbers = st.floats(0.01, 1e6)
points = st.lists(st.tuples(numbers, numbers), min_size=1, max_size=12).map(tuple)


def inside(text: str) -> None:
    ElementTree.fromstring(text)
    for x, y in re.findall(r'cx="([-0-9.]+)" cy="([-0-9.]+)"', text):
        assert plot.LEFT - 1 <= float(x) <= plot.WIDTH - plot.RIGHT + 1
        assert plot.TOP - 1 <= float(y) <= plot.HEIGHT - plot.BOTTOM + 1


@given(points, st.booleans())
def test_lines_stay_within_their_frame(some: tuple[tuple[float, float], ...], log: bool) -> None:
    inside(plot.lines("title", "x", "y", [Series("one", some), Series("two", some[:1])], log_x=log))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20))
def test_bars_stay_within_their_frame(heights: list[int]) -> None:
    text = plot.bars("title", "y", [f"69/{n}" for n in range(len(heights))], heights, (1.0, 9.0))
    inside(text)
    assert text.count("<title>") == len(heights)


def test_labels_are_escaped_and_chinese_stays_as_it_is() -> None:
    text = plot.lines("吞吐 <tok/s> & 延迟", "并发", "ms", [Series("<a>", ((1.0, 2.0),))])
    ElementTree.fromstring(text)
    assert "吞吐 &lt;tok/s&gt; &amp; 延迟" in text


def test_nothing_to_show_is_no_plot() -> None:
    assert plot.lines("title", "x", "y", [Series("one", ())]) == ""
    assert plot.bars("title", "y", [], [], None) == ""
    assert plot.plots(run()) == {}


def test_series_are_told_apart_by_dash_and_not_by_colour_alone() -> None:
    text = plot.lines("t", "x", "y", [Series(str(n), ((1.0, 1.0), (2.0, 2.0))) for n in range(4)])
    dashes = re.findall(r'<polyline[^>]*stroke-dasharray="([^"]*)"', text)
    assert len(set(dashes)) == 4
