"""`--adopt`: what was built by hand under the fleet's names is taken over while it serves; without it, it is foreign."""

from __future__ import annotations

from dataclasses import replace

from fleetctl.commands import paths
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts
from fleetctl.plan import adopt, expand, gate
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Verdict

from .test_expand import context, plan, whole


def by_hand(fleet: Fleet) -> dict[int, Facts]:
    """Everything serves; no container is labelled, and nginx runs as the balancer's unit."""
    facts = whole(fleet)
    for machine, one in facts.items():
        containers = tuple(replace(c, labels={}) for c in one.containers or ())
        facts[machine] = replace(one, containers=containers, release=None, releases=())
    unit = str(paths.unit(fleet.inventory.balancer.unit))
    facts[69] = replace(facts[69], balancer=None, peers=None, files={**facts[69].files, unit: "theirs"})
    return facts


def adopting(fleet: Fleet, facts: dict[int, Facts]) -> Context:
    return adopt.begun(replace(context(fleet, facts, tuple(fleet.machines), peers=()), adopt=True))


def test_without_the_flag_it_is_foreign_and_the_flag_is_named(fleet: Fleet) -> None:
    problems = expand.problems(context(fleet, by_hand(fleet), tuple(fleet.machines), peers=()))
    assert "fleetctl rollout --adopt" in str(problems[69])
    assert expand.problems(adopting(fleet, by_hand(fleet))) == {}


def test_who_answers_now_is_drained_before_it_is_replaced(fleet: Fleet) -> None:
    found = plan("rollout", adopting(fleet, by_hand(fleet)))
    one = [op.summary for op in found.operations if op.target == "67/2"]
    drain = one.index("drain: no new requests")
    removed = next(n for n, words in enumerate(one) if words.startswith("remove container qwen38-tp2-2 (saved in"))
    started = next(n for n, words in enumerate(one) if words.startswith("start qwen38-tp2-2.service"))
    assert drain < removed < started < one.index("back in rotation")
    assert not any(op.step == "units" and "qwen38-tp2" in op.summary for op in found.operations), "too early"
    assert any(note.startswith("taken over: 69: qwen38-tp2-0") for note in found.notes)


def test_the_running_balancer_takes_ours_with_a_reload_and_is_never_restarted(fleet: Fleet) -> None:
    found = plan("rollout", adopting(fleet, by_hand(fleet)))
    steps = [op.summary for op in found.operations if op.step == "balancer"]
    assert not any("restart" in words for words in steps)
    table = steps.index("write /etc/fleetctl/qwen38/balancer/peers")
    taken = next(n for n, words in enumerate(steps) if words.startswith("the running nginx takes the configuration"))
    assert table < taken
    assert steps[-1] == "wait for requests of its old workers"
    every = [op.summary for op in found.operations]
    assert every.index("wait for requests of its old workers") < every.index("drain: no new requests")


def test_what_does_not_answer_is_replaced_without_a_drain(fleet: Fleet) -> None:
    facts = by_hand(fleet)
    health = {**facts[67].health, 2: replace(facts[67].health[2], http=None)}
    facts[67] = replace(facts[67], health=health)
    ctx = adopting(fleet, facts)
    assert "67/2" not in {peer.id for peer in ctx.peers}
    one = [op.summary for op in plan("rollout", ctx).operations if op.target == "67/2"]
    assert "drain: no new requests" not in one
    assert any(words.startswith("remove container qwen38-tp2-2") for words in one)


def test_old_workers_are_waited_for() -> None:
    assert gate.nobody_left("0\n").verdict is Verdict.PASS
    assert gate.nobody_left("2\n").verdict is Verdict.PENDING
