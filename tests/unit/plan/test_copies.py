"""Which copies a plan has and what it says of them, and what is removed when no release needs it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.commands import paths
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import Facts, Image, JobState, ModelState
from fleetctl.plan import copies, expand, tidy
from fleetctl.plan.context import Context
from fleetctl.plan.desired import sha256
from fleetctl.plan.operation import Copy, Group, Job
from fleetctl.plan.release import Release, Whole

from ..conftest import IMAGE
from .test_expand import context, empty, plan, whole

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


def busy(ctx: Context, machine: int, job: Job, script: str | None = None) -> Context:
    """The job's unit runs on the machine, with its own script or another one."""
    files = {str(paths.job_script(job.unit)): sha256(script or job.script.text)}
    facts = replace(ctx.facts[machine], jobs={job.unit: "running"}, files=files)
    return replace(ctx, facts={**ctx.facts, machine: facts})


def test_a_copy_that_goes_on_is_followed(fleet: Fleet) -> None:
    ctx = lacking(fleet)
    ctx = busy(ctx, 67, the_copy(copies.model(ctx, 67)).job)
    assert the_copy(copies.model(ctx, 67)).follow
    assert summary(copies.model(ctx, 67)) == "follow the copy of Qwen3.8-27B-W8A8 that goes on there"
    assert not any("job_stop" in op.detail for op in copies.model(ctx, 67).operations())


@pytest.mark.parametrize("step", [copies.image, copies.model])
def test_a_copy_of_something_else_that_goes_on_is_ended_and_not_followed(fleet: Fleet, step) -> None:  # type: ignore[no-untyped-def]
    """An earlier command wanted another image, or the model of another path: its unit has the same name."""
    ctx = lacking(fleet)
    job = the_copy(step(ctx, 67)).job
    found = list(step(busy(ctx, 67, job, "of another"), 67).operations())
    assert not the_copy(step(busy(ctx, 67, job, "of another"), 67)).follow
    ends = next(number for number, op in enumerate(found) if op.detail == f"job_stop {job.unit}")
    assert isinstance(found[ends + 1].action, Copy)


def test_a_pull_of_another_image_that_goes_on_is_ended_first(fleet: Fleet) -> None:
    ctx = lacking(fleet)
    ctx = replace(ctx, facts={**ctx.facts, 69: replace(ctx.facts[69], image=None)})
    pull = next(op.action for op in copies.pull(ctx, 69).operations() if isinstance(op.action, Job))
    assert "job_stop" not in str([op.detail for op in copies.pull(busy(ctx, 69, pull), 69).operations()])
    found = [op.detail for op in copies.pull(busy(ctx, 69, pull, "of another"), 69).operations()]
    assert found[0] == f"job_stop {pull.unit}"


def test_a_pinned_image_is_pulled_by_its_content(fleet: Fleet) -> None:
    digest = "sha256:" + "1" * 64
    ctx = lacking(pinned(fleet, digest))
    ctx = replace(ctx, facts={**ctx.facts, 69: replace(ctx.facts[69], image=None)})
    pull = next(op.action for op in copies.pull(ctx, 69).operations() if isinstance(op.action, Job))
    assert pull.script.args[-1] == digest


def pinned(fleet: Fleet, digest: str) -> Fleet:
    image = fleet.inventory.image.model_copy(update={"digest": digest})
    return Fleet(fleet.inventory.model_copy(update={"image": image}), fleet.path, fleet.overrides)


