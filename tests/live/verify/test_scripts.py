"""The scripts with real curl: against the simulated engine, and against servers that answer nonsense."""

from __future__ import annotations

import contextlib
import socketserver
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleetctl.commands.script import Script
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.remote import here
from fleetctl.verify import answers, asks, behaviour, gates, questions
from fleetctl.verify.answers import Answer
from fleetctl.verify.asks import Ask, Key
from fleetctl.verify.check import Where
from fleetctl.verify.questions import Door

from ..lab.engine_bed import KEY, MODEL, MTP, Bed, Engine

MARK = "0123456789abcdef"
ROOT = Path(__file__).parents[3]


@pytest.fixture
def fleet() -> Fleet:
    return load(ROOT / "inventory.yaml")


def ask(wanted: list[Ask], parallel: int = 16, key: str = KEY) -> list[Answer]:
    script = Script("verify_ask", (MARK, parallel)).text
    result = here.run(script, stdin=asks.config(wanted, key, MARK).encode(), timeout=60)
    assert result.rc == 0, result.stderr
    return answers.parse(result.stdout, MARK, len(wanted))


def stream(wanted: list[Ask], key: str = KEY) -> list[Answer]:
    script = Script("verify_stream", (MARK, *map(asks.stream_config, wanted))).text
    result = here.run(script, stdin=asks.key_of_streams(key), timeout=60)
    assert result.rc == 0, result.stderr
    return answers.parse_streams(result.stdout, MARK, len(wanted))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    bed = Bed(tmp_path_factory.mktemp("bed"))
    with bed.serving(*MTP, SIM_TOKENS_PER_SECOND="100") as started:
        yield started


@pytest.fixture
def door(engine: Engine) -> Door:
    return Door(Where.DIRECT, f"http://127.0.0.1:{engine.port}")


def test_everything_that_an_engine_is_asked_is_answered_as_the_checks_want_it(door: Door, fleet: Fleet) -> None:
    from fleetctl.verify.evidence import Evidence

    wanted = [*questions.auth(door, "67/2", MODEL), *questions.behaviour(door, "67/2", fleet, 7)]
    wanted += [door.ask("67/2", "health", "/health", key=Key.NONE)]
    wanted += [door.chat("67/2", "completion", questions.chat(MODEL, "1+1=", 2))]
    evidence = Evidence(fleet, key=KEY)
    evidence.add(wanted, ask(wanted))
    live = [questions.stream(door, "67/2", MODEL)]
    evidence.add(live, stream(live))
    for name, _, problem in gates.GATES:
        assert problem(evidence, Where.DIRECT, "67/2") is None, name
    checks = list(behaviour.checks(evidence, Where.DIRECT, ["67/2"], {}))
    assert {check.id: check.seen for check in checks if check.status.value != "pass"} == {}
    assert behaviour.repeats(evidence, Where.DIRECT, ["67/2"], {}).status.value == "pass"


def test_a_stream_comes_with_the_time_of_each_piece(door: Door) -> None:
    (answer,) = stream([questions.stream(door, "67/2", MODEL)])
    found = answers.stream(answer)
    assert found.done
    assert found.usage is not None
    assert found.usage["completion_tokens"] == questions.STREAM_TOKENS
    assert len(answer.times) > 10
    assert answer.times == tuple(sorted(answer.times))
    count, bundled = answers.bundled(answer)
    assert 0 <= bundled < count


def test_requests_one_by_one_and_at_once_come_back_in_their_order(door: Door) -> None:
    wanted = [door.chat(str(n), "cap", questions.chat(MODEL, "Count.", n, ignore_eos=True)) for n in range(1, 7)]
    for parallel in (1, 6):
        found = ask(wanted, parallel)
        assert [answers.usage(answer)["completion_tokens"] for answer in found] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("text", ['say "x" \\ done', "多少？\n\ttab", "'; rm -rf /; echo '", "%{http_code}"])
def test_what_is_asked_arrives_as_it_is(door: Door, text: str) -> None:
    wanted = Ask(Where.DIRECT, "x", "tokenize", f"{door.url}/tokenize", body={"prompt": text})
    (answer,) = ask([wanted])
    tokens = answer.json["tokens"]
    back = Ask(Where.DIRECT, "x", "detokenize", f"{door.url}/detokenize", body={"tokens": tokens})
    assert ask([back])[0].json["prompt"] == text


