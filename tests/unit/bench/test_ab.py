"""`bench ab`: who runs which arm when, what is told apart from drift, and in which words."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise, permutations
from typing import Any

import pytest

from fleetctl.bench import ab, ab_result, stats
from fleetctl.bench.ab import Cell, Point
from fleetctl.bench.results import result
from fleetctl.bench.samples import Failure, Run, Sample

from . import build

ARMS = (3, 4, 5)
IDS = [backend.id for backend in build.BACKENDS]


@pytest.mark.parametrize("arms", [2, 3, 4, 5])
def test_every_arm_comes_equally_often_in_every_round_and_after_every_other(arms: int) -> None:
    names = [str(n) for n in range(arms)]
    rounds = stats.crossover([f"u{n}" for n in range(2 * arms)], names)
    assert {tuple(sorted(Counter(one.values()).values())) for one in rounds} == {(2,) * arms}
    follows = Counter((before[unit], after[unit]) for before, after in pairwise(rounds) for unit in before)
    assert set(follows) == set(permutations(names, 2))
    assert len(set(follows.values())) == 1


def test_an_instance_runs_every_arm_once_a_pass_and_neighbours_run_different_ones() -> None:
    rounds = ab.rounds(IDS, ARMS, 2, seed=7)
    assert len(rounds) == 6
    for name in IDS:
        assert sorted(one[name] for one in rounds[:3]) == sorted(one[name] for one in rounds[3:]) == list(ARMS)
    assert len({rounds[0][name] for name in IDS[:3]}) == 3
    assert rounds == ab.rounds(IDS, ARMS, 2, seed=7)


def test_few_instances_go_round_several_times_so_that_there_are_pairs_enough() -> None:
    assert len(ab.rounds(IDS, ARMS, 0, seed=1)) == 3
    assert len(ab.rounds(IDS[:4], ARMS, 0, seed=1)) == 6
    assert len(ab.rounds(IDS[:1], ARMS, 0, seed=1)) == 3 * ab.PAIRS


def test_no_work_asks_for_more_output_than_was_said() -> None:
    assert {cell.name: cell.output for cell in ab.cells(5000, [10_000])} == {
        "S0": 80,
        "S1 stream": 300,
        "S1 whole": 300,
        "S5": 5000,
        "TTFT 10000": 1,
    }
    assert max(cell.output for cell in ab.cells(20, [])) == 20
    assert [cell.stream for cell in ab.cells(20, [])] == [True, True, False, True]


def difference(percent: float, low: float, high: float) -> stats.Difference:
    return stats.Difference(16, percent, low, high, 3.0)


@pytest.mark.parametrize(
    ("found", "is_rate", "words"),
    [
        (difference(10, 5, 15), True, "mtp 5 faster by 10.0 % (5.0 to 15.0)"),
        (difference(-20, -36, -10), True, "mtp 3 faster by 25.0 % (11.1 to 56.2)"),
        (difference(10, 5, 15), False, "mtp 3 faster by 10.0 % (5.0 to 15.0)"),
        (difference(-20, -36, -10), False, "mtp 5 faster by 25.0 % (11.1 to 56.2)"),
        (difference(1, -2, 4), True, "no difference shown (less than 4.0 %)"),
        (stats.Difference(3, 1.0, why="an interval needs 6 pairs, there are 3"), True, "not decided: an interval"),
    ],
)
def test_the_verdict_names_who_is_faster_by_how_much_or_that_nothing_is_shown(
    found: stats.Difference, is_rate: bool, words: str
) -> None:
    assert ab.verdict((3, 5), found, is_rate=is_rate).startswith(words)


def test_drift_is_the_rounds_and_no_arms() -> None:
    """Ten units: no multiple of the six orders, so an arm comes oftener early than late."""
    names = [f"u{n}" for n in range(10)]
    found = [
        Point(f"{name} {number // 3}", arm, number % 3, 0.1 * (number % 3) + 0.01 * len(name) + (arm == 5) * 0.05)
        for number, row in enumerate(ab.rounds(names, ARMS, 1, seed=1))
        for name, arm in row.items()
    ]
    rows = {row.arms: row.difference.percent for row in ab.compare(Cell("S1", 300), found, ARMS)}
    assert rows[3, 4] == pytest.approx(0, abs=1e-6)
    assert rows[3, 5] == rows[4, 5] == pytest.approx(100 * math.expm1(0.05))


def a_round(number: int, arms: dict[str, int], *, slower: int = 0, failed: str = "", drafts: int = 0) -> Run:
    """80 tokens in a second on every instance, 1.1 s on those of the arm `slower`."""
    samples: list[Sample] = []
    for place, backend in enumerate(build.BACKENDS):
        took = (1.1 if arms[backend.id] == slower else 1.0) * (1 + 0.001 * place + 0.0003 * ((place * number) % 5))
        for n in range(2):
            changes: dict[str, Any] = {"backend": backend.address, "home": backend.address, "cell": "S0"}
            if backend.id == failed:
                changes["failure"] = Failure.CUT
            at = float(2 * n)
            samples.append(
                build.sample(place * 10 + n, scheduled=at, sent=at, first=at + 0.1, last=at + took, **changes)
            )
    parameters = {"arms": arms, "all_arms": list(ARMS), "number": number, "rounds": 3, "tokens": 80, "lengths": []}
    run = build.run(
        samples, scenario="ab", parameters={**parameters, "times": 2, "in_force": 4, "experiment": "0123abcd"}
    )
    if run.end is not None:
        zero = {"vllm:spec_decode_num_drafts_total": 0.0, "vllm:spec_decode_num_draft_tokens_total": 0.0}
        run.end["counters_before"] = dict.fromkeys(arms, zero)
        run.end["counters_after"] = {
            name: {
                "vllm:spec_decode_num_drafts_total": 100.0,
                "vllm:spec_decode_num_draft_tokens_total": 100.0 * (drafts or arm),
                "vllm:spec_decode_num_accepted_tokens_total": 150.0,
            }
            for name, arm in arms.items()
        }
    return run


def all_rounds(**changes: Any) -> list[Run]:
    return [a_round(n, arms, **changes) for n, arms in enumerate(ab.rounds(IDS, ARMS, 1, seed=1), 1)]


def test_an_arm_that_is_slower_is_found_and_two_that_are_not_are_not() -> None:
    found = ab_result.analysis(all_rounds(slower=5))
    verdicts = {(row[1], row[2]): str(row[-1]) for row in found.tables[0].rows}
    assert verdicts["mtp 3", "mtp 5"].startswith("mtp 3 faster by 10.")
    assert verdicts["mtp 4", "mtp 5"].startswith("mtp 4 faster by 10.")
    assert verdicts["mtp 3", "mtp 4"].startswith("no difference shown")
    assert found.notes[0] == "faster somewhere and slower nowhere: mtp 3, mtp 4"
    assert found.verdict == "ok"
    assert any(note.startswith("mtp 3: 50.0% of draft tokens accepted, mean length 2.50") for note in found.notes)


def test_where_nothing_is_shown_what_is_in_force_stays() -> None:
    assert ab_result.analysis(all_rounds()).notes[0] == "no difference shown between any two: mtp 4 stays"


def test_a_round_that_is_missing_makes_a_part_and_compares_nothing() -> None:
    found = ab_result.analysis(all_rounds()[:2])
    assert found.partial == "2 of 3 rounds were measured whole"
    assert found.tables == []
    assert found.notes[0] == "no instance has run every arm: nothing can be compared"


def test_an_instance_whose_request_failed_in_one_round_is_in_no_pair() -> None:
    runs = all_rounds()
    runs[1] = a_round(2, ab.arms_of(runs[1]), failed=IDS[0])
    found = ab_result.analysis(runs)
    assert {row[8] for row in found.tables[0].rows} == {7}
    assert found.verdict == "failed"


def test_an_engine_that_drafts_another_length_than_its_arm_is_found() -> None:
    runs = all_rounds(drafts=4)
    check = next(one for one in ab_result.analysis(runs).checks if one.what.startswith("drafts as long"))
    assert check.verdict == "failed"
    assert "4.0 for" in check.seen
    alone = next(one for one in result(all_rounds()[0]).checks if one.what.startswith("drafts as long"))
    assert alone.verdict == "ok"
