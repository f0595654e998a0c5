"""restart, start and stop while machines that have no part in it are dead."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.cli import act
from fleetctl.errors import AuthenticationError, FleetctlError, UnreachableError
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts
from fleetctl.plan import actions
from tests.unit.plan.test_expand import context, whole


def session(fleet: Fleet, **dead: FleetctlError) -> Any:
    """Machine 69 has the balancer and is the source."""
    errors = {int(name.removeprefix("m")): error for name, error in dead.items()}
    facts = {m: seen for m, seen in whole(fleet).items() if m not in errors}
    said: list[str] = []
    say = lambda target, words: said.append(words)
    return SimpleNamespace(fleet=fleet, facts=facts, errors=errors, say=say, said=said)


def test_a_balancer_that_is_lost_keeps_nobody_from_a_restart_when_the_person_says_so(fleet: Fleet) -> None:
    found = session(fleet, m69=UnreachableError("no answer"))
    act.do_without(found, {67}, balancer_lost=False)
    assert set(found.errors) == {69}
    act.do_without(found, {67}, balancer_lost=True)
    assert (found.errors, found.facts[69]) == ({}, Facts(69))
    assert "without 69 (no answer): nobody is drained" in found.said[0]


def test_a_source_that_is_dead_keeps_nobody_from_a_restart(fleet: Fleet) -> None:
    other = Fleet(fleet.inventory.model_copy(update={"source": 66}), fleet.path)
    found = session(other, m66=UnreachableError("no answer"))
    act.do_without(found, {67}, balancer_lost=False)
    assert (found.errors, found.facts[66]) == ({}, Facts(66))


@pytest.mark.parametrize("error", [AuthenticationError("refused"), FleetctlError("the probe failed")])
def test_one_that_answers_is_not_dead_and_neither_is_what_is_to_be_restarted(
    fleet: Fleet, error: FleetctlError
) -> None:
    found = session(fleet, m69=error)
    act.do_without(found, {67}, balancer_lost=True)
    assert set(found.errors) == {69}
    found = session(fleet, m69=UnreachableError("no answer"))
    act.do_without(found, {69}, balancer_lost=True)
    assert set(found.errors) == {69}


def test_without_the_balancer_an_instance_is_restarted_and_stopped_undrained(fleet: Fleet) -> None:
    facts = {**whole(fleet), 69: Facts(69)}
    ctx, chosen = context(fleet, facts, (67,)), fleet.on(67)[:1]
    plans = [actions.restart(ctx, chosen), actions.stop(ctx, chosen, who="me", when="now", reason="")]
    assert {op.machine for found in plans for op in found.operations} == {67}
    assert [op.step for op in plans[0].operations] == ["restart", "restart", "restart", "gate"]
