"""The desired state is the inventory plus the overrides of the current release."""

from __future__ import annotations

import json
from dataclasses import replace

from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan import release
from fleetctl.plan.release import Release, Whole

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


def proven(number: int, tokens: int, **more: object) -> Release:
    whole = Whole(tokens, "image", {"max-num-seqs": 32})
    return replace(FIVE, number=number, whole=whole, **more)  # type: ignore[arg-type]


def test_what_it_asked_for_as_a_whole_is_read_back() -> None:
    one = replace(proven(3, 4), back_to=1)
    assert release.parse(json.loads(one.text())) == one


def test_only_a_release_that_proved_good_is_gone_back_to() -> None:
    documents = [proven(1, 4).document, proven(2, 5, outcome="running").document, FIVE.document]
    good = release.proved(documents)
    assert list(good) == [1]
    assert release.last_good(good, proven(2, 5, outcome="running")) == proven(1, 4)
    assert release.last_good(good, None) is None


def test_the_last_good_one_asked_for_something_else() -> None:
    good = {n: proven(n, tokens) for n, tokens in ((1, 3), (2, 4), (3, 4))}
    assert release.last_good(good, good[3]) == good[1]
    assert release.last_good(good, good[1]) is None


def test_a_way_back_that_was_cut_short_is_finished_by_the_same_command() -> None:
    good = {n: proven(n, tokens) for n, tokens in ((1, 3), (2, 4), (3, 5))}
    half = proven(4, 4, outcome="running", back_to=2)
    assert release.last_good(good, half) == good[2], "not the one that was left"
    assert release.last_good(good, replace(half, outcome="good")) == good[3]


def test_only_what_this_very_rollout_brought_is_rolled_back_by_itself() -> None:
    good = {1: proven(1, 3), 2: proven(2, 4)}
    assert release.undone_by(good, proven(3, 5, outcome="running")) == good[2]
    # The same release once more, because an instance died: the others run what proved good.
    assert release.undone_by(good, proven(2, 4, outcome="running")) is None
    assert release.undone_by(good, proven(3, 3, outcome="running", back_to=1)) is None
    assert release.undone_by(good, proven(3, 5)) is None
    assert release.undone_by({}, proven(3, 5, outcome="running")) is None
    assert release.undone_by(good, None) is None


def test_going_back_is_over_the_inventory_as_it_is_now(fleet: Fleet) -> None:
    flags = {**fleet.engine, "max-num-seqs": 16, "seed": 7}
    flags.pop("max-model-len", None)
    old = Whole(3, "quay.io/other:1", flags)
    back = release.going_back(fleet, old)
    assert release.whole(fleet.with_overrides(back)).tokens == 3
    assert {k: v for k, v in fleet.with_overrides(back).engine.items() if v is not None} == flags
    assert not release.going_back(fleet, release.whole(fleet))


def test_going_back_to_a_time_without_speculation_leaves_it_out(fleet: Fleet) -> None:
    back = release.going_back(fleet, Whole(None, fleet.image, fleet.engine))
    assert not fleet.with_overrides(back).tokens
    plain = Fleet(fleet.inventory.model_copy(update={"speculative": None}), fleet.path)
    assert not release.going_back(plain, release.whole(plain))


def test_the_inventory_is_ahead_only_where_it_asks_for_something_else(fleet: Fleet) -> None:
    same = replace(FIVE, overrides=Overrides(), whole=release.whole(fleet), back_to=1)
    assert not release.ahead(fleet, same)
    assert release.ahead(fleet, replace(same, overrides=Overrides(tokens=5), whole=Whole(5, fleet.image, fleet.engine)))
    edited = replace(same, whole=Whole(fleet.tokens, fleet.image, {**fleet.engine, "max-num-seqs": 16}))
    assert release.ahead(fleet, edited), "edited since, though nothing was overridden"
    assert release.ahead(fleet, replace(same, overrides=Overrides(tokens=5), whole=None))


def test_the_highest_number_is_of_all_that_was_ever_recorded() -> None:
    assert release.highest([None, {"number": "x"}]) == 0
    assert release.highest([proven(3, 4).document, None, proven(1, 4).document, [9]]) == 3
