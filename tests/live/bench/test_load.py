"""The engine against a server whose every delay and fault is known."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from fleetctl.bench import load as engine
from fleetctl.bench import measures
from fleetctl.bench.load import Ask, Limits, Load, SelfCheck, Timeouts
from fleetctl.bench.samples import Failure, Header, Sample, Writer, read
from fleetctl.bench.target import Session
from tests.unit.bench.fake import KEY, MODEL, Fake, loaded, serving


def ask(number: int = 0, *, tokens: int = 8, **more: Any) -> Ask:
    return Ask("cell", Session(f"session-{number}", None), f"question {number}", tokens, **more)


def single(fake: Fake, *, timeouts: Timeouts | None = None, **more: Any) -> Sample:
    async def work(load: Load) -> None:
        await load.single(ask(**more))

    return loaded(fake, work, timeouts=timeouts).samples[0]


def test_the_role_chunk_is_not_the_first_token_and_reasoning_is_not_the_answer() -> None:
    sample = single(Fake(first_after=0.05, every=0.02, thinking=2), tokens=10)
    assert sample.failure is None
    assert None not in (sample.role, sample.first, sample.answer)
    assert sample.role < sample.first < sample.answer  # type: ignore[operator]


def test_tokens_are_what_the_server_counted_and_chunks_are_counted_apart() -> None:
    sample = single(Fake(per_chunk=2, thinking=1), tokens=10)
    assert (sample.completion_tokens, sample.reasoning_tokens, sample.chunks) == (10, 2, 5)
    assert len(sample.gaps) == 4
    assert sample.finish == "length"


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    sample = single(Fake(), stream=False)
    assert sample.ok
    assert measures.ttft(sample) is None
    assert measures.tpot(sample) is None
    assert sample.completion_tokens == 8


@pytest.mark.parametrize(
    ("fault", "failure", "words"),
    [
        ("500", Failure.STATUS, "boom"),
        ("401", Failure.STATUS, "no such key"),
        ("empty", Failure.GARBLED, "no events"),
        ("html", Failure.GARBLED, "text/html instead of a stream: <html>Welcome"),
        ("endless", Failure.TIMEOUT, "0.2 s without a token"),
        ("babble", Failure.GARBLED, "it does not end: more than 80 chunks for max_tokens 8"),
        ("moved", Failure.STATUS, "sent on to /v1/chat/completions"),
        ("silent", Failure.TIMEOUT, "0.2 s of silence within the answer"),
        ("hang", Failure.TIMEOUT, "0.2 s of silence before the answer"),
        ("json", Failure.GARBLED, "not JSON"),
        ("shape", Failure.GARBLED, "not a chunk"),
        ("error", Failure.ENGINE, "EngineDeadError"),
        ("cut", Failure.CUT, "within the answer"),
        ("short", Failure.CUT, "without [DONE]"),
        ("reset", Failure.CUT, "before the answer"),
        ("model", Failure.MODEL, "'another-model' answered instead of 'a-model'"),
        ("usage", Failure.USAGE, "no usage"),
    ],
)
def test_every_bad_answer_is_one_failure_with_its_reason(fault: str, failure: Failure, words: str) -> None:
    sample = single(Fake(fault=fault), timeouts=Timeouts(connect=1, silent=0.2, total=0.4))
    assert sample.failure is failure
    assert words in (sample.detail or "")


def test_a_stream_that_is_merely_slow_is_none_that_does_not_end() -> None:
    sample = single(Fake(first_after=0.15, every=0.15), tokens=8, timeouts=Timeouts(connect=1, silent=0.3, total=5))
    assert sample.ok


def test_an_answer_in_one_piece_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleetctl.bench.answer.LONGEST_LINE", 1000)
    sample = single(Fake(), tokens=800, stream=False)
    assert sample.failure is Failure.GARBLED
    assert "more than" in (sample.detail or "")


def test_a_server_that_is_down_is_no_connection() -> None:
    async def work() -> Load:
        fake = Fake()
        async with serving(fake):
            pass
        async with Load(fake.target()) as load:
            await load.single(ask())
            return load

    sample = engine.run(work, lambda: None).samples[0]
    assert sample.failure is Failure.CONNECT


def test_every_request_carries_its_session_and_each_sample_its_backend() -> None:
    fake = Fake()

    async def work(load: Load) -> None:
        await load.closed_loop(4, [ask(number) for number in range(12)])

    samples = loaded(fake, work).samples
    assert {session for session, _ in fake.asked} == {f"session-{number}" for number in range(12)}
    assert all(sample.backend == fake.home(sample.session) for sample in samples)
    assert len({sample.request_id for sample in samples}) == 12
    sent = [headers["X-Request-ID"] for headers in fake.headers]
    assert len(set(sent)) == 12


def test_output_length_is_pinned_and_usage_is_asked_for() -> None:
    fake = Fake()

    async def work(load: Load) -> None:
        await load.single(ask(tokens=6))

    loaded(fake, work)
    _, body = fake.asked[0]
    assert body["model"] == MODEL
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (6, 6, True)
    assert body["stream_options"] == {"include_usage": True}


def test_a_closed_loop_never_has_more_in_flight_than_it_has_users() -> None:
    fake = Fake()

    async def work(load: Load) -> None:
        await load.closed_loop(5, (ask(number) for number in range(30)))

    assert len(loaded(fake, work).samples) == 30
    assert fake.most_in_flight == 5


def test_an_open_loop_counts_the_wait_of_requests_that_a_stalled_server_held_up() -> None:
    """Twenty requests 10 ms apart, on a server that does nothing for the first 0.3 s: no coordinated omission."""
    fake = Fake(every=0.0)
    gate = asyncio.Event

    async def work(load: Load) -> None:
        lock = gate()
        answer = fake._answer

        async def held(*words: Any) -> Any:
            await lock.wait()
            return await answer(*words)

        fake._answer = held  # type: ignore[method-assign]
        asyncio.get_running_loop().call_later(0.3, lock.set)
        await load.open_loop((number * 0.01, ask(number)) for number in range(20))

    samples = loaded(fake, work).samples
    waits = [measures.ttft(sample) or 0 for sample in sorted(samples, key=lambda one: one.scheduled)]
    assert len(waits) == 20
    assert waits[0] > 0.28
    assert all(wait > 0.1 for wait in waits)


def test_what_cannot_be_sent_is_counted_and_not_piled_up() -> None:
    async def work(load: Load) -> None:
        await load.open_loop((0.0, ask(number)) for number in range(10))

    load = loaded(Fake(first_after=0.2), work, limits=Limits(in_flight=4))
    assert sum(sample.failure is Failure.DROPPED for sample in load.samples) == 6


def test_a_run_stops_at_its_limit_of_errors_and_says_so() -> None:
    async def work(load: Load) -> None:
        await load.closed_loop(1, (ask(number) for number in range(100)))

    load = loaded(Fake(fault="500"), work, limits=Limits(errors=3))
    assert load.errors == 4
    assert "--max-errors" in (load.reason or "")


def test_a_run_stops_at_its_limit_of_seconds_and_gives_up_what_is_in_flight() -> None:
    async def work(load: Load) -> None:
        await load.closed_loop(2, (ask(number) for number in range(10_000)))

    load = loaded(Fake(fault="hang"), work, limits=Limits(seconds=0.3))
    assert "--max-seconds" in (load.reason or "")
    assert [sample.failure for sample in load.samples] == [Failure.INTERRUPTED] * 2
    assert load.errors == 0


def test_ctrl_c_ends_the_run_in_order_and_what_was_measured_is_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    fake = Fake(every=0.005)
    loads: list[Load] = []

    async def go() -> None:
        async with serving(fake):
            writer = Writer(path, Header("soak", 1, {}, MODEL, "http://x"), mask=KEY)
            async with Load(fake.target(), writer) as load:
                loads.append(load)
                asyncio.get_running_loop().call_later(0.3, os.kill, os.getpid(), signal.SIGINT)
                await load.closed_loop(3, (ask(number) for number in itertools.count()))
                writer.end({"partial": load.stopped, "reason": load.reason})

    engine.run(go, lambda: loads[0].stop("interrupted"))
    run = read(path)
    assert run.partial == "interrupted"
    assert run.measured
    assert all(sample.ok for sample in run.measured)
    assert len(run.measured) < len(run.samples)


def test_the_key_is_in_no_sample_even_when_the_server_repeats_it(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"

    async def work(load: Load) -> None:
        await load.single(ask())

    writer = Writer(path, Header("smoke", 1, {}, MODEL, "http://x"), mask=KEY)
    loaded(Fake(fault="401"), work, writer=writer)
    writer.end({"partial": False})
    assert "no such key ***" in path.read_text()
    assert KEY not in path.read_text()


@pytest.mark.parametrize("cut", range(1, len(KEY) + 1))
def test_a_key_that_is_cut_off_with_the_text_around_it_is_masked_too(tmp_path: Path, cut: int) -> None:
    """A body is shown as far as 300 characters: what is left of the key at their end is still most of the key."""
    path = tmp_path / "run.jsonl"
    fake = Fake()
    text = "x " * 200
    text = text[: 300 - cut] + KEY

    async def refused(*words: Any) -> web.Response:
        return web.Response(status=401, text=text)

    fake._answer = refused  # type: ignore[method-assign]

    async def work(load: Load) -> None:
        await load.single(ask())

    writer = Writer(path, Header("smoke", 1, {}, MODEL, "http://x"), mask=KEY)
    (sample,) = loaded(fake, work, writer=writer).samples
    writer.end({"partial": False})
    for said in (path.read_text(), sample.detail or ""):
        assert KEY[:6] not in said
    assert len(sample.detail or "") <= 310


def test_a_key_with_quotes_in_it_is_masked_as_json_writes_it(tmp_path: Path) -> None:
    path, key = tmp_path / "run.jsonl", 'sk-"quoted"\\0123'
    writer = Writer(path, Header("smoke", 1, {}, MODEL, "http://x"), mask=key)
    writer.event(0.0, f"said {key}")
    writer.end({"partial": False})
    assert "0123" not in path.read_text()
    assert read(path).events[0]["what"] == "said ***"


def test_a_busy_client_marks_its_own_run_as_invalid() -> None:
    quiet = SelfCheck.of([0.0004] * 1000, 0.2, [0.0002] * 400)
    assert quiet.reasons == []
    late = SelfCheck.of([0.0004] * 980 + [0.02] * 20, 0.2, [0.0002] * 400)
    assert "event loop" in late.reasons[0]
    assert "91% of a core" in SelfCheck.of([0.001] * 1000, 0.91, []).reasons[0]
    assert "requests left" in SelfCheck.of([], None, [0.0] * 10 + [0.03] * 11).reasons[0]


def test_a_blocked_event_loop_is_noticed() -> None:
    async def work(load: Load) -> None:
        async def block() -> None:
            for _ in range(20):
                end = load.now() + 0.02
                while load.now() < end:
                    pass
                await asyncio.sleep(0.001)

        await asyncio.gather(load.closed_loop(4, (ask(number, tokens=100) for number in range(8))), block())

    assert loaded(Fake(every=0.004), work).self_check().reasons


def test_a_loop_that_seldom_stands_still_but_long_is_noticed_by_its_time_and_not_by_its_count() -> None:
    """One beat of 50 is late, and two thirds of all that came, came while the loop stood still."""

    async def work(load: Load) -> None:
        async def block() -> None:
            for _ in range(3):
                await asyncio.sleep(0.25)
                end = load.now() + 0.5
                while load.now() < end:
                    pass

        await asyncio.gather(load.closed_loop(4, (ask(number, tokens=600) for number in range(4))), block())

    check = loaded(Fake(every=0.005), work).self_check()
    assert check.lag is not None
    assert check.lag > 0.3
    assert any("event loop" in reason for reason in check.reasons)


def test_poisson_arrivals_are_those_of_their_rate_and_seed() -> None:
    times = list(engine.poisson(50, 100, seed=3))
    assert times == list(engine.poisson(50, 100, seed=3))
    assert times != list(engine.poisson(50, 100, seed=4))
    assert 4600 < len(times) < 5400
    gaps = [b - a for a, b in itertools.pairwise(times)]
    # Of an exponential distribution the share above its mean is 1/e.
    assert 0.34 < sum(gap > 0.02 for gap in gaps) / len(gaps) < 0.40
    assert [round(at, 3) for at in engine.constant(4, 1)] == [0.0, 0.25, 0.5, 0.75]
