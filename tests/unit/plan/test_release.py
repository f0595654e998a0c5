"""The desired state is the inventory plus the overrides of the current release."""

from __future__ import annotations

import json
from dataclasses import replace

from fleetctl.commands import docker
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


def with_env(fleet: Fleet, **env: str) -> Fleet:
    """The inventory with other instances: `env` alone is their environment."""
    instances = fleet.inventory.instances.model_copy(update={"env": env})
    return Fleet(fleet.inventory.model_copy(update={"instances": instances}), fleet.path, fleet.overrides)


def arguments(fleet: Fleet) -> list[str]:
    return docker.run_arguments(fleet, fleet.on(67)[0], docker.Topology())


def test_going_back_brings_the_environment_back_that_ran_then(fleet: Fleet) -> None:
    then, now = with_env(fleet, A="1", B="2"), with_env(fleet, A="3", C="4")
    document = json.loads(replace(FIVE, whole=release.whole(then)).text())
    old = release.parse(document)
    assert old is not None
    assert old.whole is not None
    back = now.with_overrides(release.going_back(now, old.whole))
    assert arguments(back) == arguments(then)
    assert release.words(back.overrides) == "env.A as it was, env.B as it was, env.C left out", "only names"
    again = release.parse(json.loads(replace(old, overrides=back.overrides).text()))
    assert again is not None
    assert again.overrides == back.overrides
    assert not release.needed(then, back.overrides), "and the inventory that went back too needs nothing"


def test_going_back_brings_all_back_that_decides_how_an_engine_runs(fleet: Fleet) -> None:
    own, speculative = fleet.inventory.instances, fleet.inventory.speculative
    assert speculative is not None
    edited = fleet.inventory.model_copy(
        update={
            "instances": own.model_copy(update={"shm_size": "1g", "cpuset": "off", "log_max_size": "1m"}),
            "speculative": speculative.model_copy(update={"method": "eagle3"}),
        }
    )
    now = Fleet(edited, fleet.path)
    assert arguments(now) != arguments(fleet)
    back = now.with_overrides(release.going_back(now, release.whole(fleet)))
    assert arguments(back) == arguments(fleet)
    assert "shm_size 16g" in release.words(back.overrides)


def test_a_release_of_an_older_fleetctl_leaves_the_environment_to_the_inventory(fleet: Fleet) -> None:
    document = replace(FIVE, overrides=Overrides(), whole=release.whole(with_env(fleet, A="1"))).document
    for part in ("overrides", "whole"):
        document[part] = {key: document[part][key] for key in ("tokens", "image", "engine")}
    del document["left_out"]
    old = release.parse(document)
    assert old is not None
    assert old.whole is not None
    now = with_env(fleet, A="2")
    assert not release.going_back(now, old.whole)
    # It asks for nothing else: it is not what a bare rollback goes back to.
    assert release.last_good({2: old}, replace(old, number=3, whole=release.whole(now))) is None
    assert not release.ahead(now, old)


def test_what_may_be_a_secret_enters_no_release_and_stays_as_the_inventory_says(fleet: Fleet) -> None:
    secrets = {"DB_PASSWORD": "hunter2", "MY_KEY": "k1", "HTTPS_PROXY": "http://me:pw1@proxy:1", "X": "sk-abcdef12345"}
    then, now = with_env(fleet, A="1", **secrets), with_env(fleet, A="2", **dict.fromkeys(secrets, "new"))
    text = replace(FIVE, whole=release.whole(then)).text()
    assert '"A": "1"' in text
    assert not any(value in text for value in secrets.values())
    back = now.with_overrides(release.going_back(now, release.whole(then)))
    assert back.env["A"] == "1"
    assert {name: back.env[name] for name in secrets} == dict.fromkeys(secrets, "new")
    before = with_env(fleet, A="1")
    assert now.with_overrides(release.going_back(now, release.whole(before))).env == {"A": "1"}, "not there then"


def test_a_release_is_a_target_for_all_but_those_that_were_left_out(fleet: Fleet) -> None:
    some = proven(2, 5, left_out=(69, 68, 66))
    good = release.proved([proven(1, 4).document, some.document])
    assert list(release.proved_on(good, fleet.machines)) == [1]
    assert list(release.proved_on(good, [67])) == [1, 2]
    assert list(release.proved_on(good, [67, 65])) == [1, 2], "one that joined later was not left out"
    assert release.partly(good[2], fleet.machines) == ("67", "69,68,66")
    assert release.partly(good[1], fleet.machines) is None
    # 68 followed: each record knows of those before it.
    good = release.proved([some.document, replace(some, left_out=(69, 66)).document])
    assert good[2].left_out == (69, 66)


def test_what_was_tried_only_on_those_who_go_is_in_force_no_more() -> None:
    good = {1: proven(1, 3), 2: proven(2, 4, left_out=(67,)), 3: proven(3, 5, left_out=(69, 68, 67))}

    def without(*stay: int, **more: object) -> int | None:
        trial = replace(proven(4, 8), **{"outcome": "running", "left_out": (69, 68, 67), **more})  # type: ignore[arg-type]
        found = release.in_force_without(set(stay), good, trial)
        return found.number if found else None

    assert without(69, 68, 67) == 2, "what some of those who stay proved, not what all of them once had"
    assert without(69, 68, 67, outcome="good") == 2, "it proved good there, and is nowhere then"
    assert without(69, 68, 66) is None, "66 has it still"
    assert without(69, 68, left_out=()) is None, "a rollout of all that 66 failed in: it is to be finished"
    same = good[2].whole
    assert without(69, 68, outcome="good", whole=same) is None, "taken back there already: all run the same"
    assert without() is None
    assert release.in_force_without({69}, {}, None) is None


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
