"""The command line: exit codes, where things are printed, what happens before any connection."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FLEET")}
    return subprocess.run(
        [sys.executable, "-m", "fleetctl", *words],
        env={**clean, "FLEETCTL_INVENTORY": str(ROOT / "inventory.yaml"), **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("fleetctl ")
    assert "add-machine" in run("--help").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("add-machine", "76"),
        ("restart", "67/9"),
        ("stop",),
        ("rollout", "--mtp", "99"),
        ("status", "-o", "xml"),
        ("fly",),
    ],
)
def test_bad_words_are_a_usage_error_before_any_connection(words: tuple[str, ...]) -> None:
    done = run(*words, FLEET_API_KEY="sk-unit-0123456789")
    assert done.returncode == 2
    assert done.stderr
    assert "Traceback" not in done.stderr


def test_an_error_is_a_json_document_too() -> None:
    done = run("restart", "67/9", "-o", "json", FLEET_API_KEY="sk-unit-0123456789")
    document = json.loads(done.stdout)
    assert document["schema"] == 1
    assert document["exit"] == 2


def test_a_broken_inventory_is_named_with_line_and_caret(tmp_path: Path) -> None:
    broken = tmp_path / "inventory.yaml"
    broken.write_text((ROOT / "inventory.yaml").read_text().replace("source: 69", "sorce: 69"))
    done = run("status", "-i", str(broken))
    assert done.returncode == 2
    assert "inventory.yaml:" in done.stderr
    assert "^" in done.stderr
    assert "source" in done.stderr


def test_set_values_are_checked_before_any_connection() -> None:
    for item in ("max-num-seqs=1", "engine.=1", "engine.x=[", "engine.api-key=sk-1234567890"):
        assert run("rollout", "--set", item, "--yes", FLEET_API_KEY="sk-unit-0123456789").returncode == 2


def test_status_imports_neither_jinja2_nor_rich() -> None:
    code = "import sys; sys.argv=['fleetctl']; from fleetctl.cli import read; from fleetctl.plan import status; "
    code += "print(sorted({'jinja2', 'rich', 'tenacity'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_words_that_mean_nothing_are_a_json_document_too() -> None:
    for words in (("status", "--bogus", "-o", "json"), ("rollout", "--mtp", "99", "-o", "json")):
        assert json.loads(run(*words).stdout)["exit"] == 2


def test_an_empty_list_of_machines_is_not_every_machine() -> None:
    done = run("rollout", "--machines", "", "--yes", FLEET_API_KEY="sk-unit-0123456789")
    assert done.returncode == 2


def test_a_session_id_is_one_line() -> None:
    for session in ("", "a\nb"):
        assert run("route", session, FLEET_API_KEY="sk-unit-0123456789").returncode == 2


def test_output_that_cannot_be_written_is_an_error_and_no_traceback() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fleetctl", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


def test_an_inventory_with_a_mistake_says_which_line_to_mend_and_repeats_what_was_typed(tmp_path: Path) -> None:
    broken = tmp_path / "prod.yaml"
    text = (ROOT / "inventory.yaml").read_text().replace("source: 69", "source: 96")
    broken.write_text(text)
    line = text[: text.index("source: 96")].count("\n") + 1
    done = run("check", "-i", str(broken))
    assert done.returncode == 2
    assert f"  next:  mend {broken}:{line}, then fleetctl check -i {broken}\n" in done.stderr


def test_a_typed_inventory_that_is_not_there_is_no_reason_to_type_the_same_again(tmp_path: Path) -> None:
    missing = tmp_path / "prod.yaml"
    done = run("check", "-i", str(missing))
    assert done.returncode == 2
    assert f"fleetctl check -i {missing}" not in done.stderr
    assert "-i FILE" in done.stderr


def test_the_variable_needs_no_repeating(tmp_path: Path) -> None:
    broken = tmp_path / "prod.yaml"
    broken.write_text("fleet: x\n")
    done = run("status", FLEETCTL_INVENTORY=str(broken))
    assert "then fleetctl check\n" in done.stderr


def test_a_hint_goes_to_the_fleet_that_was_typed() -> None:
    inventory = str(ROOT / "inventory.yaml")
    done = run("add-machine", "-i", inventory, "-o", "json", "76", FLEETCTL_INVENTORY="/elsewhere.yaml")
    assert done.returncode == 2
    plain = run("remove-machine", "-i", inventory, "76", FLEETCTL_INVENTORY="/elsewhere.yaml")
    assert f"fleetctl status -i {inventory}; " in plain.stderr
    document = json.loads(run("remove-machine", "-i", inventory, "-o", "json", "76").stdout)
    assert document["next"].startswith(f"fleetctl status -i {inventory}; ")


def test_the_help_cuts_no_sentence() -> None:
    for words in (("--help",), ("balancer", "--help"), ("lab", "--help")):
        assert not re.search(r"\S\.\.\.", run(*words).stdout.partition("Commands:")[2])


SIGNALLED = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
number, mode, name = int(sys.argv[1]), sys.argv[2], sys.argv[3]

class Meddler:
    # The signal comes while this module is imported.
    def find_spec(self, module, path=None, target=None):
        if module == name:
            if mode == "wrapped":
                try:
                    os.kill(os.getpid(), number)
                except KeyboardInterrupt as error:
                    raise RuntimeError(f"no schema: {error!r}") from None
            os.kill(os.getpid(), number)

sys.meta_path.insert(0, Meddler())
if mode == "nohup":
    signal.signal(number, signal.SIG_IGN)
sys.argv = ["fleetctl", "status", "-i", "/nonexistent.yaml"]
from fleetctl.__main__ import main
main()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("mode", ["plain", "wrapped", "nohup"])
@pytest.mark.parametrize("module", ["fleetctl.cli.app", "fleetctl.fleet.schema"])
def test_a_signal_ends_a_command_that_is_still_being_loaded(number: signal.Signals, mode: str, module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED, str(int(number)), mode, module], capture_output=True, text=True, check=False
    )
    if mode == "nohup":
        assert done.returncode == 2, done.stderr
        assert "/nonexistent.yaml" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("reason", ["a\nb", "\x1b[31mred", "tab\t", "\x7f"])
def test_a_reason_that_would_move_the_cursor_of_others_is_refused(reason: str) -> None:
    done = run("stop", "67/2", "--yes", "--reason", reason, FLEET_API_KEY="sk-unit-0123456789")
    assert done.returncode == 2
    assert "--reason: one line of printable characters" in done.stderr


def test_a_report_is_a_file_never_beside_the_folder_that_was_named(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    done = run("report", "--out", str(folder))
    assert done.returncode == 2
    assert "that is a folder" in done.stderr
    assert f"fleetctl report --out {folder}/report" in done.stderr
    assert list(tmp_path.iterdir()) == [folder]
