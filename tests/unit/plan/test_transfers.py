"""Jobs and copies against machines that are made up: who serves whom, and who takes over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pytest

from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, UnreachableError
from fleetctl.plan import jobs as jobs_module
from fleetctl.plan import transfers as transfers_module
from fleetctl.plan.jobs import JobFailed, JobGone, Jobs, look
from fleetctl.plan.meter import Meter, Progress, duration, size
from fleetctl.plan.operation import Copy, Job, Operation, Run, Way
from fleetctl.plan.transfers import Transfers
from fleetctl.remote.connection import Result

RUNNING = "ActiveState=active\nSubState=running\nResult=success\n@@progress\nbytes {} 100 copying\n@@log\n"
DONE = "ActiveState=active\nSubState=exited\nResult=success\n@@progress\n@@log\n"
GONE = "ActiveState=inactive\nSubState=dead\nResult=success\nLoadState=not-found\n@@progress\n@@log\n"


def failed(status: int) -> str:
    return f"ActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus={status}\n@@progress\n@@log\nwhy\n"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "POLL", 0.001)
    monkeypatch.setattr(jobs_module, "SOON", 0.001)


class Machines:
    """Answers to scripts, by machine: the states of their jobs one after the other, the last for ever."""

    def __init__(self, states: dict[int, list[str]]) -> None:
        self.states = states
        self.calls: list[tuple[int, str]] = []
        self.lock = threading.Lock()
        self.refuse: set[int] = set()

    def call(self, machine: int, script: Script, timeout: float, stdin: bytes) -> Result:
        with self.lock:
            self.calls.append((machine, script.name))
            if machine in self.refuse:
                raise UnreachableError("gone", machine=machine)
            text = ""
            if script.name == "job_state":
                left = self.states[machine]
                text = left.pop(0) if len(left) > 1 else left[0]
            return Result(0, text, "", 0.0)

    def act(self, machine: int, run: Run, stdin: bytes) -> str:
        return self.call(machine, run.script, 1, stdin).stdout

    def names(self, machine: int) -> list[str]:
        return [name for who, name in self.calls if who == machine]


def transfers(machines: Machines) -> Transfers:
    interrupted = threading.Event()
    jobs = Jobs("f", machines.call, lambda *_: None, lambda *_: None, interrupted)
    return Transfers(jobs, machines.act, lambda *_: None, interrupted)


def way() -> Way:
    run = Run(Script("transfer_key"))
    return Way(run, Run(Script("write_tree")), Script("transfer_allow"), Run(Script("transfer_revoke")))


def copy(source: int, able: list[int], **changes: Any) -> Copy:
    job = Job("fleetctl-f-model", Script("job_model"), PurePosixPath("/p"), 60, "/run/x")
    return Copy("model", job, source, {m: way() for m in able}, frozenset([69]), **changes)


def operation(machine: int, action: Copy) -> Operation:
    return Operation("model", machine, str(machine), "copy", action)


def side_by_side(*work: Callable[[], object]) -> list[BaseException | None]:
    errors: list[BaseException | None] = [None] * len(work)

    def one(index: int) -> None:
        try:
            work[index]()
        except BaseException as error:
            errors[index] = error

    threads = [threading.Thread(target=one, args=(index,)) for index in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "somebody waits for ever"
    return errors


def test_a_receiver_serves_once_it_has_it() -> None:
    machines = Machines({68: [RUNNING.format(1), DONE], 67: [DONE]})
    both = transfers(machines)
    first, second = copy(69, [69]), copy(68, [69, 68])
    assert side_by_side(
        lambda: both.copy(operation(67, second), second), lambda: both.copy(operation(68, first), first)
    ) == [None, None]
    assert machines.calls.index((68, "job_clear")) < machines.calls.index((68, "transfer_allow"))
    assert (69, "transfer_revoke") in machines.calls
    assert (68, "transfer_revoke") in machines.calls


def test_a_source_that_never_gets_it_is_replaced_by_one_that_has_it() -> None:
    machines = Machines({68: [failed(1)], 67: [DONE]})
    both = transfers(machines)
    first, second = copy(69, [69]), copy(68, [69, 68])

    def doomed() -> None:
        with pytest.raises(JobFailed, match="why"):
            both.copy(operation(68, first), first)
        both.lost(68)

    assert side_by_side(lambda: both.copy(operation(67, second), second), doomed) == [None, None]
    assert machines.names(69).count("transfer_allow") == 2


def test_a_source_that_cannot_be_reached_is_replaced() -> None:
    machines = Machines({67: [DONE]})
    machines.refuse = {69}
    one = transfers(machines)
    with pytest.raises(CommandError, match="no machine is left"):
        one.copy(operation(67, copy(69, [69])), copy(69, [69]))
    other = copy(69, [69, 68])
    both = Copy("model", other.job, 69, other.ways, frozenset([69, 68]))
    assert one.copy(operation(67, both), both) == ""
    assert "transfer_allow" in machines.names(68)


def test_a_still_source_is_replaced_only_when_another_has_a_free_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers_module, "STILL", -1.0)
    monkeypatch.setattr(Meter, "seconds", 20.0)
    machines = Machines({67: [RUNNING.format(5), RUNNING.format(5), DONE]})
    other = copy(69, [69, 68])
    both = Copy("model", other.job, 69, other.ways, frozenset([69, 68]))
    transfers(machines).copy(operation(67, both), both)
    assert machines.names(67).count("job_stop") == 1
    assert "transfer_allow" in machines.names(68)
    alone = copy(69, [69])
    machines = Machines({67: [RUNNING.format(5), RUNNING.format(5), DONE]})
    transfers(machines).copy(operation(67, alone), alone)
    assert "job_stop" not in machines.names(67)


def test_a_receiver_that_loads_a_layer_does_not_wait_for_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker unpacks gigabytes for minutes: to end it and ask somebody else would throw the layer away."""
    clock = iter(range(0, 100_000, 5))
    monkeypatch.setattr(jobs_module.time, "monotonic", lambda: float(next(clock)))
    loading = RUNNING.format(5).replace("copying", "loading layer 1 of 2")
    machines = Machines({67: [RUNNING.format(4), *[loading] * 20, *[RUNNING.format(6)] * 2, DONE]})
    other = copy(69, [69, 68])
    both = Copy("model", replace(other.job, deadline=1e6), 69, other.ways, frozenset([69, 68]))
    transfers(machines).copy(operation(67, both), both)
    assert "job_stop" not in machines.names(67)
    machines = Machines({67: [RUNNING.format(4), *[RUNNING.format(5)] * 22, DONE]})
    transfers(machines).copy(operation(67, both), both)
    assert "job_stop" in machines.names(67), "a source that is still is replaced"


