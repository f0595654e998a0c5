"""Scripts on a real sshd: what comes back, and what is said when something does not."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fleetctl.errors import AuthenticationError, CommandError, FleetctlError, UnreachableError
from fleetctl.remote.connection import Connection
from fleetctl.remote.target import SshTarget
from tests.live.remote.sshd import Server, keygen, wait_until

Connect = Callable[..., Connection]
SECRET = "sk-sentinel-7d1f"


def test_status_and_both_outputs_come_back(connection: Connection) -> None:
    result = connection.run("echo out; echo err >&2; exit 3", timeout=10)
    assert (result.rc, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert 0 < result.seconds < 10


@pytest.mark.parametrize(
    "text", ["two\nlines", "it's", '"$HOME" `id` $(id) \\', "通义 千问", " leading and trailing ", "*?[1]~!#&;|<>"]
)
def test_a_script_arrives_as_it_was_written(connection: Connection, text: str) -> None:
    assert connection.run(f"cat <<'END'\n{text}\nEND\n", timeout=10).stdout == f"{text}\n"


def test_a_script_longer_than_an_argument_may_be_runs(connection: Connection) -> None:
    script = f'# {"x" * 300_000}\nprintf \'%s|\' "$0" "$#"; cat; exit 7\n\n'
    result = connection.run(script, stdin=b"its own input", timeout=10)
    assert (result.rc, result.stdout) == (7, "/bin/sh|0|its own input")


def test_large_input_arrives_whole(connection: Connection) -> None:
    data = bytes(range(256)) * 20_000  # 5 MB, every byte value
    result = connection.run("sha256sum; wc -c </dev/null", stdin=data, timeout=20)
    import hashlib

    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_a_script_may_ignore_large_input(connection: Connection) -> None:
    assert connection.run("exec 0<&-; echo done", stdin=b"x" * 5_000_000, timeout=10).stdout == "done\n"


def test_no_input_is_the_end_of_input(connection: Connection) -> None:
    assert connection.run("cat; echo end", timeout=10).stdout == "end\n"


def test_large_output_is_read_in_linear_time(connection: Connection) -> None:
    result = connection.run("head -c 16000000 /dev/zero | tr '\\0' x", timeout=20)
    assert len(result.stdout) == 16_000_000
    assert result.seconds < 10  # fabric's own run needs 24 s


def test_large_output_on_both_streams_and_large_input_do_not_deadlock(connection: Connection) -> None:
    script = "head -c 4000000 /dev/zero >&2; cat; head -c 4000000 /dev/zero >&2"
    result = connection.run(script, stdin=b"y" * 4_000_000, timeout=20)
    assert (len(result.stdout), len(result.stderr)) == (4_000_000, 8_000_000)


def test_bytes_that_are_no_utf8_are_replaced(connection: Connection) -> None:
    assert connection.run(r"printf 'a\377b'", timeout=10).stdout == "a�b"


def test_lines_are_passed_on_while_the_script_runs(connection: Connection) -> None:
    lines: list[tuple[str, float]] = []
    script = "echo first; read -r _ || sleep 0.5; printf 'sec'; printf 'ond\\nthird'"
    result = connection.run(script, timeout=10, on_output=lambda line: lines.append((line, time.monotonic())))
    assert [line for line, _ in lines] == ["first", "second", "third"]
    assert lines[1][1] - lines[0][1] > 0.3
    assert result.stdout == "first\nsecond\nthird"


def test_followed_output_does_not_fill_memory(connection: Connection) -> None:
    count = 0

    def counts(_: str) -> None:
        nonlocal count
        count += 1

    result = connection.run("seq 200000", timeout=20, on_output=counts)
    assert count == 200_000
    assert len(result.stdout) <= 131_072
    assert result.stdout.endswith("200000\n")


@pytest.mark.parametrize(("name", "rc"), [("KILL", 137), ("TERM", 143), ("SEGV", 139)])
def test_a_script_killed_by_a_signal_is_a_result(connection: Connection, name: str, rc: int) -> None:
    assert connection.run(f"kill -{name} $$; sleep 9", timeout=10).rc == rc


def test_a_command_over_its_time_is_ended_on_the_machine(server: Server, connection: Connection) -> None:
    with pytest.raises(CommandError) as caught:
        connection.run("sleep 4321.5; true", timeout=0.5)
    assert "within 0.5 s" in caught.value.cause
    assert "ended on the machine" in (caught.value.state or "")

    wait_until(lambda: not server.runs(b"4321.5"))
    assert connection.run("echo still here", timeout=10).stdout == "still here\n"


def test_a_command_that_cannot_be_ended_may_still_be_running(connection: Connection) -> None:
    with pytest.raises(CommandError) as caught:
        connection.run("trap '' TERM; echo; sleep 4 & wait; sleep 4", timeout=0.2)
    assert "may still be running on the machine" in (caught.value.state or "")


def test_no_limit_is_no_limit(connection: Connection) -> None:
    assert connection.run("echo ok", timeout=math.inf).stdout == "ok\n"


def test_a_background_process_that_holds_the_output_does_not_hold_us(connection: Connection) -> None:
    result = connection.run("sleep 6 & echo started", timeout=30)
    assert result.stdout == "started\n"
    assert result.seconds < 5


def test_one_connection_runs_scripts_side_by_side(server: Server, connection: Connection) -> None:
    connection.open()
    sessions = len(server.sessions())
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: answers.append(connection.run(f"sleep 0.3; echo {i}", timeout=10).stdout))
        for i in range(5)
    ]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [f"{i}\n" for i in range(5)]
    assert time.monotonic() - started < 1.4
    assert len(server.sessions()) <= sessions


def test_a_lost_session_is_no_failed_command(make_server: Callable[..., Server], connect: Connect) -> None:
    server = make_server()
    connection = connect(server.target)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            connection.run("cat >/dev/null; sleep 5", stdin=SECRET.encode(), timeout=30)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: server.runs(b"sleep"))
    server.signal(signal.SIGKILL)
    thread.join(3)
    assert isinstance(caught[0], UnreachableError)
    assert not isinstance(caught[0], CommandError)
    assert caught[0].machine == 67
    assert "may still be running" in (caught[0].state or "")
    assert connection.run("echo again", timeout=10).stdout == "again\n"


def test_a_wrong_key_is_refused_once_and_says_which(server: Server, connect: Connect, tmp_path: Path) -> None:
    wrong = keygen(tmp_path / "wrong")
    with pytest.raises(AuthenticationError) as caught:
        connect(server.target, key=str(wrong)).open()
    assert f"{wrong} refused" in caught.value.cause
    assert caught.value.next_command == (f"ssh-copy-id -i {wrong} -p {server.port} {server.target.user}@127.0.0.1")
    log = (server.folder / "log").read_text()
    assert log.count("Connection closed by authenticating user") <= 1


def test_a_key_with_a_passphrase_is_never_asked_for(server: Server, connect: Connect, tmp_path: Path) -> None:
    locked = keygen(tmp_path / "locked", passphrase="correct horse")
    with pytest.raises(AuthenticationError, match="has a passphrase \\(ssh-add "):
        connect(server.target, key=str(locked)).open()


@pytest.mark.parametrize(
    "text", ["", "no key", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n"]
)
def test_a_file_that_is_no_key_is_named(server: Server, connect: Connect, tmp_path: Path, text: str) -> None:
    (tmp_path / "key").write_text(text)
    with pytest.raises(AuthenticationError, match="key is not a private key"):
        connect(server.target, key=str(tmp_path / "key")).open()


def test_every_type_of_key_logs_in(server: Server, connect: Connect, tmp_path: Path) -> None:
    for kind in ("rsa", "ecdsa"):
        key = keygen(tmp_path / kind, kind)
        with (server.folder / "authorized_keys").open("a") as file:
            file.write(Path(f"{key}.pub").read_text())
        connect(server.target, key=str(key)).open()


def test_the_agent_is_asked_after_the_files(server: Server, connect: Connect, tmp_path: Path) -> None:
    import subprocess

    socket = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists)
        env = {**os.environ, "SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", str(server.user_key)], env=env, check=True)
        connect(server.target, key=str(tmp_path / "absent"), agent=str(socket)).open()
        with pytest.raises(AuthenticationError):
            connect(server.target, key=str(tmp_path / "absent"), agent=str(socket), identities_only=True).open()
    finally:
        agent.kill()
        agent.wait()


def test_an_agent_that_hangs_is_left_alone(server: Server, connect: Connect, tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as agent:
        agent.bind(str(tmp_path / "agent"))
        agent.listen()
        with pytest.raises(AuthenticationError, match="does not answer"):
            connect(server.target, key="/absent", agent=str(tmp_path / "agent")).open()


def test_nothing_listening_is_tried_again_and_told(server: Server, connect: Connect) -> None:
    with pytest.raises(UnreachableError, match="connection refused") as caught:
        connect(server.target, port=1).open()
    assert caught.value.exit_code == 4


def test_a_name_without_address_is_told(server: Server, connect: Connect) -> None:
    with pytest.raises(UnreachableError, match="cannot be resolved"):
        connect(server.target, host="no-such-machine.invalid").open()


def test_a_server_that_comes_up_meanwhile_is_reached(make_server: Callable[..., Server], connect: Connect) -> None:
    server = make_server()
    server.process.kill()
    server.process.wait()
    starter = threading.Timer(0.1, server.start)
    starter.start()
    assert connect(server.target).run("echo up", timeout=10).stdout == "up\n"
    starter.join()


class TestSudo:
    @pytest.fixture
    def tools(self, tmp_path: Path) -> Path:
        (tmp_path / "bin").mkdir()
        return tmp_path / "bin"

    @pytest.fixture
    def target(self, make_server: Callable[..., Server], tools: Path) -> SshTarget:
        from dataclasses import replace

        return replace(make_server(env=f"PATH={tools}:/usr/bin:/bin").target, sudo=True, user="root")

    def install(self, tools: Path, text: str) -> None:
        (tools / "sudo").write_text(f"#!/bin/sh\n{text}\n")
        (tools / "sudo").chmod(0o755)

    def test_a_script_runs_through_sudo_n_and_a_shell(self, tools: Path, target: SshTarget, connect: Connect) -> None:
        self.install(tools, 'echo "$1 $2 $3" >&2; shift; exec "$@"')
        result = connect(target).run("cat; echo \"it's\" 'done'", stdin=b"in ", timeout=10)
        assert (result.stdout, result.stderr) == ("in it's done\n", "-n /bin/sh -c\n")

    def test_a_failing_script_is_not_mistaken_for_sudo(self, tools: Path, target: SshTarget, connect: Connect) -> None:
        self.install(tools, 'shift; exec "$@"')
        result = connect(target).run("echo 'sudo: looks like it' >&2; exit 1", timeout=10)
        assert result.rc == 1

    def test_a_password_asked_for_says_what_to_type(self, tools: Path, target: SshTarget, connect: Connect) -> None:
        self.install(tools, "echo 'sudo: a password is required' >&2; exit 1")
        with pytest.raises(CommandError, match="a password is required") as caught:
            connect(target).run("true", timeout=10)
        assert "root ALL=(root) NOPASSWD: ALL" in (caught.value.next_command or "")

    def test_a_machine_without_sudo_says_so(self, target: SshTarget, connect: Connect) -> None:
        if Path("/usr/bin/sudo").exists():
            pytest.skip("this box has sudo")
        with pytest.raises(CommandError, match="has no sudo"):
            connect(target).run("true", timeout=10)

    def test_a_user_that_is_not_root_needs_it(self) -> None:
        assert SshTarget(1, "h", user="deploy").becomes_root
        assert not SshTarget(1, "h", user="root").becomes_root


def test_input_is_in_no_error(server: Server, connection: Connection, connect: Connect) -> None:
    def errors() -> list[FleetctlError]:
        found: list[FleetctlError] = []
        for attempt in (
            lambda: connection.run("sleep 5", stdin=SECRET.encode(), timeout=0.1),
            lambda: connect(server.target, port=1).run("true", stdin=SECRET.encode(), timeout=1),
            lambda: connect(server.target, known_hosts=()).run("true", stdin=SECRET.encode(), timeout=1),
        ):
            with pytest.raises(FleetctlError) as caught:
                attempt()
            found.append(caught.value)
        return found

    for error in errors():
        link: BaseException | None = error
        while link is not None:
            assert SECRET not in f"{link!r} {link} {vars(link)}"
            link = link.__cause__ or link.__context__


def test_input_is_in_no_argument_list(server: Server, connection: Connection) -> None:
    script = "cat >/dev/null; cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
    assert SECRET not in connection.run(script, stdin=SECRET.encode(), timeout=10).stdout
