"""The simulated server answers as the capture does, to the key and the header."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .engine_bed import KEY, MODEL, MTP, Bed, Engine, eventually

DATA = Path(__file__).parent / "data"
UNGUARDED = ("/health", "/metrics", "/version", "/load", "/server_info", "/ping", "/is_paused")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "unit": {"enum": ["celsius", "fahrenheit"]}},
            "required": ["city", "unit"],
        },
    },
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    bed = Bed(tmp_path_factory.mktemp("machine"))
    with bed.serving(*MTP, "--enable-request-id-headers") as engine:
        threading.Thread(target=lambda: [None for _ in engine.process.stdout or ()], daemon=True).start()
        yield engine


def shape(value: Any) -> Any:
    """Keys and types of a JSON value, lists by their first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def events(engine: Engine, path: str = "/v1/chat/completions", **fields: Any) -> list[dict[str, Any]]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me"}], "stream": True, **fields}
    status, headers, data = engine.ask("POST", path, body)
    assert status == 200, data
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    *chunks, last = data.decode().removesuffix("\n\n").split("\n\n")
    assert last == "data: [DONE]"
    return [json.loads(chunk.removeprefix("data: ")) for chunk in chunks]


def error(engine: Engine, path: str, body: Any, method: str = "POST") -> tuple[int, str]:
    status, _, data = engine.ask(method, path, body)
    said = json.loads(data)["error"]
    assert said["code"] == status
    assert set(said) == {"message", "type", "param", "code"}
    return status, said["message"]


def test_a_completion_has_the_keys_of_the_capture_in_their_order(engine: Engine) -> None:
    captured = json.loads((DATA / "chat-response.json").read_text())
    answer = engine.chat("Go on", max_tokens=8)
    assert shape(answer) == shape(captured)
    assert list(answer) == list(captured)
    assert list(answer["choices"][0]["message"]) == list(captured["choices"][0]["message"])
    assert answer["choices"][0]["finish_reason"] == "length"


def test_a_stream_has_the_chunks_of_the_capture(engine: Engine) -> None:
    blocks = (DATA / "chat-stream.txt").read_text().strip().split("\n\n")[:-1]
    captured = [json.loads(block.removeprefix("data: ")) for block in blocks]
    given = events(engine, max_tokens=9, stream_options={"include_usage": True})
    for mine, real in ((0, 0), (1, 1), (-2, -2), (-1, -1)):
        assert shape(given[mine]) == shape(captured[real])
    assert given[-1]["usage"]["completion_tokens"] == 9
    assert given[-1]["choices"] == []


def test_one_chunk_carries_several_tokens_with_mtp(engine: Engine) -> None:
    chunks = events(engine, max_tokens=60, ignore_eos=True, temperature=0)
    assert len(chunks) < 50


@pytest.mark.parametrize("tokens", [1, 2, 8, 300])
def test_max_tokens_is_exact_and_the_sums_agree(engine: Engine, tokens: int) -> None:
    usage = engine.chat("Go on", max_tokens=tokens, ignore_eos=True)["usage"]
    assert usage["completion_tokens"] == tokens
    assert usage["prompt_tokens"] + tokens == usage["total_tokens"]


def test_min_tokens_is_kept(engine: Engine) -> None:
    assert engine.chat("What is 1+1?", min_tokens=250)["usage"]["completion_tokens"] >= 250


def test_reasoning_comes_first_and_apart_and_can_be_switched_off(engine: Engine) -> None:
    message = engine.chat("What is 17+25?")["choices"][0]["message"]
    assert message["reasoning"]
    assert message["content"] == "17 + 25 = 42."
    off = engine.chat("What is 17+25?", chat_template_kwargs={"enable_thinking": False})
    assert off["choices"][0]["message"]["reasoning"] is None
    assert off["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("What is 12 * 12?", "144"),
        ("What is 9 minus 20?", "-11"),
        ("7 / 2 = ?", "3.5"),
        ("What is the capital of France?", "Paris"),
        ("法国的首都是哪里？", "巴黎"),
        ("Reply with exactly: pong 7f", "pong 7f"),
    ],
)
def test_checkable_questions_are_answered_right(engine: Engine, question: str, said: str) -> None:
    assert said in engine.chat(question)["choices"][0]["message"]["content"]


