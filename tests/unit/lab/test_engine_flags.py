"""The simulated `vllm` takes exactly the flags of the capture."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fleetctl.lab.engine.simvllm import flags

ENGINE = Path(flags.__file__).parents[1]


def vllm(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ENGINE / "vllm"), *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)


def parsed(*argv: str) -> dict[str, object]:
    return flags.parse(["serve", "/m", *argv])[1]


def test_an_unknown_flag_ends_with_usage_and_status_2() -> None:
    result = vllm("serve", "/m", "--disable-log-requests", "--port", "1")
    assert result.returncode == 2
    assert result.stderr.startswith("usage: vllm ")
    assert result.stderr.endswith("vllm: error: unrecognized arguments: --disable-log-requests\n")


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (("--port", "x"), "argument --port: invalid int value: 'x'"),
        (("--port",), "argument --port: expected one argument"),
        (("--speculative-config", "{no"), "cannot be converted"),
        (("--max-mod", "5"), "unrecognized arguments: --max-mod 5"),
    ],
)
def test_a_wrong_value_ends_with_status_2(
    argv: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parsed(*argv)
    assert end.value.code == 2
    assert complaint in capsys.readouterr().err


def test_help_all_lists_every_flag_of_the_capture() -> None:
    result = vllm("serve", "--help=all")
    assert result.returncode == 0
    missing = [name for name in flags.table() if f"--{name}" not in result.stdout]
    assert missing == []
    assert "--no-enable-prefix-caching" in result.stdout


def test_the_version_says_that_this_is_a_simulator() -> None:
    assert "simulator" in vllm("--version").stdout


@pytest.mark.parametrize("name", [name for name, default in flags.table().items() if flags.is_boolean(name, default)])
def test_every_boolean_has_its_no_form(name: str) -> None:
    key = name.replace("-", "_")
    assert vars(flags.parse(["serve", f"--{name}"])[0])[key] is True
    assert vars(flags.parse(["serve", f"--no-{name}"])[0])[key] is False


def test_underscores_equals_signs_and_human_lengths_are_taken() -> None:
    given = parsed("--max_model_len=256K", "--tensor_parallel_size", "2", '--additional-config={"a_b":1}')
    assert (given["max_model_len"], given["tensor_parallel_size"]) == (262144, 2)
    assert given["additional_config"] == {"a_b": 1}


def test_only_what_differs_from_the_default_is_named_in_the_log_line() -> None:
    assert parsed("--port", "8000", "--seed", "7") == {"model_tag": "/m", "seed": 7, "model": "/m"}


def test_several_keys_and_names_are_taken() -> None:
    given = parsed("--api-key", "old", "new", "--served-model-name", "a", "b")
    assert (given["api_key"], given["served_model_name"]) == (["old", "new"], ["a", "b"])


def test_a_config_file_adds_flags_and_the_command_line_wins(tmp_path: Path) -> None:
    config = tmp_path / "flags.yaml"
    config.write_text("# comment\nmodel: /other\nport: 9000\ntrust_remote_code: true\napi-key:\n  - one\n  - two\n")
    chosen, _ = flags.parse(["serve", "--config", str(config), "--port", "9001"])
    assert (chosen.model, chosen.port, chosen.trust_remote_code) == ("/other", 9001, True)
    assert chosen.api_key == ["one", "two"]
