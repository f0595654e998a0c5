"""The desired state is the inventory plus the overrides of the current release."""

from __future__ import annotations

import json

from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan import release
from fleetctl.plan.release import Release

FIVE = Release(
    2, Overrides(tokens=5, engine=(("max-num-seqs", 16),)), "2026-08-29T12:00:00Z", "ops", "rollout --mtp 5", "good"
)


def test_a_release_is_read_back_as_it_was_written() -> None:
    assert release.parse(json.loads(FIVE.text())) == FIVE


def test_the_newest_of_what_machines_know_is_in_force() -> None:
    one = json.loads(FIVE.text())
    assert release.newest([None, {**one, "number": 1}, one]) == FIVE
    assert release.newest([None, {}, "rubbish"]) is None


def test_an_override_that_says_what_the_inventory_says_is_none(fleet: Fleet) -> None:
    assert not release.needed(fleet, Overrides(tokens=4, image=fleet.image, engine=(("max-num-seqs", 32),)))
    assert release.needed(fleet, Overrides(tokens=5)) == Overrides(tokens=5)


def test_overrides_in_words() -> None:
    assert release.words(FIVE.overrides) == "mtp 5, engine.max-num-seqs 16"
    assert release.words(Overrides()) == "the inventory as it stands"


def test_a_release_is_good_only_if_every_machine_says_so() -> None:
    good = json.loads(FIVE.text())
    found = release.newest([good, {**good, "outcome": "running"}, good])
    assert found is not None
    assert found.outcome == "running"
