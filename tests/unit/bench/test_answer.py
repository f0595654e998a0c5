"""What a response turns out to be, whatever pieces it comes in."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.bench.answer import Stream, Whole
from fleetctl.bench.samples import Failure, Sample

MODEL = "m"


def event(**more: Any) -> bytes:
    return b"data: " + json.dumps({"model": MODEL, "choices": [], **more}).encode() + b"\n\n"


def delta(finish: str | None = None, **what: Any) -> bytes:
    return event(choices=[{"index": 0, "delta": what, "finish_reason": finish}])


USAGE = {"prompt_tokens": 7, "completion_tokens": 4, "completion_tokens_details": {"reasoning_tokens": 2}}
GOOD = [
    delta(role="assistant", content=""),
    delta(reasoning="hm "),
    delta(reasoning_content="so "),
    delta(content="a"),
    delta("stop", content="b"),
    event(usage=USAGE),
    b"data: [DONE]\n\n",
]


def read(pieces: list[bytes]) -> Sample:
    """Piece n comes at second n."""
    sample = Sample(1, "cell", "session", 0.0)
    stream = Stream(sample, MODEL, max_tokens=1000)
    for at, piece in enumerate(pieces):
        stream.feed(piece, float(at))
    stream.close()
    return sample


def test_first_token_answer_and_role_are_told_apart() -> None:
    sample = read(GOOD)
    assert sample.failure is None
    assert (sample.role, sample.first, sample.answer, sample.last) == (0.0, 1.0, 3.0, 4.0)
    assert sample.gaps == [1.0, 1.0, 1.0]
    assert (sample.prompt_tokens, sample.completion_tokens, sample.reasoning_tokens) == (7, 4, 2)


def test_a_tool_call_is_an_answer_and_an_empty_delta_is_no_token() -> None:
    call = {"index": 0, "function": {"name": "weather", "arguments": ""}}
    sample = read([delta(role="assistant"), delta(content=""), delta("tool_calls", tool_calls=[call]), *GOOD[5:]])
    assert (sample.first, sample.answer, sample.chunks) == (2.0, 2.0, 1)


def test_usage_that_comes_with_every_chunk_is_not_added_up() -> None:
    chunks = [event(choices=[{"delta": {"content": "x"}}], usage={**USAGE, "completion_tokens": n}) for n in (1, 2)]
    sample = read([*chunks, delta("length", content="y"), event(usage=USAGE), GOOD[-1]])
    assert sample.completion_tokens == 4


@given(st.lists(st.integers(0, 2000), max_size=30))
def test_where_the_network_cuts_an_answer_changes_nothing(cuts: list[int]) -> None:
    whole = b"".join(GOOD)
    places = sorted({min(cut, len(whole)) for cut in cuts} | {0, len(whole)})
    sample = read([whole[a:b] for a, b in pairwise(places)])
    assert sample.failure is None
    assert (sample.chunks, sample.completion_tokens, sample.finish) == (4, 4, "stop")


@given(st.binary(max_size=200), st.integers(0, 6))
def test_garbage_anywhere_is_a_failure_at_most_and_never_a_traceback(garbage: bytes, place: int) -> None:
    read([*GOOD[:place], b"data: " + garbage + b"\n\n", *GOOD[place:]])


KEYS = ("choices", "delta", "usage", "content", "reasoning", "tool_calls", "function", "model", "error", "role")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_any_json_is_a_failure_at_most_and_never_a_traceback(value: Any) -> None:
    read([*GOOD[:2], b"data: " + json.dumps(value).encode() + b"\n\n", *GOOD[2:]])
    sample = Sample(1, "cell", "session", 0.0)
    whole = Whole(sample, MODEL)
    whole.feed(json.dumps(value).encode(), 1.0)
    whole.close()
    assert sample.failure is not None


def test_a_stream_without_an_end_is_cut_even_when_its_connection_ended_well() -> None:
    assert read(GOOD[:-1]).failure is Failure.CUT
    assert read([*GOOD[:4], *GOOD[5:]]).failure is Failure.CUT
    assert read([]).failure is Failure.GARBLED


def test_lines_may_end_as_on_windows_and_comments_are_skipped() -> None:
    lines = [part.replace(b"\n", b"\r\n") for part in GOOD]
    assert read([b": keep-alive\r\n\r\n", *lines]).failure is None
