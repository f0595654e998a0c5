"""The script that runs `vllm bench serve` in a container, with a docker and a vllm that do as they are told."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from fleetctl.bench import cross
from fleetctl.commands.script import Script

KEY = "sk-in-the-container-0123"
DOCKER = """#!/bin/sh
# docker exec [-i] NAME COMMAND...
printf '%s\\n' "$*" >>"$SEEN"
shift; if [ "$1" = -i ]; then shift; fi
shift
exec "$@"
"""
VLLM = """#!/bin/sh
printf '%s\\n' "vllm $*" >>"$SEEN"
case "$*" in *--help*) echo "--dataset-name --skip-chat-template"; exit ;; esac
[ "$OPENAI_API_KEY" = "$(cat "$KEY_FILE")" ] || { echo "no key"; exit 1; }
if [ -n "${BREAK:-}" ]; then echo "cannot load tokenizer" >&2; exit 1; fi
n=$(wc -l <prompts.jsonl)
echo progress
printf '{"completed": %d, "output_throughput": 400, "mean_tpot_ms": 9, "mean_e2el_ms": 1000, "mean_ttft_ms": 100}' "$n" >result.json
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for name, text in (("docker", DOCKER), ("vllm", VLLM)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "key").write_text(KEY)
    return tmp_path


def run(place: Path, script: Script, stdin: bytes = b"", **more: str) -> subprocess.CompletedProcess[bytes]:
    environment = {
        **os.environ,
        "PATH": f"{place}:{os.environ['PATH']}",
        "SEEN": str(place / "seen"),
        "KEY_FILE": str(place / "key"),
    }
    return subprocess.run(
        ["sh", "-c", script.text], input=stdin, env={**environment, **more}, capture_output=True, check=False
    )


def argv(place: Path) -> list[str]:
    options = run(place, Script("bench_help", ("qwen38-tp2-0",))).stdout.decode()
    return cross.arguments(
        options, url="http://127.0.0.1:8000", model="m", tokenizer="/m", tokens=8, prompts=3, users=1, seed=1
    )


def test_prompts_go_in_and_the_result_comes_out_and_the_key_is_no_argument(place: Path) -> None:
    words = argv(place)
    script = Script("bench_vllm", ("qwen38-tp2-0", str(place / "key"), 60, "mark", *words))
    done = run(place, script, cross.lines(["one", "two", "three"]))
    assert done.returncode == 0, done.stderr
    assert cross.figures(done.stdout.decode(), 3)["tok/s"] == 400
    assert "progress" not in done.stdout.decode()
    seen = (place / "seen").read_text()
    assert "--skip-chat-template" in seen
    assert KEY not in seen + script.text
    assert json.loads(done.stdout.decode().splitlines()[1])["completed"] == 3


def test_what_vllm_says_when_it_fails_is_what_is_said(place: Path) -> None:
    script = Script("bench_vllm", ("qwen38-tp2-0", str(place / "key"), 60, "mark", *argv(place)))
    done = run(place, script, cross.lines(["one"]), BREAK="yes")
    assert done.returncode == 1
    assert "cannot load tokenizer" in done.stderr.decode()


def test_a_container_without_vllm_has_no_options(place: Path) -> None:
    (place / "vllm").write_text("#!/bin/sh\necho \"invalid choice: 'bench'\" >&2\nexit 2\n")
    done = run(place, Script("bench_help", ("qwen38-tp2-0",)))
    assert done.returncode == 0
    assert done.stdout == b""


def test_what_nobody_waits_for_any_more_is_ended_and_nothing_else_is(place: Path) -> None:
    words = argv(place)
    (place / "vllm").write_text('#!/bin/sh\nsleep 61 &\necho started >>"$SEEN"\nwait\n')
    environment = {**os.environ, "PATH": f"{place}:{os.environ['PATH']}", "SEEN": str(place / "seen")}
    started = []
    for mark in ("one", "another"):
        script = Script("bench_vllm", ("qwen38-tp2-0", str(place / "key"), 60, mark, *words))
        one = subprocess.Popen(["sh", "-c", script.text], stdin=subprocess.DEVNULL, env=environment)
        started.append(one)
    try:
        while (place / "seen").read_text().count("started") < 2:
            time.sleep(0.05)
        assert run(place, Script("bench_vllm_stop", ("qwen38-tp2-0", "one"))).returncode == 0
        assert started[0].wait(20) != 0
        assert started[1].poll() is None
    finally:
        run(place, Script("bench_vllm_stop", ("qwen38-tp2-0", "another")))
        started[1].wait(20)
