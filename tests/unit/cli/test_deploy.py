"""`rollout` and `rollback` on the command line: what is recorded as their words, and what a failure comes to."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleetctl.cli import deploy
from fleetctl.cli.options import Options
from fleetctl.errors import FleetctlError, UnreachableError, UsageError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan.release import Release, Whole


def proved(number: int, tokens: int, **more: Any) -> Release:
    whole = Whole(tokens, "image", {})
    return Release(number, Overrides(), "2026-08-29T12:00:00Z", "ops", "rollout", "good", whole, **more)


class Flow:
    """Sessions and their plans: each call of `_deploy` is noted and ends as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fleet: Fleet) -> None:
        self.fleet = fleet
        self.errors: dict[int, FleetctlError] = {}
        self.proved = {1: proved(1, 3), 2: proved(2, 4)}
        self.release = replace(proved(3, 5), outcome="running")
        self.silent: tuple[int, ...] = ()
        self.ends: list[int | FleetctlError] = []
        self.done: list[tuple[str, tuple[int, ...], Any]] = []
        self.words = ""
        monkeypatch.setattr(deploy, "with_session", self._with_session)
        monkeypatch.setattr(deploy, "_deploy", self._deploy)

    def observe(self, machines: Sequence[int]) -> None:
        self.errors = {m: UnreachableError("no answer", machine=m) for m in machines if m in self.silent}

    def require(self, machines: Sequence[int]) -> None:
        for machine in machines:
            if machine in self.errors:
                raise self.errors[machine]

    def _with_session(self, options: Options, machines: Any, act: Callable[[Any], int], *, changes: str) -> int:
        self.words = changes
        assert tuple(machines(self.fleet))
        return act(self)

    def _deploy(
        self,
        options: Options,
        session: Any,
        book: str,
        command: str,
        machines: Sequence[int],
        asked: deploy.Asked,
        tell: Callable[[dict[str, Any]], None] | None = None,
    ) -> int:
        self.done.append((command, tuple(machines), asked))
        end = self.ends.pop(0)
        if isinstance(end, FleetctlError):
            raise end
        if tell is not None:
            tell({"schema": 1, "command": command, "exit": end})
        return end


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch, fleet: Fleet) -> Flow:
    return Flow(monkeypatch, fleet)


def rollout(options: Options | None = None, **more: Any) -> int:
    given = {"mtp": None, "image": None, "settings": [], **more}
    return deploy.rollout(options or Options(yes=True), [], **given)


def test_the_words_of_a_rollout_are_those_that_finish_it(flow: Flow) -> None:
    flow.ends = [0, 0]
    rollout(resume=True)
    assert flow.done[0][0] == flow.words == "rollout --resume", "without it the inventory would be rolled out"
    rollout(mtp=5, settings=['compilation-config={"a": 1}'.replace("compilation", "engine.compilation")])
    assert flow.words == """rollout --mtp 5 --set 'engine.compilation-config={"a": 1}'"""


def test_what_failed_is_rolled_back_and_said_in_one_document(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    flow.ends = [1, 0]
    assert rollout(Options(yes=True, json=True), mtp=5, on_failure="rollback") == 5
    assert [command for command, _, _ in flow.done] == ["rollout --mtp 5", "rollback 2"]
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["exit"]) == ("rollout --mtp 5", 5)
    assert document["rollback"] == {"schema": 1, "command": "rollback 2", "exit": 0}


