"""Whatever a server sends is read without an exception."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.verify import answers, behaviour, gates
from fleetctl.verify.answers import Answer, bundled, metric, parse, parse_streams, stream

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(("choices", "message", "usage", "delta", "content", "error", "tool_calls")),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(ANY_JSON)
def test_any_json_is_judged_without_an_exception(document: object) -> None:
    import json

    answer = Answer(200, body=json.dumps(document))
    gates.completion_problem(answer)
    answers.message(answer)
    answers.usage(answer)
    behaviour.stream_problem(Answer(200, body=f"data: {json.dumps(document)}\n\ndata: [DONE]\n\n"))


@given(st.text(max_size=300))
def test_any_text_is_parsed_without_an_exception(text: str) -> None:
    parse(text, "m", 3)
    parse_streams(f"==> m.0.times <==\n{text}", "m", 2)
    metric(text, "vllm:x")
    stream(Answer(200, body=text))


def test_headers_twice_are_two_and_the_last_block_counts() -> None:
    text = (
        "==> m.0.body <==\n{}\n"
        "==> m.0.head <==\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: 1\r\nx-a: 2\r\n\r\n\n"
        "==> m.end <==\n\n==> m.http <==\n=done 0 200 0 0.25 \n"
    )
    (answer,) = parse(text, "m", 1)
    assert answer.every("X-A") == ("1", "2")
    assert answer.seconds == 0.25
    assert answer.problem is None


def test_an_answer_that_curl_did_not_report_is_none() -> None:
    assert parse("", "m", 2)[1].words == "no answer (curl did not report)"


def test_times_go_on_past_midnight_and_close_ones_are_together() -> None:
    trace = "23:59:59.900000\n23:59:59.950000\n00:00:00.050000\n00:00:00.050200\n=done 0 200 0 0.2 \n"
    body = "data: {}\n\n" * 4
    (answer,) = parse_streams(f"==> m.0.body <==\n{body}\n==> m.0.times <==\n{trace}", "m", 1)
    assert [round(at, 4) for at in answer.times] == [0, 0.05, 0.15, 0.1502]
    assert bundled(answer) == (4, 1)


def test_counters_are_summed_over_labels_with_and_without_total() -> None:
    page = 'vllm:x_total{engine="0"} 3.0\nvllm:x_total{engine="1"} 4.0\nvllm:x_created{engine="0"} 9.0\n# HELP vllm:x a b\n'
    assert metric(page, "vllm:x") == 7
    assert metric("vllm:x 2", "vllm:x") == 2
    assert metric(page, "vllm:y") is None


def test_half_a_character_is_shown_as_one_that_is_broken_and_can_be_printed() -> None:
    body = '{"choices": [{"message": {"content": "a \\ud83d b \\ud83d\\ude00"}}]}'
    said = answers.message(Answer(200, body=body))["content"]
    assert said == "a \ufffd b \U0001f600"
    said.encode()
    (event,) = stream(Answer(200, body=f"data: {body}\n\n")).events
    assert "\ufffd" in event["choices"][0]["message"]["content"]


def test_json_that_is_nested_a_thousand_deep_is_none() -> None:
    for body in ("[" * 60_000, '{"a":' * 60_000):
        assert gates.completion_problem(Answer(200, body=body)) is not None
        assert behaviour.stream_problem(Answer(200, body=f"data: {body}\n\n")) is not None


def test_only_line_ends_end_a_line_of_a_stream() -> None:
    """A text may hold the separators of Unicode, which end lines in Python and nowhere else."""
    event = '{"choices": [{"delta": {"content": "a\u2028b\u0085c"}}]}'
    for end in ("\n\n", "\r\n\r\n", "\r\r"):
        found = stream(Answer(200, body=f"data: {event}{end}data: [DONE]{end}"))
        assert (found.broken, found.done, found.content) == (None, True, "a\u2028b\u0085c")
