"""When the weights on the source are looked at: before they are copied, hashed or loaded anew, never for nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import ModelState
from fleetctl.plan.expand import needs_weights

from .test_expand import context, empty, whole

CHANGED = ModelState(True, "n" * 64, "m" * 64, "l" * 64, 300 << 20)


def test_machines_that_hold_the_sources_model_need_no_look(fleet: Fleet) -> None:
    assert not needs_weights(context(fleet, whole(fleet), (69, 67)))


def test_a_machine_without_the_model_gets_it_from_a_source_that_was_looked_at(fleet: Fleet) -> None:
    assert needs_weights(context(fleet, {**whole(fleet), 67: empty(fleet)[67]}, (67,)))
    assert not needs_weights(context(fleet, {**whole(fleet), 67: empty(fleet)[67]}, (66,)))


@pytest.mark.parametrize("machine", [69, 67])
def test_a_model_that_changed_on_the_source_is_looked_at_again(fleet: Fleet, machine: int) -> None:
    facts = whole(fleet)
    facts[69] = replace(facts[69], model=CHANGED)
    assert needs_weights(context(fleet, facts, (machine,)))


def test_without_a_model_there_is_nothing_to_look_at(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[69] = replace(facts[69], model=ModelState(False, None, None, None, None))
    assert not needs_weights(context(fleet, facts, (67,)))


def test_other_flags_may_need_tensors_that_the_old_ones_did_not(fleet: Fleet) -> None:
    assert needs_weights(context(fleet.with_overrides(Overrides(tokens=5)), whole(fleet), (67,)))
