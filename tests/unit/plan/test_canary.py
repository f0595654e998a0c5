"""The first instance of a change is asked what can be checked, before the others follow."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.commands import paths
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import PeerState
from fleetctl.observe.prompts import PROMPTS
from fleetctl.plan import canary, expand, instances
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Run, Verdict
from fleetctl.plan.release import Release, Whole

from ..conftest import serving
from .test_expand import context, plan, whole


def answered(
    texts: dict[str, str] | None = None, *, drafts: int = 100, accepted: int = 60, seconds: float = 0.1
) -> str:
    """What canary.sh prints of an engine that answers well, some texts changed."""
    lines = []
    for number, prompt in enumerate(PROMPTS):
        text = (texts or {}).get(prompt.id, prompt.accepts[0])
        document = {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": 10}}
        lines.append(f"@@fleetctl answer-{number} 0\n{json.dumps(document, ensure_ascii=False)}\n200 {seconds}")
    lines.append("@@fleetctl counters 0")
    lines.append(f'vllm:spec_decode_num_drafts_total{{engine="0"}} {drafts}.0')
    lines.append(f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {accepted}.0')
    return "\n".join(lines) + "\n"


def judged(fleet: Fleet, own: str, other: str | None = None) -> tuple[Verdict, str]:
    text = own if other is None else f"{own}@@sibling\n{other}"
    judgement = canary.proves(fleet.instances[0], True)(text)
    return judgement.verdict, judgement.words


def test_right_answers_pass(fleet: Fleet) -> None:
    assert judged(fleet, answered(), answered()) == (Verdict.PASS, "")
    assert judged(fleet, answered())[0] is Verdict.PASS


@pytest.mark.parametrize("text", ["�" * 20, "43", ""])
def test_garbled_and_wrong_answers_stop_the_rollout(fleet: Fleet, text: str) -> None:
    verdict, words = judged(fleet, answered({"sum": text}), answered())
    assert verdict is Verdict.DEAD
    assert "canary 69/0 answers `What is 17 + 25?" in words


def test_other_words_for_the_same_thing_pass(fleet: Fleet) -> None:
    assert judged(fleet, answered({"sum": "It is 42."}), answered())[0] is Verdict.PASS


def test_what_its_sibling_gets_wrong_too_is_the_models_fault(fleet: Fleet) -> None:
    assert judged(fleet, answered({"sum": "43"}), answered({"sum": "44"}))[0] is Verdict.PASS
    assert judged(fleet, answered({"sum": "�" * 20}), answered({"sum": "44"}))[0] is Verdict.DEAD


def test_no_answer_stops_the_rollout(fleet: Fleet) -> None:
    assert judged(fleet, answered().replace("200 0.1", "500 0.1", 1))[0] is Verdict.DEAD
    assert judged(fleet, "")[0] is Verdict.DEAD


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": ["text"]},
        {"choices": {"0": {}}},
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": {"content": ["42"]}}]},
        {"choices": [{"message": {"content": "42"}}], "usage": 7},
        {"choices": [{"message": {"content": "42"}}], "usage": {"completion_tokens": "many"}},
    ],
)
def test_an_answer_of_another_form_is_judged_and_no_crash(fleet: Fleet, answer: dict[str, object]) -> None:
    text = answered().replace(answered().split("\n")[1], json.dumps(answer))
    assert judged(fleet, text, answered())[0] in (Verdict.DEAD, Verdict.PASS)


def test_drafts_of_which_none_is_accepted_stop_the_rollout(fleet: Fleet) -> None:
    assert "none of 100 drafts" in judged(fleet, answered(accepted=0))[1]
    assert judged(fleet, answered(drafts=3, accepted=0))[0] is Verdict.PASS


def test_far_slower_than_its_sibling_stops_the_rollout(fleet: Fleet) -> None:
    assert judged(fleet, answered(seconds=1.0), answered(seconds=0.1))[0] is Verdict.DEAD
    assert judged(fleet, answered(seconds=0.2), answered(seconds=0.1))[0] is Verdict.PASS


def test_of_random_weights_only_answers_and_speed_are_judged(fleet: Fleet) -> None:
    def of_random(own: str, other: str | None = None) -> Verdict:
        text = own if other is None else f"{own}@@sibling\n{other}"
        return canary.proves(fleet.instances[0], True, trained=False)(text).verdict

    nonsense = answered({"sum": "\ufffd" * 20, "capital": "qzx"}, accepted=0)
    assert of_random(nonsense) is Verdict.PASS
    assert of_random(nonsense.replace("200 0.1", "500 0.1", 1)) is Verdict.DEAD
    assert of_random(answered(seconds=1.0), answered(seconds=0.1)) is Verdict.DEAD


def test_the_plan_says_that_answers_are_not_judged(fleet: Fleet) -> None:
    model = fleet.inventory.model.model_copy(update={"random_weights": True})
    shape = Fleet(fleet.inventory.model_copy(update={"model": model}), fleet.path)
    asked = next(op for op in plan("rollout", changing(shape)).operations if op.step == "canary")
    assert "not judged (random weights)" in asked.summary


def changing(fleet: Fleet, **more: object) -> Context:
    five = fleet.with_overrides(Overrides(tokens=5))
    return context(five, whole(fleet), tuple(fleet.machines), peers=peers.of(fleet, {}, fleet.machines), **more)


def rolled(ctx: Context) -> list[str]:
    """Instances in the order in which they are taken out."""
    return [op.target for op in plan("rollout", ctx).operations if op.summary.startswith("drain")]


def test_one_instance_is_changed_and_asked_before_all_others(fleet: Fleet) -> None:
    operations = plan("rollout", changing(fleet)).operations
    asked = [index for index, op in enumerate(operations) if op.step == "canary"]
    assert len(asked) == 1
    before = {op.target for op in operations[: asked[0]] if op.step == "roll"}
    assert before == {"69/0"}
    assert "beside 69/1" in operations[asked[0]].summary
    back = next(i for i, op in enumerate(operations) if op.summary == "back in rotation")
    assert asked[0] < back


def test_the_canary_can_be_chosen(fleet: Fleet) -> None:
    order = rolled(changing(fleet, canary="67/2"))
    assert order[0] == "67/2"
    assert sorted(order) == sorted(one.id for one in fleet.instances)


def test_the_balancer_is_configured_before_any_canary_is_taken_out(fleet: Fleet) -> None:
    ctx = changing(fleet, canary="67/2")
    files = {**ctx.facts[69].files, str(paths.balancer(fleet) / "nginx.conf"): "0" * 64}
    ctx = replace(ctx, facts={**ctx.facts, 69: replace(ctx.facts[69], files=files)})
    found = [op.step for op in plan("rollout", ctx).operations if op.step in ("balancer", "roll")]
    assert found.index("balancer") < found.index("roll")
    assert "balancer" not in found[found.index("roll") :]


def after_a_failed_canary(fleet: Fleet, outcome: str = "running") -> Context:
    """67/1 was changed, did not answer well, and was left drained; nobody else was touched."""
    ctx, name = changing(fleet), fleet.on(67)[1].name
    unit, new = str(paths.unit(name)), serving(ctx.fleet, 67)
    seen = ctx.facts[67]
    changed = new.container(name)
    assert changed is not None
    seen = replace(
        seen,
        containers=tuple(changed if c.name == name else c for c in seen.containers or ()),
        files={**seen.files, unit: new.files[unit]},
        unit_texts={**seen.unit_texts, unit: new.unit_texts[unit]},
    )
    half = Release(2, ctx.fleet.overrides, "2026-08-29T12:00:00Z", "me", "rollout --mtp 5", outcome)
    table = tuple(replace(p, state=peers.PeerState.DRAIN) if p.id == "67/1" else p for p in ctx.peers)
    return replace(ctx, facts={**ctx.facts, 67: seen}, peers=table, release=half, current=half)


def test_a_canary_that_failed_is_asked_again_before_it_takes_requests_and_before_anybody_else_goes(
    fleet: Fleet,
) -> None:
    """Else each try would take one more out, and the one that answers garbage would join in the end."""
    found = [
        op for op in plan("rollout", after_a_failed_canary(fleet)).operations if op.step not in ("release", "units")
    ]
    assert [(op.target, op.step) for op in found[:4]] == [("67/1", s) for s in ("gate", "canary", "roll", "roll")]
    assert [op.summary for op in found[2:4]] == ["back in rotation", "wait until the balancer sends to it"]
    assert "beside 67/0" in found[1].summary
    later = [op for op in found[4:] if op.target == "67/1"]
    assert later == []
    assert "join" not in {op.step for op in found}, "nobody is left out of the table"
    assert {op.target for op in found if op.summary.startswith("drain")} == {i.id for i in fleet.instances} - {"67/1"}


def test_what_was_drained_after_its_release_proved_good_only_answers_a_completion(fleet: Fleet) -> None:
    found = plan("rollout", after_a_failed_canary(fleet, "good")).operations
    assert [op.step for op in found if op.target == "67/1"] == ["gate"]


def test_how_many_may_be_out_can_be_said(fleet: Fleet) -> None:
    assert instances.batch_size(changing(fleet)) == 4
    assert instances.batch_size(changing(fleet, max_unavailable="2")) == 2
    assert instances.batch_size(changing(fleet, max_unavailable="50%")) == 8


def test_a_fleet_that_is_too_busy_is_not_touched(fleet: Fleet) -> None:
    ctx = changing(fleet)
    assert instances.too_busy(ctx) is None
    seen = ctx.facts[69].balancer
    assert seen is not None
    busy = tuple(PeerState(p.id, p.address, p.state, 25) for p in seen.peers)
    facts = {**ctx.facts, 69: replace(ctx.facts[69], balancer=replace(seen, peers=busy))}
    loaded = replace(ctx, facts=facts)
    assert "400 requests are in flight" in (instances.too_busy(loaded) or "")
    assert any("in flight" in line for line in expand.problems(loaded)[69])
    assert instances.too_busy(replace(loaded, max_unavailable="1")) is None


def test_backends_that_the_balancer_finds_dead_take_nothing_of_the_load(fleet: Fleet) -> None:
    ctx = changing(fleet)
    seen = ctx.facts[69].balancer
    assert seen is not None
    half = tuple(
        replace(
            p,
            inflight=0 if p.id.startswith(("66", "68")) else 20,
            health="down" if p.id.startswith(("66", "68")) else "ok",
        )
        for p in seen.peers
    )
    loaded = replace(ctx, facts={**ctx.facts, 69: replace(ctx.facts[69], balancer=replace(seen, peers=half))})
    assert "160 requests are in flight; with 4 of 8 instances out" in (instances.too_busy(loaded) or "")
    nobody = tuple(replace(p, inflight=0, health="down") for p in seen.peers)
    idle = replace(ctx, facts={**ctx.facts, 69: replace(ctx.facts[69], balancer=replace(seen, peers=nobody))})
    assert instances.too_busy(idle) is None, "nobody is served worse than now"


def test_a_unit_that_systemd_is_about_to_start_is_stopped_first(fleet: Fleet) -> None:
    """It would start with the unit as it will be written, and hold the NPUs that it is waited for."""
    ctx = changing(fleet)
    facts = ctx.facts[67]
    name = fleet.on(67)[1].name
    container = tuple(replace(c, state="exited") if c.name == name else c for c in facts.containers or ())
    unit = replace(facts.units[name], active="activating", sub="auto-restart")
    health = {k: v for k, v in facts.health.items() if k != 1}
    changed = replace(facts, containers=container, units={**facts.units, name: unit}, health=health)
    operations = plan("rollout", replace(ctx, facts={**ctx.facts, 67: changed})).operations
    own = [op.summary for op in operations if op.target == "67/1" and op.step == "start"]
    assert own[0].startswith(f"stop {name}.service")
    assert own[1] == "wait for free NPUs 2,3"


def test_a_canary_that_fails_says_how_things_are_and_how_to_go_back(fleet: Fleet) -> None:
    new = Release(3, Overrides(tokens=5), "", "", "rollout --mtp 5", "running", Whole(5, "i", {}))
    ctx = changing(fleet, release=new)
    action = canary.operation(ctx, "canary", fleet.on(67)[0], None).action
    assert isinstance(action, Run)
    assert action.state is not None
    assert action.state.startswith("67/0 runs what is new and is drained")
    assert action.next_command is None, "nothing proved good before: the usual words"
    old = replace(new, number=2, outcome="good", command="rollout", whole=Whole(4, "i", {}))
    ctx = changing(fleet, release=new)
    ctx.facts[66] = replace(ctx.facts[66], releases=(old.document,))  # type: ignore[index]
    action = canary.operation(ctx, "canary", fleet.on(67)[0], None).action
    assert isinstance(action, Run)
    only = "" if ctx.machines == tuple(fleet.machines) else f" --machines {','.join(map(str, ctx.machines))}"
    assert action.next_command == (
        f"fleetctl rollback 2{only}, back to what proved good (rollout); "
        "or mend the cause, then run `fleetctl rollout --mtp 5` again"
    )
    elsewhere = replace(old, left_out=(67,))
    ctx.facts[66] = replace(ctx.facts[66], releases=(elsewhere.document,))  # type: ignore[index]
    action = canary.operation(ctx, "canary", fleet.on(67)[0], None).action
    assert isinstance(action, Run)
    assert action.next_command is None, "67 never ran that"