@pytest.mark.parametrize("status", [65, 69])
def test_a_source_that_turns_out_to_have_something_else_is_replaced_unless_it_is_the_origin(status: int) -> None:
    machines = Machines({67: [failed(status), DONE]})
    other = copy(69, [69, 68])
    both = Copy("model", other.job, 68, other.ways, frozenset([69, 68]), origin=69)
    transfers(machines).copy(operation(67, both), both)
    assert machines.names(69).count("transfer_allow") == 1
    machines = Machines({67: [failed(65), DONE]})
    with pytest.raises(JobFailed, match="why"):
        transfers(machines).copy(operation(67, both), replace(both, source=69))


def test_a_source_that_cannot_write_down_the_key_is_replaced() -> None:
    machines = Machines({67: [DONE]})
    other = copy(69, [69, 68])
    both = Copy("model", other.job, 69, other.ways, frozenset([69, 68]))
    one, act = transfers(machines), machines.act

    def full(machine: int, run: Run, stdin: bytes) -> str:
        if machine == 69 and run.script.name == "transfer_allow":
            raise CommandError("transfer_allow: No space left on device")
        return act(machine, run, stdin)

    one._act = full
    one.copy(operation(67, both), both)
    assert "transfer_allow" in machines.names(68)
    alone = copy(69, [69])
    with pytest.raises(CommandError, match="No space left") as error:
        one.copy(operation(67, alone), replace(alone, holders=frozenset([69])))
    assert error.value.machine == 69