def test_an_image_that_is_not_the_one_that_is_pinned_stops_everything(fleet: Fleet) -> None:
    digest, other = "sha256:" + "1" * 64, "sha256:" + "2" * 64

    def problems(wanted: Fleet, image: Image) -> list[str]:
        facts = empty(fleet)
        facts[69] = replace(facts[69], image=image)
        found = expand.problems(context(wanted, facts, (69, 67)))
        return [one for one in found.get(69, []) if "image.digest" in one]

    assert problems(pinned(fleet, digest), replace(IMAGE, digests=(other,))) == [
        f"{fleet.image} is {IMAGE.id} or {other} here, and image.digest says {digest}"
    ]
    assert problems(pinned(fleet, digest), replace(IMAGE, digests=(other, digest))) == []
    assert problems(pinned(fleet, IMAGE.id), IMAGE) == []
    assert problems(fleet, IMAGE) == []
    # Another image that a release asks for is not what the inventory pins.
    assert problems(pinned(fleet, digest).with_overrides(Overrides(image="registry.example/x:2")), IMAGE) == []


@pytest.mark.parametrize("shared", [False, True])
def test_a_model_that_changed_where_it_lies_is_loaded_anew_by_the_same_plan(fleet: Fleet, shared: bool) -> None:
    """The source's own instances, and on shared storage everybody's: a second run finds nothing left to do."""
    model = fleet.inventory.model.model_copy(update={"shared": shared})
    changed = Fleet(fleet.inventory.model_copy(update={"model": model}), fleet.path)
    facts = whole(changed)
    assert facts[69].model is not None
    for machine in facts if shared else (69,):
        facts[machine] = replace(facts[machine], model=replace(facts[69].model, listing="n" * 64))
    found = plan("rollout", context(changed, facts, tuple(fleet.machines), peers=peers.of(changed, {}, fleet.machines)))
    rolled = {op.target for op in found.operations if op.step == "roll"}
    assert rolled == {instance.id for instance in fleet.instances}


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


def test_the_image_of_the_release_to_go_back_to_stays_however_many_failed_since(fleet: Fleet) -> None:
    """v1 was good, v2 was not; v3 comes. A rollback of v3 needs v1."""
    ids = {name: "sha256:" + digit * 64 for name, digit in (("v0", "0"), ("v1", "1"), ("v2", "2"))}
    documents = tuple(
        Release(number, Overrides(), "", "", "rollout", "good", Whole(4, image, {})).document
        for number, image in ((1, "v0"), (2, "v1"))
    )
    facts = replace(
        whole(fleet)[67],
        image=None,
        brought=tuple(ids.values()),
        brought_as=tuple((id, name) for name, id in ids.items()),
        releases=documents,
    )
    new = Release(4, Overrides(), "", "", "rollout", "running", Whole(4, "v3", {}))
    ctx = context(fleet, {**whole(fleet), 67: facts}, (67,), release=new)
    assert [op.summary for op in tidy.tidy(ctx, 67).operations()] == [
        "remove image 000000000000, which no release uses"
    ]


def test_an_image_that_came_under_two_names_is_one(fleet: Fleet) -> None:
    facts = whole(fleet)[67]
    assert facts.image is not None
    twice = replace(facts, brought=("sha256:" + "d" * 64, "sha256:" + "d" * 64, facts.image.id))
    assert keys_of(fleet, twice) == []


def test_a_job_that_ended_while_nobody_watched_is_cleared(fleet: Fleet) -> None:
    unit = "fleetctl-qwen38-model"
    facts = replace(whole(fleet)[67], progress={unit: JobState("done", 5, 5, "complete")}, jobs={unit: "exited"})
    assert keys_of(fleet, facts) == [f"clear {unit}, which ended while nobody watched"]
    assert keys_of(fleet, replace(facts, jobs={unit: "running"})) == []
    assert len(keys_of(fleet, replace(facts, jobs={}))) == 1, "systemd has forgotten one that failed"


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
    del facts[66]
    assert not copies.manifest(replace(ctx, facts=facts), 69), "its copy may go on"
    facts[68] = replace(facts[68], transfer_tags=("qwen38-12-model",))
    found = [op.summary for op in copies.manifest(replace(ctx, facts=facts), 69).operations()]
    assert found == ["revoke the key of an ended transfer to 12"], "no machine of the inventory any more"
