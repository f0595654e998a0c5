"""Whole runs of every scenario, small, against the fake server; and what is said of them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fleetctl.bench import perform as perform_module
from fleetctl.bench import scenarios, views
from fleetctl.bench.load import Limits, Timeouts
from fleetctl.bench.perform import Eyes
from fleetctl.bench.plot import plots
from fleetctl.bench.progress import share
from fleetctl.bench.results import result
from fleetctl.bench.rounds import Round
from fleetctl.bench.samples import Backend, Run, read
from fleetctl.bench.tables import Result
from fleetctl.errors import CommandError, UsageError
from tests.unit.bench.fake import KEY, Fake, performed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def check(found: Result, what: str) -> Any:
    return next(one for one in found.checks if one.what.startswith(what))


def perfect(run: Run) -> Result:
    """What is said when the box is quiet: a loaded test box may mark its client as late, and rightly."""
    if run.end is not None:
        run.end["self_check"]["reasons"] = []
    return result(run)


def test_distribution_counts_every_session_once_and_its_sum_is_n(path: Path) -> None:
    run = performed(Fake(), scenarios.Distribution(keys=60), path)
    found = perfect(run)
    assert found.verdict == "ok"
    rows = found.tables[0].rows
    assert rows[-1][2] == sum(int(row[2] or 0) for row in rows[:-1]) == 60
    assert sum(float(row[3] or 0) for row in rows[:-1]) == pytest.approx(1)
    assert len({sample.session for sample in run.measured}) == 60
    assert "failure rate below 4.87%" in check(found, "every request answered").bound
    assert KEY not in path.read_text()


def test_the_default_number_of_sessions_grows_with_the_fleet() -> None:
    assert scenarios.Distribution().settled(Fake(backends=4).target()).keys == 300
    assert scenarios.Distribution().settled(Fake(backends=32).target()).keys == 640


def test_a_balancer_that_does_not_hash_as_computed_is_found_at_once(path: Path) -> None:
    fake = Fake()
    fake.answers = lambda session: fake.peers[len(session) % 2].address  # type: ignore[method-assign]
    found = perfect(performed(fake, scenarios.Distribution(keys=60), path))
    assert found.verdict == "failed"
    assert "such as 69/" in check(found, "answered by the computed").seen
    assert check(found, "every backend reached").verdict == "failed"
    assert check(found, "spread like").verdict == "failed"


def test_affinity_sees_every_session_several_times(path: Path) -> None:
    found = perfect(performed(Fake(), scenarios.Affinity(sessions=10, serial=2, at_once=3), path))
    assert found.verdict == "ok"
    stay = check(found, "a session stays")
    assert (stay.n, stay.seen) == (10, "0 moved")
    assert "below 25.9%" in stay.bound
    assert [row[2] for row in found.tables[0].rows] == [20, 30]


def test_a_session_that_moves_is_found(path: Path) -> None:
    fake, turn = Fake(), iter(range(10_000))
    fake.answers = lambda session: fake.peers[next(turn) % 4].address  # type: ignore[method-assign]
    found = perfect(performed(fake, scenarios.Affinity(sessions=10), path))
    assert check(found, "a session stays").seen == "10 moved"


def test_all_of_an_instances_load_lands_on_it(path: Path) -> None:
    scenario = scenarios.Instance(backend="69/2", users=(1, 3), tokens=8, seconds=0.1)
    run = performed(Fake(), scenario, path)
    assert {sample.backend for sample in run.samples} == {"10.0.0.69:8002"}
    found = perfect(run)
    assert found.verdict == "ok"
    one, three = found.tables[0].rows
    assert (one[1], three[1]) >= (10, 30)
    assert float(three[4] or 0) == pytest.approx(3, abs=0.3)
    assert one[7] is None, "a p95 of ten requests would be their maximum"


def test_warm_up_is_asked_and_not_measured(path: Path) -> None:
    run = performed(Fake(), scenarios.Sequential(requests=6, tokens=4), path)
    assert sum(sample.warmup for sample in run.samples) == 4
    assert len(run.measured) == 6
    assert len({sample.backend for sample in run.samples if sample.warmup}) == 4


def test_prompts_are_fresh_from_their_first_words_on(path: Path) -> None:
    fake = Fake()
    performed(fake, scenarios.Sequential(requests=20, tokens=2), path)
    prompts = [body["messages"][0]["content"] for _, body in fake.asked]
    marks = [prompt.split("]")[0] for prompt in prompts]
    assert len(set(marks)) == len(prompts) == 24
    again = Fake()
    performed(again, scenarios.Sequential(requests=20, tokens=2), path.with_name("again.jsonl"))
    others = [body["messages"][0]["content"] for _, body in again.asked]
    assert not {mark for mark in marks if any(other.startswith(mark) for other in others)}
    # Behind the mark the work is the same: the same seed. The first four warm up side by side, in whatever order.
    one, two = ([text.split("]")[1] for text in asked] for asked in (prompts, others))
    assert (sorted(one[:4]), one[4:]) == (sorted(two[:4]), two[4:])


def test_scaling_goes_up_and_down_and_fills_its_users(path: Path) -> None:
    scenario = scenarios.Scaling(users=(1, 4, 8), tokens=4, seconds=0.1, passes=2)
    run = performed(Fake(), scenario, path)
    order = ["c=1 pass 1", "c=4 pass 1", "c=8 pass 1", "c=8 pass 2", "c=4 pass 2", "c=1 pass 2"]
    assert run.cells() == order
    assert all(len(run.of(cell)) >= 10 * users for cell, users in zip(order, (1, 4, 8, 8, 4, 1), strict=True))
    levels = views.levels(run)
    assert [level.users for level in levels] == [1, 4, 8]
    assert all(len(level.single) == 2 for level in levels)
    assert set(plots(run)) == {"scaling", "scaling-latency"}


def test_users_of_a_scaling_run_are_spread_evenly(path: Path) -> None:
    run = performed(Fake(), scenarios.Scaling(users=(4,), tokens=2, seconds=0.1, passes=1), path)
    backends = [sample.backend for sample in run.measured]
    assert max(backends.count(one) for one in set(backends)) - min(backends.count(one) for one in set(backends)) <= 1


def test_mixed_tells_the_instance_that_reads_from_the_others(path: Path) -> None:
    """A server that makes small requests of the reading instance wait while it reads."""
    fake = Fake(first_after=0.002)
    reading: set[str] = set()
    answer = fake._answer

    async def held(request: Any, body: dict[str, Any], session: str, fault: str) -> Any:
        home = fake.home(session)
        if len(body["messages"][0]["content"]) > 20_000:
            reading.add(home)
            await asyncio.sleep(0.8)
            reading.discard(home)
        while home in reading:
            await asyncio.sleep(0.01)
        return await answer(request, body, session, fault)

    fake._answer = held  # type: ignore[method-assign]
    scenario = scenarios.Mixed(prompt=8000, times=2, rate=20, tokens=2, apart=0.8)
    run = performed(fake, scenario, path)
    found = perfect(run)
    same, _, other, _ = found.tables[0].rows
    assert float(same[7] or 0) > 2
    assert float(same[7] or 0) > 1.5 * float(other[7] or 0)
    assert int(same[3] or 0) >= 6
    large = run.of("large")
    assert all(abs((sample.prompt_tokens or 0) / 8000 - 1) < 0.01 for sample in large)


def test_a_soak_says_what_was_offered_and_achieved_in_every_window(path: Path) -> None:
    run = performed(Fake(), scenarios.Soak(rate=40, seconds=3, window=0.5, tokens=4), path)
    found = perfect(run)
    rows = found.tables[0].rows
    assert len(rows) == 6
    assert sum(int(row[1] or 0) for row in rows) == len(run.measured)
    assert sum(float(row[2] or 0) for row in rows) / 6 == pytest.approx(40, rel=0.4)
    assert check(found, "TTFT does not rise").n == 6


def test_long_prompts_have_the_length_that_was_asked_for(path: Path) -> None:
    run = performed(Fake(), scenarios.LongContext(lengths=(3000, 12_000), times=2, tokens=2), path)
    found = perfect(run)
    assert check(found, "prompt length, 12000").verdict == "ok"
    assert [row[0] for row in found.tables[0].rows] == ["3000 tokens", "12000 tokens"]
    assert found.tables[0].rows[0][3] is None, "no median of two"


def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_asked() -> None:
    target = Fake().target(longest=32_768)
    with pytest.raises(UsageError, match="does not fit into max-model-len 32768"):
        scenarios.LongContext(lengths=(32_768,)).settled(target)


def test_failover_measures_from_the_kill_until_its_sessions_are_answered(path: Path) -> None:
    fake = Fake(every=0.0)
    victim = "10.0.0.69:8001"

    def kill(backend: Backend) -> None:
        """For 0.4 s its sessions get a 502, then others answer them; after 1 s it is back."""
        assert backend.address == victim
        fake.fault, fake.when = "500", lambda body, session: fake.home(session) == victim
        threading.Timer(0.4, lambda: (setattr(fake, "fault", ""), fake.dead.add(victim))).start()
        threading.Timer(1.0, fake.dead.clear).start()

    scenario = scenarios.Failover(backend="69/1", rate=20, before=0.5, after=6, tokens=2)
    run = performed(fake, scenario, path, eyes=Eyes(kill=kill), limits=Limits(errors=1000))
    found = perfect(run)
    seen = views.recovery(run)
    assert seen is not None
    assert seen.failed >= 4
    assert seen.recovered > 0.2
    assert seen.answered is not None
    assert seen.answered > seen.recovered - 0.1
    assert seen.back is not None
    assert seen.back > seen.answered
    assert check(found, "sessions of other instances").verdict == "ok"
    assert check(found, "every request answered").verdict == "warn"
    with pytest.raises(UsageError, match="--backend"):
        scenarios.Failover().settled(fake.target())


def test_where_nothing_can_be_computed_load_is_not_aimed_and_counts_still_hold(path: Path) -> None:
    changes = {"changes": {"home": lambda session: None}}
    found = perfect(performed(Fake(), scenarios.Distribution(keys=60), path, **changes))
    assert check(found, "answered by the computed").verdict == "unknown"
    assert check(found, "every backend reached").verdict == "ok"
    with pytest.raises(CommandError, match="no load can be aimed"):
        performed(
            Fake(), scenarios.Instance(users=(1,), tokens=1), path.with_name("b.jsonl"), changes=changes["changes"]
        )
    broken = read(path.with_name("b.jsonl"))
    assert "no load can be aimed" in (broken.partial or "")


def test_foreign_traffic_is_counted_and_said(path: Path) -> None:
    fake = Fake()
    extra = iter((100, 100 + 300 + 17))
    eyes = Eyes(in_flight=lambda: fake.in_flight + 3, requests=lambda: next(extra))
    run = performed(fake, scenarios.Distribution(keys=300), path, eyes=eyes)
    assert run.end is not None
    assert run.end["foreign_requests"] == 17
    said = check(perfect(run), "no foreign traffic")
    assert said.verdict == "warn"
    assert said.seen.startswith("17 requests")
    blind = performed(fake, scenarios.Distribution(keys=60), path.with_name("b.jsonl"))
    assert check(perfect(blind), "no foreign traffic").verdict == "unknown"


def test_a_look_that_failed_does_not_end_the_watch_over_foreign_traffic(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perform_module, "WATCH_SECONDS", 0.05)
    looks = iter([0, None, None])
    run = performed(
        Fake(), scenarios.Soak(rate=10, seconds=2, window=1, tokens=2), path, eyes=Eyes(lambda: next(looks, 900))
    )
    seen = [event["in_flight"] for event in run.events if event["what"] == "foreign"]
    assert max(seen) > 800
    assert check(perfect(run), "no foreign traffic").verdict == "warn"


def test_where_nothing_can_be_seen_nobody_goes_on_looking(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform_module, "WATCH_SECONDS", 0.01)
    looks: list[None] = []
    performed(
        Fake(), scenarios.Soak(rate=10, seconds=1, window=1, tokens=2), path, eyes=Eyes(lambda: looks.append(None))
    )
    assert len(looks) == perform_module.BLIND


def test_a_run_stops_when_others_come_in_numbers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform_module, "WATCH_SECONDS", 0.05)
    # Once is a moment in which two clocks disagree; twice in a row is traffic.
    looks = iter([500, 0, 500, 0, 500, 500])
    soak = scenarios.Soak(rate=10, seconds=20, window=1, tokens=2)
    run = performed(Fake(), soak, path, eyes=Eyes(lambda: next(looks, 0)), limits=Limits(foreign=200))
    assert "foreign requests in flight" in (run.partial or "")
    assert "--max-foreign" in (run.partial or "")
    assert next(looks, None) is None
    other = path.with_name("other.jsonl")
    few = performed(Fake(), scenarios.Distribution(keys=60), other, eyes=Eyes(lambda: 500), limits=Limits(foreign=600))
    assert few.partial is None


def test_engine_counters_are_set_beside_the_clients_figures(path: Path) -> None:
    pages = iter((0.0, 1.0))

    def counters() -> dict[str, dict[str, float]]:
        at = next(pages)
        own = {"vllm:time_to_first_token_seconds_sum": 0.6 * at, "vllm:time_to_first_token_seconds_count": 60 * at}
        own |= {"vllm:prefix_cache_queries_total": 1000 * at, "vllm:prefix_cache_hits_total": 20 * at}
        own |= {"vllm:spec_decode_num_drafts_total": 100 * at, "vllm:spec_decode_num_draft_tokens_total": 400 * at}
        return {"69/0": {**own, "vllm:spec_decode_num_accepted_tokens_total": 180 * at}}

    run = performed(Fake(), scenarios.Distribution(keys=60), path, eyes=Eyes(counters=counters))
    notes = "\n".join(perfect(run).notes)
    assert "2.00% of prompt tokens were hits" in notes
    assert "draft tokens accepted: 45.0%, mean length 2.80" in notes
    assert "10.0 ms in the engines" in notes


def test_a_run_that_failed_throughout_is_a_result_and_not_a_traceback(path: Path) -> None:
    for name, kind in scenarios.ALL.items():
        if name in ("failover", "mixed"):
            continue
        file = path.with_name(f"{name}.jsonl")
        fake = Fake(fault="500")
        try:
            run = performed(fake, kind(), file, limits=Limits(errors=5), timeouts=Timeouts(1, 1, 1))
        except CommandError as error:
            assert "calibrated" in error.cause
            run = read(file)
        found = result(run)
        assert run.partial is not None
        assert found.verdict in ("failed", "partial", "invalid"), name


@pytest.mark.parametrize("number", [1, 2, 9])
def test_ctrl_c_at_whichever_request_gives_a_partial_result_and_no_error(path: Path, number: int) -> None:
    """The requests that calibrate prompts are requests too: what they were not answered is no fault of the server."""
    kinds = [kind() for name, kind in scenarios.ALL.items() if name != "failover"]
    for one in [*kinds, Round({"69/0": 3, "69/1": 5}, (3, 5), 1, 2, 8, (600,), 4, 4, "0123abcd")]:
        fake = Fake(fault="hang")

        def interrupted(body: dict[str, Any], session: str, fake: Fake = fake) -> bool:
            if len(fake.asked) == number:
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            return len(fake.asked) >= number

        fake.when = interrupted
        run = performed(fake, one, path.with_name(f"{one.name}.jsonl"), timeouts=Timeouts(5, 5, 5))
        assert run.partial == "interrupted", one.name
        assert not any(sample.failed for sample in run.samples), one.name
        assert result(run).verdict in ("partial", "invalid"), one.name


@pytest.mark.parametrize(("fault", "words"), [("401", "status 401 from 69/2"), ("model", "wrong model from 69/2")])
def test_one_instance_with_another_key_or_model_is_one_line_that_names_it(path: Path, fault: str, words: str) -> None:
    fake = Fake(fault=fault)
    fake.when = lambda body, session: fake.home(session) == "10.0.0.69:8002"
    run = performed(fake, scenarios.Distribution(keys=60), path, limits=Limits(errors=1000))
    said = check(perfect(run), "every request answered")
    assert said.verdict == "failed"
    assert words in said.seen
    assert KEY not in said.seen


def test_bad_choices_are_refused_with_what_there_is() -> None:
    target = Fake(backends=2).target()
    with pytest.raises(UsageError, match="the balancer has 69/0, 69/1"):
        scenarios.Instance(backend="66/3").settled(target)
    with pytest.raises(UsageError, match="32 requests at once"):
        scenarios.Instance(users=(64,)).settled(target)
    with pytest.raises(UsageError, match="two backends"):
        scenarios.Mixed().settled(Fake(backends=1).target())
    assert scenarios.Scaling().settled(target).users == (1, 2, 4, 8, 16, 32, 64)


def test_what_is_said_to_be_done_grows_and_is_all_at_the_end(path: Path) -> None:
    small = (
        scenarios.Distribution(keys=60),
        scenarios.Affinity(sessions=8),
        scenarios.Instance(backend="69/1", users=(1, 2), tokens=8, seconds=0.6),
        scenarios.Sequential(requests=30, tokens=40),
        scenarios.Scaling(users=(1, 2), tokens=8, seconds=0.6, passes=2),
        scenarios.Soak(rate=20, seconds=2, window=1, tokens=4),
        scenarios.LongContext(lengths=(600,), times=2, tokens=2),
        Round({"69/0": 3, "69/1": 5}, (3, 5), 1, 2, 8, (600,), 4, 4, "0123abcd"),
    )
    for one in small:
        shares: list[float] = []
        loads: list[Any] = []

        def tick(load: Any, one: Any = one, shares: list[float] = shares, loads: list[Any] = loads) -> None:
            shares.append(share(one, load.measured, load.begun, load.now()) or 0.0)
            loads[:] = [load]

        performed(Fake(), one, path.with_name(f"{one.name}.jsonl"), tick=tick)
        assert shares == sorted(shares), one.name
        assert all(0 <= value <= 1 for value in shares), one.name
        end = loads[0]
        assert (share(one, end.measured, end.begun, end.now()) or 0) > 0.7, one.name
