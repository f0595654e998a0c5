"""Our engine beside the image's own `vllm bench serve`: what it is told, what it says, whether the two agree."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetctl.bench import cross
from fleetctl.bench.results import result
from fleetctl.errors import CommandError

from . import build

HELP = """
  --backend {openai,openai-chat}
  --dataset-name {sharegpt,custom,random}
  --custom-skip-chat-template
  --num-warmups NUM_WARMUPS
"""
CELL: dict[str, Any] = {"url": "http://127.0.0.1:8000", "model": "m", "tokenizer": "/models/m"}


def told(options: str) -> list[str]:
    return cross.arguments(options, **CELL, tokens=128, prompts=32, users=4, seed=7)


def test_only_options_that_this_version_knows_are_used() -> None:
    old = told(HELP)
    assert "--custom-skip-chat-template" in old
    assert "--skip-chat-template" not in old
    assert "--temperature" not in old
    assert old[old.index("--num-warmups") + 1] == "4"
    new = told(HELP + "  --skip-chat-template\n  --temperature TEMPERATURE\n")
    assert "--skip-chat-template" in new
    assert new[new.index("--temperature") + 1] == "0"
    assert old[:3] == ["vllm", "bench", "serve"]


@pytest.mark.parametrize("options", ["", "usage: vllm [-h] [-v] {serve} ..."])
def test_an_image_without_it_is_said_to_have_none(options: str) -> None:
    with pytest.raises(CommandError, match="the image has no `vllm bench serve`"):
        told(options)


def document(**changes: Any) -> str:
    known = {"output_throughput": 400.0, "mean_tpot_ms": 9.0, "mean_e2el_ms": 1000.0, "mean_ttft_ms": 100.0}
    return "noise\n@@result\n" + json.dumps({**known, "completed": 32, **changes})


def test_its_figures_are_read_in_our_units() -> None:
    assert cross.figures(document(), 32) == pytest.approx({"tok/s": 400.0, "TPOT": 0.009, "E2E": 1.0, "TTFT": 0.1})


@pytest.mark.parametrize(
    ("text", "words"),
    [("", "left no result"), ("@@result\n{}", "left no result"), (document(completed=31), "completed 31 of 32")],
)
def test_what_is_no_whole_result_is_none(text: str, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        cross.figures(text, 32)


def a_check(ratio: float, rounds: int = 6) -> Any:
    """Six rounds of eight requests, 100 tokens in a second each, `ratio` times as long as vllm has it."""
    samples, events = [], []
    for number in range(1, rounds + 1):
        cell, wobble = f"round {number}", 1 + 0.01 * (-1) ** number
        for n in range(8):
            took = ratio * wobble
            at = {"scheduled": 0.0, "sent": 0.0, "first": 0.1 * took, "last": took, "end": took}
            samples.append(build.sample(number * 100 + n, cell=cell, **at))
        figures = {"tok/s": 800.0, "TPOT": 0.9 / 99, "E2E": 1.0, "TTFT": 0.1}
        events.append({"what": "vllm", "cell": cell, "figures": figures})
    run = build.run(samples, scenario="cross-check", parameters={"backend": "69/0", "users": 8})
    run.events[:] = events
    return result(run)


@pytest.mark.parametrize(("ratio", "verdict"), [(1.0, "ok"), (1.5, "failed"), (1.1, "warn")])
def test_they_agree_when_the_interval_lies_within_ten_percent(ratio: float, verdict: str) -> None:
    found = a_check(ratio)
    judged = {check.what: check.verdict for check in found.checks if "vllm" in check.what}
    assert judged["E2E as `vllm bench serve` has it"] == verdict
    assert len(judged) == 3, "not TTFT: the way is part of ours"
    assert [row[0] for row in found.tables[0].rows] == ["tok/s", "TPOT", "E2E", "TTFT"]


def test_with_few_rounds_nothing_is_decided() -> None:
    judged = [check.verdict for check in a_check(1.0, 3).checks if "vllm" in check.what]
    assert judged == ["unknown"] * 3


def test_prompts_are_a_line_each() -> None:
    assert cross.lines(["a\nb", "ü"]) == '{"prompt": "a\\nb"}\n{"prompt": "ü"}\n'.encode()
