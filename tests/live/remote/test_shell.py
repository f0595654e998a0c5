"""The one line that sshd is asked to run."""

from __future__ import annotations

import math

from fleetctl.remote import shell


def test_root_needs_a_shell_and_a_limit_only() -> None:
    assert shell.command("echo 'hi'", b"in", sudo=False, timeout=30) == shell.Command(
        """exec timeout -k 5 30 /bin/sh -c 'echo '"'"'hi'"'"''""", b"in"
    )


def test_another_user_goes_through_sudo_which_never_asks() -> None:
    line = shell.command("true", b"", sudo=True, timeout=0.5).line
    assert line == "sudo -n /bin/sh -c 'exec timeout -k 5 0.5 /bin/sh -c true'"


def test_no_limit_leaves_timeout_out() -> None:
    assert shell.command("true", b"", sudo=False, timeout=math.inf).line == "exec /bin/sh -c true"


def test_a_long_script_goes_ahead_of_its_input() -> None:
    script = "echo " + "'" * 200_000
    command = shell.command(script, b"input", sudo=True, timeout=5)
    assert len(command.line) < 300
    assert "head -c 200005" in command.line
    assert command.stdin == script.encode() + b"input"


def test_length_is_counted_as_it_travels_quoted_and_in_bytes() -> None:
    for script in ("通" * 40_000, "'" * 30_000):
        assert len(shell.command(script, b"", sudo=False, timeout=5).line.encode()) <= shell.LONGEST_LINE
