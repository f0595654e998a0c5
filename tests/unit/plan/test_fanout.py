"""Who copies from whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.plan.fanout import pairs


def test_three_receivers_take_two_turns() -> None:
    found = pairs([68, 67, 66], [69], 1)
    assert {m: (p.source, p.turn) for m, p in found.items()} == {68: (69, 1), 67: (69, 2), 66: (68, 2)}
    assert found[67].after == (68,)
    assert found[66].after == ()


def test_fifteen_receivers_take_four_turns() -> None:
    assert max(p.turn for p in pairs(range(1, 16), [0], 1).values()) == 4


def test_a_machine_that_has_it_already_serves_from_the_first_turn() -> None:
    assert {m: p.source for m, p in pairs([67, 66], [69, 68], 1).items()} == {67: 69, 66: 68}


def test_a_receiver_that_cannot_serve_is_nobodys_source() -> None:
    found = pairs([68, 67, 66], [69], 1, able={67, 66})
    assert {m: (p.source, p.turn) for m, p in found.items()} == {68: (69, 1), 67: (69, 2), 66: (69, 3)}


def test_nobody_has_it() -> None:
    with pytest.raises(ValueError, match="no machine has it"):
        pairs([67], [], 1)
    assert pairs([], [], 1) == {}


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 4))
def test_every_source_has_it_before_and_serves_no_more_than_it_may(count: int, holders: int, serves: int) -> None:
    found = pairs(range(100, 100 + count), range(holders), serves)
    assert list(found) == list(range(100, 100 + count))
    for pair in found.values():
        assert pair.source < holders or found[pair.source].turn < pair.turn
        same = [p for p in found.values() if (p.source, p.turn) == (pair.source, pair.turn)]
        assert len(same) <= serves
        assert set(pair.after) == {p.receiver for p in found.values() if p.source == pair.source and p.turn < pair.turn}
