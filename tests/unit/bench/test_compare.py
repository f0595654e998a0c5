"""Which runs may stand beside each other, and what is said of those that may."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetctl.bench.compare import compare
from fleetctl.bench.samples import Failure, Run
from tests.unit.bench.build import BACKENDS, run, sample


def test_two_runs_of_the_same_fleet_show_no_difference_and_are_called_a_a() -> None:
    found = compare(run(seed=1), run(seed=2))
    assert found.refused == []
    assert {row.measure for row in found.rows} == {"TTFT", "TPOT", "E2E", "tok/s per user"}
    assert all(row.verdict.startswith("no difference shown") for row in found.rows)
    assert any("A/A" in note for note in found.notes)
    assert any("false alarm" in note for note in found.notes)


def test_a_faster_release_is_found_paired_by_instance_and_named() -> None:
    found = compare(run(seed=1, tokens=4), run(seed=2, faster=1.15, tokens=3))
    assert found.subject == ["speculative tokens: 4 -> 3"]
    assert {row.verdict for row in found.rows} == {"B better"}
    assert all(row.difference.n == len(BACKENDS) for row in found.rows)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"scenario": "soak"}, "other scenarios"),
        ({"model": "n"}, "other models"),
        ({"seed": 2}, "other seeds"),
        ({"backends": BACKENDS[:4]}, "other instances"),
        ({"url": "http://127.0.0.1:1"}, "reached another way"),
        ({"client": {"cpus": 64}}, "another client"),
        ({"parameters": {"requests": 64, "tokens": 300}}, "parameter tokens: 100 and 300"),
        ({"parameters": {"tokens": 100}}, "parameter requests: 64 and None"),
    ],
)
def test_unlike_runs_are_refused_with_the_reason(changes: dict[str, Any], words: str) -> None:
    second = run(seed=2)
    second.header = replace(second.header, **changes)
    found = compare(run(seed=1), second)
    assert found.rows == []
    assert any(words in reason for reason in found.refused)


def broken(kind: str) -> Run:
    one = run(seed=2)
    assert one.end is not None
    if kind == "killed":
        one.end = None
    elif kind == "partial":
        one.end |= {"partial": True, "reason": "interrupted"}
    elif kind == "invalid":
        one.end["self_check"] = {"reasons": ["80% of a core was used here"]}
    elif kind == "foreign":
        one.end["foreign_requests"] = 10
    elif kind == "failed":
        one.samples[3] = sample(3, failure=Failure.CUT)
    else:
        one.samples = []
    return one


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("killed", "is only a part: it was killed"),
        ("partial", "is only a part: interrupted"),
        ("invalid", "is invalid: 80% of a core"),
        ("foreign", "beside 10 foreign requests"),
        ("failed", "had 1 failed requests of 64"),
        ("empty", "has no measured requests"),
    ],
)
def test_runs_that_are_not_whole_or_not_clean_are_refused_on_either_side(kind: str, words: str) -> None:
    assert any(reason.startswith("B ") and words in reason for reason in compare(run(), broken(kind)).refused)
    assert any(reason.startswith("A ") and words in reason for reason in compare(broken(kind), run()).refused)


def test_what_is_compared_may_differ() -> None:
    second = run(seed=2, image={"reference": "image:b"}, engine={"max-num-seqs": 64}, release={"number": 2})
    found = compare(run(seed=1), second)
    assert found.refused == []
    assert len(found.subject) == 3
    assert "--max-num-seqs: 32 -> 64" in found.subject


def test_answers_in_one_piece_have_no_ttft_to_compare() -> None:
    whole = [sample(n, first=None, answer=None, gaps=[], stream=False) for n in range(64)]
    found = compare(run(list(whole)), run(list(whole)))
    assert {row.measure for row in found.rows} == {"E2E", "tok/s per user"}


def test_the_passes_of_a_level_are_compared_together() -> None:
    both = []
    for seed in (1, 2):
        one = run(seed=seed)
        for number, own in enumerate(one.samples):
            own.cell = f"c=4 pass {1 + number // 32}"
        both.append(one)
    found = compare(*both)
    assert {row.cell for row in found.rows} == {"c=4"}


def test_a_run_beside_itself_is_refused() -> None:
    found = compare(run(seed=1, started="2026-01-02T03:04:05Z"), run(seed=1, started="2026-01-02T03:04:05Z"))
    assert found.rows == []
    assert "the same run twice" in found.refused


def test_answers_of_another_length_than_asked_are_other_work() -> None:
    short = run(seed=2)
    short.samples[5] = replace(short.samples[5], completion_tokens=60)
    found = compare(run(seed=1), short)
    assert found.rows == []
    assert found.refused == ["B gave other lengths than asked: 1 of 64 answers"]


def test_what_could_not_be_seen_or_was_measured_with_something_else_is_noted() -> None:
    first, second = run(seed=1), run(seed=2)
    assert first.end is not None
    first.end["foreign_requests"] = None
    second.header.versions = {"fleetctl": "1", "aiohttp": "4"}
    found = compare(first, second)
    assert found.refused == []
    assert "whether others used the fleet meanwhile could not be seen: A" in found.notes
    assert "measured with something else: aiohttp: None -> 4" in found.notes
