"""Edits of the balancer's table, with the real scripts on a file: only the way to the machine is a local shell."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import Peer, PeersError, PeerState
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, UnreachableError
from fleetctl.plan import causes
from fleetctl.plan.executor import Executor
from fleetctl.plan.operation import EditPeers, Judgement, Operation, Plan, Run, Status, Verdict, Wait, sequence
from fleetctl.remote.connection import Result

TABLE = (Peer("69/0", "10.0.0.69:8000"), Peer("67/0", "10.0.0.67:8000"))


class Machine:
    """The balancer's: a peers file, and a balancer that has loaded the last whole one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "peers"
        self.loaded: tuple[Peer, ...] = TABLE

    def __getitem__(self, machine: int) -> Machine:
        return self

    def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
        if "curl" in script:
            return Result(0, self.state(), "", 0)
        text = script.replace("/run/fleetctl", str(self.folder))
        done = subprocess.run(["sh", "-c", text], input=stdin, capture_output=True, check=False)
        return Result(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(), 0)

    def state(self) -> str:
        with suppress(PeersError, OSError):
            self.loaded = peers.parse(self.file.read_text(errors="replace"))
        rows: list[dict[str, Any]] = [{"id": p.id, "address": p.address, "state": p.state.value} for p in self.loaded]
        return json.dumps({"version": peers.version(peers.render(self.loaded)), "config": "c", "peers": rows})


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def edited(machine: Machine, edit: Callable[[tuple[Peer, ...]], tuple[Peer, ...]]) -> Status:
    action = EditPeers(edit, PurePosixPath(machine.file), "http://127.0.0.1:2220/state")
    plan = Plan("drain", "f", sequence("drain", Operation("drain", 69, "67/0", "drain", action)))
    executor = Executor("f", machine, lambda: None, lambda target, words: None)  # type: ignore[arg-type, return-value]
    return executor.execute(plan)[0].status


def drain(table: tuple[Peer, ...]) -> tuple[Peer, ...]:
    return tuple(replace(p, state=PeerState.DRAIN) if p.id == "67/0" else p for p in table)


@pytest.mark.parametrize(
    "broken",
    [
        peers.render(TABLE).encode(),
        None,
        b"",
        b"half a fi",
        b"\xff\xfe not text at all \x80\n",
        peers.render(TABLE).encode("utf-16"),
    ],
    ids=["whole", "gone", "empty", "short", "no text", "another encoding"],
)
def test_a_table_that_somebody_broke_is_written_again_from_what_is_loaded(
    machine: Machine, broken: bytes | None
) -> None:
    if broken is not None:
        machine.file.write_bytes(broken)
    assert edited(machine, drain) is Status.DONE
    assert peers.parse(machine.file.read_text()) == drain(TABLE)


def test_the_known_cause_is_said_beside_the_last_words() -> None:
    class Dead(Machine):
        def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
            return Result(0, "one\ndrvErr=87\n" if "journalctl" in script else "", "", 0)

    judge = lambda text: Judgement(Verdict.DEAD, "unit failed")
    dead = Wait(Script("npu_info"), judge, 9, on_failure=Script("gate_log", ("x", 3)), explain=causes.known)
    plan = Plan("restart", "f", sequence("restart", Operation("gate", 67, "67/0", "wait", dead)))
    executor = Executor("f", Dead(Path()), lambda: None, lambda target, words: None)  # type: ignore[arg-type, return-value]
    error = executor.execute(plan)[0].error
    assert error is not None
    assert (error.state or "").startswith("its last words:\none\ndrvErr=87\nknown cause: its NPUs are held")


def test_why_it_failed_is_said_also_when_the_last_words_cannot_be_had() -> None:
    class Gone(Machine):
        def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
            if "journalctl" in script:
                raise UnreachableError("the connection was lost")
            return Result(0, "", "", 0)

    dead = Wait(
        Script("npu_info"),
        lambda text: Judgement(Verdict.DEAD, "unit failed"),
        9,
        on_failure=Script("gate_log", ("x", 3)),
    )
    plan = Plan("restart", "f", sequence("restart", Operation("gate", 67, "67/0", "wait", dead)))
    executor = Executor("f", Gone(Path()), lambda: None, lambda target, words: None)  # type: ignore[arg-type, return-value]
    error = executor.execute(plan)[0].error
    assert error is not None
    assert (error.cause, type(error)) == ("unit failed", CommandError)


def test_an_answer_that_is_judged_bad_says_how_things_are_and_what_to_do() -> None:
    class Answers(Machine):
        def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
            return Result(0, "rubbish", "", 0)

    bad = Run(Script("canary"), judge=lambda text: Judgement(Verdict.DEAD, text), state="drained", next_command="back")
    plan = Plan("rollout", "f", sequence("rollout", Operation("canary", 67, "67/0", "ask", bad)))
    executor = Executor("f", Answers(Path()), lambda: None, lambda target, words: None)  # type: ignore[arg-type, return-value]
    error = executor.execute(plan)[0].error
    assert error is not None
    assert (error.cause, error.state, error.next_command) == ("rubbish", "drained", "back")
