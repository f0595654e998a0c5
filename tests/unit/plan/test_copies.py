"""Which copies a plan has and what it says of them, and what is removed when no release needs it."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts, ModelState
from fleetctl.plan import copies, tidy
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Copy, Group

from .test_expand import context, empty, whole

GIB = 1 << 30


def lacking(fleet: Fleet, **more: object) -> Context:
    """69 has a verified model of 30 GiB; the others have nothing but host keys and a gigabit to 69."""
    facts = {m: replace(f, host_keys=("ssh-ed25519 AAAA",), link=1000) for m, f in empty(fleet).items()}
    model = ModelState(True, "l", "m", "l", 30 * GIB)
    facts[69] = replace(facts[69], model=model)
    users = dict.fromkeys(fleet.machines, "root")
    return context(fleet, facts, tuple(fleet.machines), users=users, **more)


def the_copy(group: Group) -> Copy:
    found = [op.action for op in group.operations() if isinstance(op.action, Copy)]
    assert len(found) == 1
    return found[0]


def summary(group: Group) -> str:
    return next(op.summary for op in group.operations() if isinstance(op.action, Copy))


def test_the_pairs_are_planned_and_said(fleet: Fleet) -> None:
    ctx = lacking(fleet)
    said = {m: summary(copies.model(ctx, m)) for m in (68, 67, 66)}
    assert said == {
        68: "copy Qwen3.8-27B-W8A8 from 69 (30.0 GiB, 4 min 18 s at best, turn 1)",
        67: "copy Qwen3.8-27B-W8A8 from 69 (30.0 GiB, 4 min 18 s at best, turn 2)",
        66: "copy Qwen3.8-27B-W8A8 from 68 (30.0 GiB, 4 min 18 s at best, turn 2)",
    }
    assert the_copy(copies.model(ctx, 66)).ways.keys() == {69, 68, 67}


def test_a_machine_that_has_it_is_a_source_from_the_start(fleet: Fleet) -> None:
    ctx = lacking(fleet)
    facts = {**ctx.facts, 68: replace(ctx.facts[68], model=ctx.facts[69].model)}
    ctx = replace(ctx, facts=facts)
    assert not copies.model(ctx, 68)
    assert the_copy(copies.model(ctx, 66)).source == 68
    assert the_copy(copies.model(ctx, 66)).holders == {69, 68}


def test_a_copy_that_goes_on_is_followed(fleet: Fleet) -> None:
    ctx = lacking(fleet)
    facts = {**ctx.facts, 67: replace(ctx.facts[67], jobs={"fleetctl-qwen38-model": "running"})}
    ctx = replace(ctx, facts=facts)
    assert the_copy(copies.model(ctx, 67)).follow
    assert summary(copies.model(ctx, 67)) == "follow the copy of Qwen3.8-27B-W8A8 that goes on there"


def test_nothing_secret_and_no_path_of_ours_is_in_a_way(fleet: Fleet) -> None:
    way = the_copy(copies.model(lacking(fleet), 67)).ways[69]
    assert "restrict" in way.allow.text
    assert way.key.stdin == b"fleetctl-source ssh-ed25519 AAAA\n"


def test_a_user_that_is_not_root_serves_through_sudo(fleet: Fleet) -> None:
    ctx = replace(lacking(fleet), users={69: "ops", 68: "root", 67: "root", 66: "root"})
    command = the_copy(copies.model(ctx, 67)).ways[69].allow.args[3]
    assert isinstance(command, str)
    assert command.startswith('sudo -n /usr/bin/env "SSH_ORIGINAL_COMMAND=$SSH_ORIGINAL_COMMAND" /bin/sh ')


def keys_of(fleet: Fleet, facts: Facts) -> list[str]:
    ctx = context(fleet, {**whole(fleet), 67: facts}, (67,))
    return [op.summary for op in tidy.tidy(ctx, 67).operations()]


def test_the_version_in_use_and_the_one_before_stay(fleet: Fleet) -> None:
    facts = whole(fleet)[67]
    assert facts.model is not None
    assert facts.image is not None
    kept = replace(facts.model, version="c", versions=("found.1", "a", "b", "c"))
    assert keys_of(fleet, replace(facts, model=kept)) == ["remove version a of the model, which no release uses"]
    assert keys_of(fleet, replace(facts, model=replace(kept, versions=("b", "c")))) == []
    brought = replace(facts, brought=("sha256:" + "d" * 64, "sha256:" + "e" * 64, facts.image.id))
    assert keys_of(fleet, brought) == ["remove image dddddddddddd, which no release uses"]


def test_a_model_on_its_way_makes_the_one_before_the_last(fleet: Fleet) -> None:
    facts = whole(fleet)[67]
    assert facts.model is not None
    other = replace(facts.model, manifest="other", version="c", versions=("b", "c"))
    assert keys_of(fleet, replace(facts, model=other)) == ["remove version b of the model, which no release uses"]


def test_the_last_image_stays_while_a_new_reference_comes(fleet: Fleet) -> None:
    """Docker is asked for the new reference, which is not there yet."""
    facts = replace(whole(fleet)[67], image=None, brought=("sha256:" + "d" * 64,))
    assert keys_of(fleet, facts) == []


def test_a_folder_that_stood_there_before_is_nobodys_to_remove(fleet: Fleet) -> None:
    facts = whole(fleet)[67]
    assert facts.model is not None
    kept = replace(facts.model, version="c", versions=("found.1", "b", "c"))
    assert keys_of(fleet, replace(facts, model=kept)) == []


def test_keys_of_ended_transfers_are_swept_wherever_they_may_log_in(fleet: Fleet) -> None:
    ctx = lacking(fleet)
    facts = {**ctx.facts, 68: replace(ctx.facts[68], transfer_tags=("qwen38-66-model",))}
    found = [(op.machine, op.summary) for op in copies.manifest(replace(ctx, facts=facts), 69).operations()]
    assert found == [(68, "revoke the key of an ended transfer to 66")]
    facts[66] = replace(facts[66], jobs={"fleetctl-qwen38-model": "running"})
    assert not copies.manifest(replace(ctx, facts=facts), 69)
