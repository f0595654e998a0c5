"""What reaches a remote shell is quoted by type, and every script is POSIX sh."""

from __future__ import annotations

import subprocess
from pathlib import PurePosixPath

import pytest

from fleetctl.commands.script import SCRIPTS, Script, quote


def test_every_script_file_parses_as_posix_sh() -> None:
    for file in SCRIPTS.glob("*.sh"):
        subprocess.run(["sh", "-n", file], check=True)


@pytest.mark.parametrize("word", ["a b", "$(id)", "'", '"', "\n", "`x`", "*", "", "张三", "-rf"])
def test_a_word_arrives_as_it_is(word: str) -> None:
    printed = subprocess.run(["sh", "-c", f"printf %s {quote(word)}"], capture_output=True, check=True)
    assert printed.stdout.decode() == word


def test_integers_and_paths_are_quoted_too() -> None:
    assert quote(7) == "7"
    assert quote(PurePosixPath("/a b")) == "'/a b'"


def test_a_bool_or_none_is_refused() -> None:
    for value in (True, None, 1.5):
        with pytest.raises(TypeError):
            quote(value)  # type: ignore[arg-type]


def test_a_script_that_changes_the_machine_holds_the_step_lock() -> None:
    assert "flock" in Script("daemon_reload", (), "qwen38").text
    assert "flock" not in Script("read_file", ("/x",)).text


def test_write_file_leaves_the_old_file_when_the_new_one_cannot_be_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "full" / "file"
    target.parent.mkdir()
    target.write_text("old")
    script = Script("write_file", (str(target), "0644")).text.replace("cat >", "false >")
    done = subprocess.run(["sh", "-c", script], input=b"new", check=False)
    assert done.returncode != 0
    assert target.read_text() == "old"
    assert [p.name for p in target.parent.iterdir()] == ["file"]


def test_swap_file_refuses_when_the_file_changed_meanwhile(tmp_path) -> None:  # type: ignore[no-untyped-def]
    target = tmp_path / "peers"
    target.write_text("theirs")
    script = Script("swap_file", (str(target), "0644", "0" * 64)).text
    done = subprocess.run(["sh", "-c", script], input=b"ours", check=False, capture_output=True)
    assert done.returncode == 76
    assert target.read_text() == "theirs"


def test_a_machine_that_is_forgotten_keeps_both_parts_of_its_audit_log(tmp_path) -> None:  # type: ignore[no-untyped-def]
    state = tmp_path / "state"
    state.mkdir()
    for name in ("audit.log", "audit.log.1", "release.json", ".run.x"):
        (state / name).write_text(name)
    script = Script("forget_fleet", (str(tmp_path / "etc"), str(state)))
    subprocess.run(["sh", "-c", script.text], check=True)
    assert sorted(file.name for file in state.iterdir()) == ["audit.log", "audit.log.1"]