def test_greedy_text_depends_on_the_prompt_alone(engine: Engine) -> None:
    def text(prompt: str, **fields: Any) -> str:
        return str(engine.chat(prompt, max_tokens=30, **fields)["choices"][0]["message"])

    assert text("one", temperature=0) == text("one", temperature=0)
    assert text("one", temperature=0) != text("two", temperature=0)
    assert text("one", temperature=0.5) != text("one", temperature=0.5)
    assert text("one", temperature=0.5, seed=1) == text("one", temperature=0.5, seed=1)
    assert text("one", temperature=0.5, seed=1) != text("one", temperature=1.0, seed=1)


def test_streamed_text_is_the_whole_text(engine: Engine) -> None:
    fields: dict[str, Any] = {"temperature": 0, "max_tokens": 120}
    whole = engine.chat("Tell me", **fields)["choices"][0]["message"]
    deltas = [choice["delta"] for event in events(engine, **fields) for choice in event["choices"]]
    for kind in ("reasoning", "content"):
        assert "".join(delta.get(kind) or "" for delta in deltas) == (whole[kind] or "")


def test_text_completions_work_streamed_or_not(engine: Engine) -> None:
    body = {"prompt": "Once", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    whole = json.loads(engine.ask("POST", "/v1/completions", body)[2])
    assert whole["object"] == "text_completion"
    assert whole["usage"]["completion_tokens"] == 12
    parts = events(engine, "/v1/completions", **body)
    assert "".join(part["choices"][0]["text"] for part in parts) == whole["choices"][0]["text"]


def test_several_choices_and_stop_strings(engine: Engine) -> None:
    answer = engine.chat("Tell me", n=3, max_tokens=5)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 15
    stopped = engine.chat("Reply with exactly: abc STOP def", stop=["STOP"])
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert "STOP" not in stopped["choices"][0]["message"]["content"]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
def test_tools_are_called_when_asked_for(engine: Engine, choice: Any) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice}
    answer = engine.chat("What is the weather in Paris in celsius?", **fields)["choices"][0]
    assert answer["finish_reason"] == "tool_calls"
    assert answer["message"]["content"] is None
    call = answer["message"]["tool_calls"][0]
    assert call["function"]["name"] == "get_weather"
    assert json.loads(call["function"]["arguments"]) == {"city": "Paris", "unit": "celsius"}