def test_a_slow_source_is_better_than_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was left for another one, which turns out to be dead."""
    monkeypatch.setattr(transfers_module, "STILL", -1.0)
    monkeypatch.setattr(Meter, "seconds", 20.0)
    machines = Machines({67: [RUNNING.format(5), RUNNING.format(5), DONE]})
    machines.refuse = {68}
    other = copy(69, [69, 68])
    both = Copy("model", other.job, 69, other.ways, frozenset([69, 68]))
    transfers(machines).copy(operation(67, both), both)
    assert machines.names(69).count("transfer_allow") == 2


def test_a_source_serves_no_more_than_it_may_and_in_the_planned_order() -> None:
    machines = Machines({68: [RUNNING.format(1)] * 3 + [DONE], 67: [DONE]})
    both = transfers(machines)
    first, second = copy(69, [69]), copy(69, [69], after=(68,))
    assert side_by_side(
        lambda: both.copy(operation(67, second), second), lambda: both.copy(operation(68, first), first)
    ) == [None, None]
    assert machines.calls.index((68, "job_clear")) < machines.calls.index((67, "job_start"))


def test_a_copy_that_a_reboot_ended_is_let_in_anew() -> None:
    machines = Machines({67: [RUNNING.format(5), GONE, RUNNING.format(6), DONE]})
    one = copy(69, [69])
    transfers(machines).copy(operation(67, one), one)
    assert machines.names(67).count("transfer_key") == 2


def test_a_copy_that_goes_on_is_followed_without_a_new_key() -> None:
    machines = Machines({67: [RUNNING.format(5), DONE]})
    one = copy(69, [69], follow=True)
    transfers(machines).copy(operation(67, one), one)
    assert "transfer_key" not in machines.names(67)


def test_a_copy_that_is_followed_takes_its_sources_place() -> None:
    machines = Machines({68: [RUNNING.format(1)] * 5 + [DONE], 67: [DONE]})
    both = transfers(machines)
    first, second = copy(69, [69], follow=True), copy(69, [69])
    begun = threading.Event()
    call = machines.call

    def told(machine: int, script: Script, timeout: float, stdin: bytes) -> Result:
        begun.set()
        return call(machine, script, timeout, stdin)

    both._jobs._call = told
    errors = side_by_side(
        lambda: both.copy(operation(68, first), first),
        lambda: (begun.wait(5), both.copy(operation(67, second), second)),
    )
    assert errors == [None, None]
    assert machines.calls.index((68, "job_clear")) < machines.calls.index((67, "job_start"))


def test_a_followed_copy_that_stands_still_is_begun_anew_from_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers_module, "STILL", -1.0)
    monkeypatch.setattr(Meter, "seconds", 20.0)
    machines = Machines({67: [RUNNING.format(5), DONE]})
    machines.refuse = {69}
    other = copy(69, [69, 68])
    both = Copy("model", other.job, 69, other.ways, frozenset([69, 68]), follow=True)
    transfers(machines).copy(operation(67, both), both)
    assert machines.names(67).count("job_stop") >= 1
    assert "transfer_allow" in machines.names(68)


def test_a_followed_copy_of_what_is_not_wanted_any_more_is_begun_anew() -> None:
    machines = Machines({67: [failed(65), DONE]})
    one = copy(69, [69], follow=True)
    transfers(machines).copy(operation(67, one), one)
    assert machines.names(67).count("transfer_key") == 1


def test_a_machine_too_busy_to_say_how_its_job_does_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module.time, "sleep", lambda _: None)
    machines = Machines({67: [RUNNING.format(5), DONE]})
    one, busy = copy(69, [69]), [True]
    both, call = transfers(machines), machines.call

    def late(machine: int, script: Script, timeout: float, stdin: bytes) -> Result:
        if script.name == "job_state" and busy:
            busy.pop()
            raise CommandError("a command did not end within 30 s")
        return call(machine, script, timeout, stdin)

    both._jobs._call = late
    both.copy(operation(67, one), one)
    assert not busy


def test_a_followed_copy_that_was_gone_is_let_in_anew() -> None:
    machines = Machines({67: [GONE, DONE]})
    one = copy(69, [69], follow=True)
    transfers(machines).copy(operation(67, one), one)
    assert machines.names(67).count("transfer_key") == 1


def test_the_key_of_a_copy_that_goes_on_out_of_sight_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "OUT_OF_SIGHT", -1.0)
    machines = Machines({67: [RUNNING.format(5)]})
    one = copy(69, [69])
    both = transfers(machines)
    look_at = machines.call

    def vanish(machine: int, script: Script, timeout: float, stdin: bytes) -> Result:
        if script.name == "job_state":
            raise UnreachableError("gone", machine=machine)
        return look_at(machine, script, timeout, stdin)

    monkeypatch.setattr(both._jobs, "_call", vanish)
    with pytest.raises(UnreachableError):
        both.copy(operation(67, one), one)
    assert "transfer_revoke" not in machines.names(69)


def test_a_planned_source_that_cannot_serve_keeps_nobody_waiting() -> None:
    machines = Machines({67: [DONE]})
    one = copy(68, [69])
    transfers(machines).copy(operation(67, one), one)
    assert "transfer_allow" in machines.names(69)


def test_what_was_there_before_is_no_speed() -> None:
    rates: list[float | None] = []
    first = "ActiveState=active\nSubState=running\nResult=success\n@@progress\nchecking\n@@log\n"
    machines = Machines({67: [first, RUNNING.format(90), RUNNING.format(90), DONE]})
    tell = lambda _operation, progress: rates.append(progress.rate)
    jobs = Jobs("f", machines.call, lambda *_: None, tell, threading.Event())
    jobs.run(operation(67, copy(69, [69])), copy(69, [69]).job)
    assert not any(rates)


def test_what_a_look_at_a_job_says() -> None:
    assert look(RUNNING.format(7)).bytes == (7, 100)
    assert look(RUNNING.format(7)).words == "copying"
    assert look(DONE).state == "done"
    assert look(GONE).state == "gone"
    assert look(GONE.replace("@@progress", "Ended=success\n@@progress")).state == "done"
    assert look(GONE.replace("@@progress", "Ended=signal\n@@progress")).state == "failed"
    seen = look(failed(69))
    assert (seen.state, seen.status, seen.log) == ("failed", 69, ("why",))
    # systemd has forgotten the unit, and says 0 of it.
    forgotten = GONE.replace("@@progress", "ExecMainStatus=0\nEnded={}\n@@progress")
    seen = look(forgotten.format("exit-code 69") + "why\n")
    assert (seen.state, seen.status, seen.log) == ("failed", 69, ("why",))
    seen = look(forgotten.format("oom-kill KILL"))
    assert (seen.state, seen.status, seen.log) == ("failed", None, ("ended without a word (oom-kill KILL)",))
    assert look(forgotten.format("success 0")).state == "done"
    assert look(forgotten.format("success TERM")).state == "failed"


def test_a_plain_job_that_a_reboot_ended_is_started_again() -> None:
    machines = Machines({69: [GONE, DONE]})
    jobs = Jobs("f", machines.call, lambda *_: None, lambda *_: None, threading.Event())
    job = Job("fleetctl-f-manifest", Script("job_manifest"), PurePosixPath("/p"), 60)
    jobs.run(operation(69, copy(69, [69])), job)
    assert machines.names(69).count("job_start") == 2
    machines.states[69] = [GONE]
    with pytest.raises(JobGone):
        jobs.run(operation(69, copy(69, [69])), copy(69, [69]).job)


def test_a_job_is_looked_at_often_only_where_its_end_may_be_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    meter = Meter()
    for second in range(20):
        meter.add(float(second), 100 * second)
    assert jobs_module._pause(meter, 10_000) == jobs_module.POLL
    assert jobs_module._pause(meter, 2000) == jobs_module.SOON
    assert jobs_module._pause(meter, 0) == jobs_module.SOON


def test_rate_and_time_left() -> None:
    meter = Meter()
    meter.add(0.0, 1000)
    assert meter.rate is None
    for second in range(1, 40):
        meter.add(float(second), 1000 + 100 * second)
    assert meter.rate == pytest.approx(100)
    assert meter.progress(10_000).left == pytest.approx((10_000 - 4900) / 100)
    meter.add(60.0, 4900)
    assert meter.still == pytest.approx(21)


def test_words_of_sizes_and_times() -> None:
    assert [size(n) for n in (5, 2048, 3 << 20, 30 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "30.0 GiB"]
    assert [duration(s) for s in (40.4, 200, 7500)] == ["40 s", "3 min 20 s", "2 h 5 min"]
    assert str(Progress(50, 100, 10.0, 5.0, "copying")) == "copying, 50 % of 100 B, 10 B/s, 5 s left"
