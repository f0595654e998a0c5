"""Every figure from samples whose truth is known."""

from __future__ import annotations

import pytest

from fleetctl.bench import counters, measures
from fleetctl.bench.measures import Window
from fleetctl.bench.results import result
from fleetctl.bench.samples import Failure, Sample
from tests.unit.bench.build import BACKENDS, run, sample


def test_latencies_count_from_when_a_request_was_due() -> None:
    late = sample(1, sent=1.5)
    assert measures.ttft(late) == pytest.approx(0.1)
    assert measures.ttfo(late) == pytest.approx(0.2)
    assert measures.latency(late) == pytest.approx(1.0)
    assert measures.tpot(late) == pytest.approx(0.9 / 99)
    assert measures.user_rate(late) == pytest.approx(100)
    assert measures.prefill_rate([late]) == pytest.approx(500)


def test_what_did_not_come_is_none_and_never_zero() -> None:
    nothing = Sample(1, "c", "s", 0.0, failure=Failure.CONNECT)
    for measure in (measures.ttft, measures.ttfo, measures.tpot, measures.user_rate):
        assert measure(nothing) is None
    assert measures.prefill_rate([nothing]) is None
    assert measures.values([nothing, sample(1)], measures.ttft) == [pytest.approx(0.1)]


def test_failed_requests_are_in_no_latency_and_in_the_failure_rate() -> None:
    samples = [sample(n) for n in range(9)] + [sample(9, failure=Failure.STATUS, status=502)]
    assert len(measures.values(samples, measures.ttft)) == 9
    assert measures.failures(samples) == {"status 502": 1}
    bound = measures.failure_rate(samples)
    assert bound is not None
    assert bound.value == 0.1


def test_tokens_are_counted_where_they_came_and_not_where_their_request_ended() -> None:
    one = sample(0)
    assert measures.tokens_within(one, Window(0.0, 2.0)) == 100
    assert measures.tokens_within(one, Window(0.0, 0.55)) == pytest.approx(50)
    assert measures.tokens_within(one, Window(5.0, 6.0)) == 0
    whole = sample(0, first=None, gaps=[], stream=False, sent=0.0)
    assert measures.tokens_within(whole, Window(0.5, 2.0)) == pytest.approx(50)


def test_the_steady_window_leaves_out_ramp_and_drain() -> None:
    samples = [sample(n, sent=n * 0.5, end=10.0 + n) for n in range(4)]
    window = measures.steady(samples, 4)
    assert window == Window(1.5, 10.0)
    assert measures.in_flight(samples, window) == pytest.approx(4)
    assert measures.steady(samples, 40) is None


def test_gaps_are_pooled_and_stalls_are_counted_by_request() -> None:
    samples = [sample(0, gaps=[0.1, 2.0, 1.5]), sample(1, gaps=[0.1])]
    assert sorted(measures.gaps(samples)) == [0.1, 0.1, 1.5, 2.0]
    assert measures.stalls(samples) == 1


def test_equal_requests_are_not_equal_work() -> None:
    samples = [sample(n, completion_tokens=900 if n == 0 else 100) for n in range(8)]
    uneven = measures.imbalance(samples, [one.address for one in BACKENDS])
    assert uneven is not None
    assert uneven.requests == 1
    assert uneven.tokens == pytest.approx(900 / 200)
    assert measures.imbalance([sample(0, backend=None)], ["a"]) is None


def test_a_short_answer_is_noticed_because_it_is_less_work() -> None:
    found = result(run([sample(n, completion_tokens=114 if n == 5 else 100) for n in range(64)]))
    check = next(one for one in found.checks if one.what == "output length as asked")
    assert check.verdict == "failed"
    assert "114 for 100" in check.seen


def test_an_overloaded_client_spoils_times_and_not_counts() -> None:
    spoiled = run()
    assert spoiled.end is not None
    spoiled.end["self_check"] = {"reasons": ["late"]}
    assert result(spoiled).verdict == "invalid"
    counted = run(scenario="distribution", parameters={"keys": 64})
    counted.end = spoiled.end
    assert result(counted).verdict == "ok"
    assert "not to be trusted: late" in result(counted).notes[0]


METRICS = """# HELP vllm:prefix_cache_hits_total x
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 5.0
vllm:prefix_cache_hits_total{engine="1",model_name="m"} 7.0
vllm:time_to_first_token_seconds_sum{engine="0"} 1.5e+01
vllm:time_to_first_token_seconds_bucket{engine="0",le="0.1"} 3.0
vllm:unknown_total 3.0
"""


def test_counters_are_summed_over_engines_and_absent_ones_are_not_zero() -> None:
    found = counters.parse(METRICS)
    assert found == {"vllm:prefix_cache_hits_total": 12.0, "vllm:time_to_first_token_seconds_sum": 15.0}
    assert counters.acceptance(found) is None
    assert counters.mean(found, counters.TTFT) is None


def test_an_engine_that_was_restarted_has_no_difference() -> None:
    before = {"69/0": {"a": 5.0}, "69/1": {"a": 1.0}}
    assert counters.change({"counters_before": before, "counters_after": {"69/0": {"a": 9.0}, "69/1": {"a": 2.0}}}) == {
        "a": 5.0
    }
    assert (
        counters.change({"counters_before": before, "counters_after": {"69/0": {"a": 1.0}, "69/1": {"a": 2.0}}}) is None
    )
    assert counters.change({"counters_before": before, "counters_after": {"69/0": {"a": 9.0}}}) is None
    assert counters.change({}) is None


def test_requests_of_the_balancer_are_those_that_went_to_a_backend() -> None:
    page = (
        'fleet_requests_total{backend="69/0",code="200",why="primary"} 5\n'
        'fleet_requests_total{backend="69/1",code="502",why="retry"} 2\n'
        'fleet_requests_total{backend="",code="401",why=""} 9\n'
        "fleet_ttfb_seconds_count 7\n"
    )
    assert counters.balancer_requests(page) == 7
    assert counters.balancer_requests("fleet_ttfb_seconds_count 0\n") == 0
    assert counters.balancer_requests("<html>") is None