def test_the_key_is_no_argument_and_in_no_file(door: Door, tmp_path: Path) -> None:
    spy = tmp_path / "curl"
    spy.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" >>{tmp_path}/argv\nenv >>{tmp_path}/argv\nexec /usr/bin/curl "$@"\n'
    )
    spy.chmod(0o755)
    for name, stdin, arguments in (
        ("verify_ask", asks.config([door.ask("x", "models", "/v1/models")], KEY, MARK), (MARK, 2)),
        ("verify_stream", KEY, (MARK, asks.stream_config(questions.stream(door, "x", MODEL)))),
    ):
        script = Script(name, arguments).text
        assert KEY not in script
        done = subprocess.run(
            ["sh", "-c", script],
            input=stdin.encode(),
            env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
            capture_output=True,
            check=True,
        )
        assert b" 200 0 " in done.stdout
        assert KEY.encode() not in done.stdout
    assert KEY not in (tmp_path / "argv").read_text()


# Servers that answer nonsense


@contextlib.contextmanager
def answering(reply: bytes, *, forever: bytes = b"") -> Iterator[Door]:
    """A server that sends `reply` to whatever comes, and then `forever`, again and again."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65536)
            with contextlib.suppress(OSError):
                self.request.sendall(reply)
                while forever:
                    self.request.sendall(forever)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield Door(Where.DIRECT, f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


def plain(body: bytes, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


SSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (plain(b'{"error": "dead"}', "500 Internal Server Error"), "answers 500"),
        (plain(b""), "empty body"),
        (plain(b"<html>busy</html>", kind="text/html"), "no JSON: <html>busy</html>"),
        (plain(b'{"choices": ['), "no JSON"),
        (plain(b"\xff\xfe\x00"), "no JSON"),
        (plain(b"[]"), "no JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", "cut off"),
        (b"", "no answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no answer"),
    ],
)
def test_nonsense_is_one_line_and_no_exception(reply: bytes, words: str) -> None:
    with answering(reply) as door:
        (answer,) = ask([door.chat("x", "completion", questions.chat(MODEL, "1+1=", 2), seconds=5)])
    problem = gates.completion_problem(answer)
    assert problem is not None
    assert words in problem


def test_nobody_there_is_one_line() -> None:
    (answer,) = ask([Ask(Where.DIRECT, "x", "health", "http://127.0.0.1:9/health")])
    assert answer.http == 0
    assert "no answer" in answer.words


@pytest.mark.parametrize("chunk", [b'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', b": ping\n\n"])
def test_a_stream_that_never_ends_ends_here_and_fills_no_disk(chunk: bytes) -> None:
    with answering(SSE, forever=chunk) as door:
        wanted = door.chat("x", "stream", {"stream": True}, seconds=2)
        (live,) = stream([wanted])
        (asked,) = ask([wanted])
    for answer in (live, asked):
        assert behaviour.stream_problem(answer) is not None
        assert len(answer.body) <= 262144


def test_the_counters_of_an_engine_that_has_served_for_weeks_come_back_whole() -> None:
    """A page of vLLM 0.32 is 59 kB when it starts; names, handlers, statuses and long counters make it longer."""
    page = b"".join(b'http_requests_total{handler="/v1/%d"} 1.0\n' % number for number in range(4000))
    page += b"vllm:spec_decode_num_draft_tokens_total 1234567.0\n"
    assert len(page) > 150_000
    with answering(plain(page, kind="text/plain")) as door:
        (answer,) = ask([door.ask("x", "metrics", "/metrics")])
    assert answers.metric(answer.body, "vllm:spec_decode_num_draft_tokens") == 1234567.0


def test_a_key_with_quotes_in_it_arrives_as_it_is() -> None:
    seen: list[bytes] = []
    key = 'sk-"a\\b"'

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            seen.append(self.request.recv(65536))
            self.request.sendall(plain(b"{}"))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        door = Door(Where.DIRECT, f"http://127.0.0.1:{server.server_address[1]}")
        ask([door.ask("x", "models", "/v1/models")], key=key)
        stream([door.chat("x", "stream", {"stream": True})], key=key)
        server.shutdown()
    assert [f"Authorization: Bearer {key}".encode() in request for request in seen] == [True, True]


def test_a_body_that_looks_like_our_own_output_fools_nobody() -> None:
    fake = b'{"a": 1}\n==> ' + b"f" * 16 + b'.0.body <==\n{"choices": [{}]}\n=done 0 200 0 1.0 \n'
    with answering(plain(fake)) as door:
        (answer,) = ask([door.ask("x", "models", "/v1/models")])
    assert answer.body.startswith('{"a": 1}')
    assert answer.json is None


def test_a_reload_waits_for_new_workers_and_holds_the_step_lock() -> None:
    text = Script("verify_reload", ("openresty-qwen.service",), "qwen38").text
    assert "flock" in text
    assert "systemctl reload" in text
    for name in ("verify_ask", "verify_stream", "verify_machine"):
        assert "flock" not in Script(name, (MARK,)).text