def test_tool_calls_are_streamed_in_pieces(engine: Engine) -> None:
    messages = [{"role": "user", "content": "weather in Rome"}]
    given = events(engine, messages=messages, tools=[WEATHER])
    pieces = [call for e in given for c in e["choices"] for call in c["delta"].get("tool_calls", [])]
    assert pieces[0]["function"] == {"name": "get_weather", "arguments": ""}
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces))["city"] == "Rome"
    assert given[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_tools_that_nothing_asks_for_are_not_called(engine: Engine) -> None:
    answer = engine.chat("What is 1+1?", tools=[WEATHER])["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert "tool_calls" not in answer["message"]


def test_a_json_schema_is_satisfied(engine: Engine) -> None:
    schema = {"type": "object", "properties": {"year": {"type": "integer"}, "ok": {"type": "boolean"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    content = engine.chat("In 1999?", response_format=form)["choices"][0]["message"]["content"]
    assert json.loads(content) == {"year": 1999, "ok": True}


def test_models_name_what_is_served(engine: Engine) -> None:
    (model,) = json.loads(engine.ask("GET", "/v1/models")[2])["data"]
    assert (model["id"], model["max_model_len"]) == (MODEL, 262144)


@pytest.mark.parametrize("key", [None, "", "wrong", KEY + "x"])
def test_guarded_paths_answer_401_with_a_string(engine: Engine, key: str | None) -> None:
    for path in ("/v1/models", "/v1/nothing", "/v2/x", "/inference/x"):
        status, _, body = engine.ask("GET", path, key=key)
        assert (status, body) == (401, b'{"error":"Unauthorized"}')


def test_the_other_paths_need_no_key(engine: Engine) -> None:
    for path in UNGUARDED:
        assert engine.ask("GET", path, key=None)[0] == 200
    assert engine.ask("POST", "/tokenize", {"prompt": "hello"}, key=None)[0] == 200
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert engine.ask("POST", "/invocations", body, key=None)[0] == 200


def test_pause_stops_decoding_until_resume(engine: Engine) -> None:
    engine.ask("POST", "/pause", key=None)
    connection = engine.connect()
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
    connection.request("POST", "/v1/chat/completions", body, {"Authorization": f"Bearer {KEY}"})
    eventually("the request waits", lambda: engine.metric("vllm:num_requests_waiting") == 1)
    engine.ask("POST", "/resume", key=None)
    assert connection.getresponse().status == 200
    connection.close()


def test_health_is_empty(engine: Engine) -> None:
    status, headers, body = engine.ask("GET", "/health", key=None)
    assert (status, headers["content-length"], body) == (200, "0", b"")


def test_cors_is_open_as_in_0_23_and_only_when_asked(engine: Engine) -> None:
    assert engine.ask("GET", "/health", Origin="http://x")[1]["access-control-allow-origin"] == "*"
    assert "access-control-allow-origin" not in engine.ask("GET", "/health")[1]
    headers = {"Origin": "http://x", "Access_Control_Request_Method": "POST"}
    status, given, _ = engine.ask("OPTIONS", "/v1/chat/completions", key=None, **headers)
    assert (status, given["access-control-allow-origin"]) == (200, "*")


def test_the_request_id_is_echoed_and_names_the_answer(engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    _, headers, data = engine.ask("POST", "/v1/chat/completions", body, X_Request_Id="abc")
    assert headers["x-request-id"] == "abc"
    assert json.loads(data)["id"] == "chatcmpl-abc"
    assert re.fullmatch(r"[0-9a-f]{32}", engine.ask("GET", "/health")[1]["x-request-id"])


def test_what_vllm_refuses_is_refused_in_its_form(engine: Engine) -> None:
    chat, hi = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
    assert error(engine, chat, {"model": "gpt", "messages": hi}) == (404, "The model `gpt` does not exist.")
    assert error(engine, chat, b"{no")[0] == 400
    assert error(engine, chat, b"[]")[0] == 400
    assert error(engine, chat, {"model": MODEL})[0] == 400
    assert error(engine, chat, {"messages": hi, "max_tokens": 0})[0] == 400
    assert error(engine, chat, {"messages": hi, "temperature": 3})[0] == 400
    status, message = error(engine, chat, {"messages": hi, "max_tokens": 262144})
    assert status == 400 and "maximum context length is 262144" in message
    long = [{"role": "user", "content": "x" * 4 * 262144}]
    assert error(engine, chat, {"messages": long})[0] == 400
    assert error(engine, "/nothing", None, "GET")[0] == 404
    assert error(engine, "/health", None, "DELETE")[0] == 405


def test_metrics_have_the_names_buckets_and_order_of_the_capture(engine: Engine) -> None:
    engine.chat("hi", max_tokens=2)

    def names(text: str) -> list[str]:
        rows = [row for row in text.splitlines() if "http_" not in row and "spec_decode" not in row]
        rows = [row if row.startswith("#") else row.rsplit(" ", 1)[0] for row in rows]
        return [re.sub(r"(cache_config_info)\{.*", r"\1", row) for row in rows]

    given = engine.ask("GET", "/metrics")[2].decode()
    assert names(given) == names((DATA / "metrics.prom").read_text())
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert f'vllm:spec_decode_num_{name}_total{{engine="0",model_name="{MODEL}"}}' in given
    assert 'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name=' in given
    assert 'http_requests_total{handler="/v1/chat/completions",method="POST",status="2xx"}' in given


def test_histograms_are_cumulative_and_counters_follow_the_work(engine: Engine) -> None:
    before = engine.metric("vllm:generation_tokens_total")
    steps = engine.metric("vllm:iteration_tokens_total_count")
    engine.chat("hi", max_tokens=50, ignore_eos=True)
    assert engine.metric("vllm:generation_tokens_total") == before + 50
    assert engine.metric("vllm:iteration_tokens_total_count") > steps
    text = engine.ask("GET", "/metrics")[2].decode()
    rows = [row for row in text.splitlines() if row.startswith("vllm:e2e_request_latency_seconds_bucket")]
    counts = [float(row.rsplit(" ", 1)[1]) for row in rows]
    assert counts == sorted(counts)
    assert counts[-1] == engine.metric("vllm:e2e_request_latency_seconds_count")


def test_a_repeated_prefix_hits_the_cache(engine: Engine) -> None:
    prompt = "unique prefix " * 400
    engine.chat(prompt + "a", max_tokens=1)
    before = engine.metric("vllm:prefix_cache_hits_total")
    engine.chat(prompt + "b", max_tokens=1)
    assert engine.metric("vllm:prefix_cache_hits_total") - before > 1000


def test_one_connection_serves_many_requests_pipelined_and_chunked(engine: Engine) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    chunked = (
        b"POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        b'8\r\n{"prompt\r\n6\r\n":"a"}\r\n0\r\n\r\n'
    )
    with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as client:
        client.sendall(request + request + chunked)
        data = b"".join(iter(lambda: client.recv(65536), b""))
    assert data.count(b"HTTP/1.1 200 OK") == 3
    assert data.endswith(b"}")


def test_what_is_not_http_gets_400(engine: Engine) -> None:
    with socket.create_connection(("127.0.0.1", engine.port), timeout=5) as client:
        client.sendall(b"rubbish\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400")


def test_a_client_that_goes_away_frees_its_place(engine: Engine) -> None:
    aborted = 'vllm:request_success_total{engine="0",finished_reason="abort"'

    def count() -> float:
        rows = engine.ask("GET", "/metrics")[2].decode().splitlines()
        return sum(float(row.rsplit(" ", 1)[1]) for row in rows if row.startswith(aborted))

    before = count()
    connection = engine.connect()
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200_000, "ignore_eos": True}
    for stream in (True, False):
        connection = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=10)
        connection.request(
            "POST",
            "/v1/chat/completions",
            json.dumps({**body, "stream": stream}),
            {"Authorization": f"Bearer {KEY}"},
        )
        eventually("it runs", lambda: engine.metric("vllm:num_requests_running") == 1)
        connection.close() if not stream else connection.sock.close()
        del connection
        eventually("nothing runs", lambda: engine.metric("vllm:num_requests_running") == 0)
    assert count() == before + 2


def test_more_than_max_num_seqs_wait(tmp_path: Path) -> None:
    with Bed(tmp_path).serving("--max-num-seqs", "2", SIM_TOKENS_PER_SECOND="120") as engine:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 60, "ignore_eos": True}
        connections = [engine.connect() for _ in range(3)]
        for connection in connections:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {KEY}"})
        eventually("two run", lambda: engine.metric("vllm:num_requests_running") == 2)
        assert engine.metric("vllm:num_requests_waiting") == 1
        assert [connection.getresponse().status for connection in connections] == [200, 200, 200]
        for connection in connections:
            connection.close()


def test_idle_connections_are_closed_after_the_keep_alive_time(tmp_path: Path) -> None:
    with (
        Bed(tmp_path).serving(VLLM_HTTP_TIMEOUT_KEEP_ALIVE="0.2") as engine,
        socket.create_connection(("127.0.0.1", engine.port), timeout=5) as client,
    ):
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert client.recv(1000) == b""
