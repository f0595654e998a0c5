"""The engine's command line, and what an image says about its flags."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.errors import UsageError
from fleetctl.fleet.flags import check_overrides, engine_argv, flag, lint_flags, parse_help
from fleetctl.fleet.fleet import Overrides
from tests.unit.fleet.build import fleet, with_engine

DATA = Path(__file__).parent / "data"


def test_the_command_line_of_the_report() -> None:
    shape = fleet()
    assert engine_argv(shape, shape.on(67)[2])[:9] == [
        "vllm", "serve", "/models/Qwen3.8-27B-W8A8", "--served-model-name", "Qwen3.8-27B-W8A8",
        "--host", "0.0.0.0", "--port", "8002",
    ]  # fmt: skip
    assert engine_argv(shape, shape.on(67)[2])[-2:] == [
        "--speculative-config",
        '{"method":"mtp","num_speculative_tokens":4}',
    ]


def test_flags_keep_the_order_of_the_inventory() -> None:
    shape = fleet(engine={"seed": 1, "dtype": "auto", "max-num-seqs": 2})
    assert engine_argv(shape, shape.instances[0])[9:-2] == ["--seed", "1", "--dtype", "auto", "--max-num-seqs", "2"]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("enforce-eager", True, ["--enforce-eager"]),
        ("enable-prefix-caching", False, ["--no-enable-prefix-caching"]),
        ("seed", None, []),
        ("seed", 0, ["--seed", "0"]),
        ("gpu-memory-utilization", 0.9, ["--gpu-memory-utilization", "0.9"]),
        ("max_model_len", 4096, ["--max-model-len", "4096"]),
        ("compilation-config", {"cudagraph_mode": "FULL_DECODE_ONLY", "x": [1]}, ["--compilation-config", '{"cudagraph_mode":"FULL_DECODE_ONLY","x":[1]}']),
        ("allowed-media-domains", ["a.example", "b.example"], ["--allowed-media-domains", "a.example", "b.example"]),
        ("lora-modules", [{"name": "a"}, {"name": "b"}], ["--lora-modules", '{"name":"a"}', '{"name":"b"}']),
        ("allowed-origins", ["*"], ["--allowed-origins", '["*"]']),
        ("middleware", ["a", "b"], ["--middleware", "a", "--middleware", "b"]),
        ("disable-access-log-for-endpoints", ["/health", "/metrics"], ["--disable-access-log-for-endpoints", "/health,/metrics"]),
        ("cudagraph-capture-sizes", [], []),
        ("compilation-config.cudagraph_mode", "FULL", ["--compilation-config.cudagraph_mode", "FULL"]),
        ("chat-template", "a b; $(c) 'd'", ["--chat-template", "a b; $(c) 'd'"]),
    ],
)  # fmt: skip
def test_a_flag_becomes_these_arguments(name: str, value: object, expected: list[str]) -> None:
    assert flag(name, value) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [0, None])
def test_without_speculative_tokens_the_flag_is_absent(tokens: int | None) -> None:
    shape = fleet(speculative=None) if tokens is None else fleet(speculative__tokens=tokens)
    assert "--speculative-config" not in engine_argv(shape, shape.instances[0])


def test_the_overrides_of_a_release_are_what_runs() -> None:
    shape = fleet().with_overrides(Overrides(tokens=5, engine=(("max_num_seqs", 16), ("seed", 7), ("dtype", None))))
    argv = engine_argv(shape, shape.instances[0])
    assert argv[argv.index("--max-num-seqs") + 1] == "16"
    assert argv.count("--max-num-seqs") == 1
    assert argv[argv.index("--seed") + 1] == "7"
    assert "--dtype" not in argv
    assert json.loads(argv[-1])["num_speculative_tokens"] == 5


def test_computed_and_mistyped_flags_are_refused_on_the_command_line_too() -> None:
    check_overrides({"max-num-seqs": 16, "anything-else": "x"})
    with pytest.raises(UsageError) as caught:
        check_overrides({"port": 1, "api_key": "k", "max-num-seqs": "many", "a b": 1})
    for part in ("engine.port", "engine.api-key", "engine.max-num-seqs: expected a whole number", "engine.a b"):
        assert part in str(caught.value)


def test_the_help_of_vllm_is_read_flag_by_flag() -> None:
    known = parse_help((DATA / "serve-help.txt").read_text(encoding="utf-8"))
    assert {
        "max-model-len",
        "no-enable-prefix-caching",
        "enable-prefix-caching",
        "speculative-config",
        "dtype",
    } <= known
    assert {"tensor-parallel-size", "help", "served-model-name", "hf-overrides"} <= known
    assert not {"mentioned-in-prose", "also-mentioned", "tool-parser-plugin", "tp"} & known


def test_a_flag_that_only_prose_mentions_is_not_known() -> None:
    known = parse_help("options:\n  --real VALUE  Used together with\n                        --imaginary in tests.\n")
    assert known == {"real"}


def test_an_unknown_flag_offers_the_nearest() -> None:
    known = parse_help((DATA / "serve-help.txt").read_text(encoding="utf-8"))
    found = lint_flags({"max-model-length": 1, "max_model_len": 2, "compilation-config.mode": 3}, known)
    assert [str(problem) for problem in found] == [
        'engine.max-model-length: the image\'s vllm serve has no --max-model-length; did you mean "max-model-len"?'
    ]


def test_the_shipped_flags_are_all_flags_of_vllm() -> None:
    flags = (DATA / "serve-flags.tsv").read_text(encoding="utf-8").splitlines()[1:]
    known = {line.split("\t")[0].removeprefix("--") for line in flags}
    assert lint_flags(fleet().engine, known) == []


def test_help_that_could_not_be_read_accuses_nobody() -> None:
    assert lint_flags({"anything": 1}, parse_help("bash: vllm: command not found")) == []


def test_a_fleet_with_changed_flags_still_never_holds_a_key() -> None:
    shape = with_engine(max_num_seqs=8)
    assert not any("api-key" in word for word in engine_argv(shape, shape.instances[0]))