def test_without_a_rollback_the_document_says_so(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    flow.ends = [0]
    assert rollout(Options(yes=True, json=True), mtp=5, on_failure="rollback") == 0
    assert json.loads(capsys.readouterr().out)["rollback"] is None


def test_a_release_that_proved_good_is_not_left_because_it_was_rolled_out_again(flow: Flow) -> None:
    flow.release = replace(proved(2, 4), outcome="running")  # an instance had died, say
    flow.ends = [1]
    assert rollout(on_failure="rollback") == 1
    assert len(flow.done) == 1


def test_a_machine_that_died_meanwhile_is_left_out_and_the_code_is_1(
    flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    flow.silent = (67,)
    flow.ends = [4, 0]
    assert rollout(mtp=5, on_failure="rollback") == 1
    assert flow.done[1][1] == (69, 68, 66)
    assert "without 67" in capsys.readouterr().err


def test_a_rollback_that_cannot_begin_is_code_1_and_says_why(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    flow.ends = [1, UnreachableError("no answer", machine=69)]
    assert rollout(Options(yes=True, json=True), mtp=5, on_failure="rollback") == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["exit"] == 1
    assert "machine 69: no answer" in err


def test_a_rollback_names_its_release_and_may_leave_a_dead_machine_out(flow: Flow) -> None:
    flow.ends = [0, 0]
    assert deploy.rollback(Options(yes=True), None) == 0
    assert flow.done[0][:2] == ("rollback 2", (69, 68, 67, 66))
    flow.silent = (67,)
    with pytest.raises(UnreachableError):
        deploy.rollback(Options(yes=True), None)
    assert deploy.rollback(Options(yes=True), None, ["69", "68", "66"]) == 0
    assert flow.done[1][:2] == ("rollback 2 --machines 69,68,66", (69, 68, 66))


def test_a_rollback_of_all_passes_over_what_proved_good_on_some(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    """`rollout --machines 67` was good there: nobody knows what it does to the rest."""
    flow.proved[2] = replace(flow.proved[2], left_out=(69, 68, 66), command="rollout --mtp 4 --machines 67")
    flow.ends = [0, 0, 0]
    deploy.rollback(Options(yes=True), None)
    assert flow.done[0][:2] == ("rollback 1", (69, 68, 67, 66))
    assert "release 2 is passed over: it did not prove good on 69,68,66" in capsys.readouterr().err
    deploy.rollback(Options(yes=True), None, ["67"])
    assert flow.done[1][:2] == ("rollback 2 --machines 67", (67,))
    with pytest.raises(UsageError) as error:
        deploy.rollback(Options(yes=True), 2)
    assert error.value.cause == "release 2 (rollout --mtp 4 --machines 67) proved good on 67, and not on 69,68,66"
    assert error.value.next_command == "fleetctl rollback 2 --machines 67"
    del flow.proved[1]
    with pytest.raises(UsageError, match="and not on 69,68,66"):
        deploy.rollback(Options(yes=True), None)
    with pytest.raises(UsageError, match="and not on 69,68,66"):
        deploy.rollback(Options(yes=True), None, ["68"])


def test_what_had_proved_the_release_before_is_not_rolled_back_by_the_run_that_brought_it_to_the_rest(
    flow: Flow,
) -> None:
    flow.proved[3] = proved(3, 5, left_out=(69, 68, 66))
    flow.ends = [1, 0]
    assert rollout(resume=True, on_failure="rollback") == 5
    assert flow.done[1][:2] == ("rollback 2 --machines 69,68,66", (69, 68, 66))


def test_a_rollback_typed_twice_does_not_lead_forward_again(flow: Flow) -> None:
    flow.release = proved(3, 3, back_to=1)
    with pytest.raises(UsageError, match="a way back already, to release 1") as error:
        deploy.rollback(Options(yes=True), None)
    assert "2 (rollout)" in str(error.value.next_command)
    flow.ends = [0]
    assert deploy.rollback(Options(yes=True), 2) == 0


def refused(flow: Flow, **typed: Any) -> str:
    flow.ends = [0]
    rollout(**typed)
    with pytest.raises(UsageError) as caught:
        deploy._forward_only(flow, flow.done[-1][2])  # type: ignore[arg-type]
    return str(caught.value)


def test_after_a_rollback_the_next_command_has_all_that_was_typed(flow: Flow) -> None:
    flow.release = proved(4, 3, back_to=1)
    said = refused(flow, mtp=1, canary="67/1", max_unavailable="2", on_failure="rollback", settings=["engine.seed=1"])
    again = "fleetctl rollout --mtp 1 --set engine.seed=1 --canary 67/1 --max-unavailable 2 --on-failure rollback"
    assert said.endswith(f"next:  {again} --forward"), "the rollback is finished: there is nothing to resume"
    flow.release = replace(flow.release, outcome="running")
    assert refused(flow, mtp=1).endswith(
        "next:  fleetctl rollout --mtp 1 --forward, or fleetctl rollout --resume to finish the rollback"
    )


def test_after_a_rollback_the_inventory_is_said_to_be_ahead_only_where_it_is(flow: Flow) -> None:
    own = Whole(flow.fleet.tokens, flow.fleet.image, flow.fleet.engine)
    flow.release = replace(proved(4, 3, back_to=1), whole=own)
    assert "release 4 went back to 1: this asks for something else" in refused(flow, mtp=1)
    flow.release = replace(flow.release, overrides=Overrides(tokens=3), whole=replace(own, tokens=3))
    assert "release 4 went back to 1: the inventory is ahead of it" in refused(flow)


def test_an_inventory_that_went_back_too_is_rolled_out_without_a_word(flow: Flow) -> None:
    """The override of the rollback says what the inventory says since."""
    flow.release = replace(proved(4, 3, back_to=1), overrides=Overrides(tokens=flow.fleet.tokens))
    flow.ends = [0]
    rollout()
    deploy._forward_only(flow, flow.done[-1][2])  # type: ignore[arg-type]
