"""Changing the API key: the balancer takes both before anything restarts, and one again when all have changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import Peer
from fleetctl.commands import paths
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts
from fleetctl.plan import actions, checks, expand, gate, rotation, status
from fleetctl.plan.desired import sha256
from fleetctl.plan.operation import Plan, Verdict

from .test_expand import context, plan, whole

OTHER = sha256("sk-other-0123456789")
THIRD = sha256("sk-third-0123456789")


def roll(fleet: Fleet, facts: dict[int, Facts], key_hash: str, machines: tuple[int, ...] | None = None) -> Plan:
    return plan(
        "rollout", context(fleet, facts, machines or tuple(fleet.machines), peers=table(fleet), key_hash=key_hash)
    )


def table(fleet: Fleet) -> tuple[Peer, ...]:

    return peers.of(fleet, {}, fleet.machines)


def running(facts: dict[int, Facts], key: str, old: str | None, rows: str | None) -> dict[int, Facts]:
    """The balancer says that it has read these keys (sids); `rows`: what it says of every peer."""
    live = facts[69].balancer
    assert live is not None
    peers_ = tuple(replace(peer, key=rows) for peer in live.peers)
    return {**facts, 69: replace(facts[69], balancer=replace(live, key=key, old_key=old, peers=peers_))}


def with_old(fleet: Fleet, facts: dict[int, Facts], old: str, now: str | None = None) -> dict[int, Facts]:
    """The balancer's machine keeps `old`; its key file is that of `now`."""
    files = {**facts[69].files, str(paths.old_key(fleet)): old}
    if now is not None:
        files[str(paths.api_key(fleet))] = now
    return {**facts, 69: replace(facts[69], files=files)}


def words(found: Plan) -> list[str]:
    return [op.summary for op in found.operations]


def test_the_balancer_takes_both_keys_before_anything_is_restarted(fleet: Fleet) -> None:
    found = roll(fleet, whole(fleet), OTHER)
    on_69 = [op.summary for op in found.operations if op.machine == 69]
    assert on_69[:3] == [
        "keep the key that engines run with",
        "write /etc/fleetctl/qwen38/api-key (0600)",
        "reload openresty-qwen.service, which takes both keys",
    ]
    assert sum(summary.startswith("keep the key") for summary in words(found)) == 1
    first_drain = words(found).index("drain: no new requests")
    assert words(found).index("reload openresty-qwen.service, which takes both keys") < first_drain


def test_no_instance_is_back_before_the_balancer_knows_its_key(fleet: Fleet) -> None:
    found = [op.summary for op in roll(fleet, whole(fleet), OTHER).operations if op.target == "67/1"]
    assert found.index("wait until the balancer sends it the new key") == found.index("back in rotation") - 1


def test_the_last_thing_is_that_the_old_key_is_good_nowhere(fleet: Fleet) -> None:
    summaries = words(roll(fleet, whole(fleet), OTHER))
    gone = summaries.index("remove /etc/fleetctl/qwen38/api-key.old")
    assert summaries[gone - 1] == "wait until the balancer sends nobody the old key"
    assert gone > max(n for n, summary in enumerate(summaries) if summary == "back in rotation")
    assert summaries[gone + 1] == "reload openresty-qwen.service: one key is good"


def test_while_a_machine_is_left_out_both_keys_stay_good(fleet: Fleet) -> None:
    summaries = words(roll(fleet, whole(fleet), OTHER, (67,)))
    assert "keep the key that engines run with" in summaries
    assert not any("api-key.old" in summary for summary in summaries)


def test_what_was_cut_short_before_the_end_is_finished(fleet: Fleet) -> None:
    facts = with_old(fleet, whole(fleet), OTHER)
    current = whole(fleet)[69].files[str(paths.api_key(fleet))]
    assert words(roll(fleet, facts, current)) == [
        "wait until the balancer sends nobody the old key",
        "remove /etc/fleetctl/qwen38/api-key.old",
        "reload openresty-qwen.service: one key is good",
    ]


def test_a_reload_that_did_not_happen_is_done_before_anything_restarts(fleet: Fleet) -> None:
    # Killed after the files were written: the running balancer has read neither.
    now = whole(fleet)[69].files[str(paths.api_key(fleet))]
    facts = running(with_old(fleet, whole(fleet), OTHER), "sid of other", None, None)
    ctx = context(fleet, facts, tuple(fleet.machines), peers=table(fleet), key_hash=now, key_sid="sid of now")
    assert words(plan("rollout", ctx))[0] == "reload openresty-qwen.service, which takes both keys"


def test_the_old_key_is_forgotten_also_when_only_its_file_is_gone(fleet: Fleet) -> None:
    facts = running(whole(fleet), "sid of now", "sid of other", "new")
    ctx = context(fleet, facts, tuple(fleet.machines), peers=table(fleet), key_sid="sid of now")
    assert words(plan("rollout", ctx))[-1] == "reload openresty-qwen.service: one key is good"


def test_the_old_key_stays_while_somebody_needs_it() -> None:
    rows = '{"id":"69/0","state":"up","key":"new"},{"id":"67/3","state":"drain","key":"old"}'
    found = gate.no_old_key(f'{{"peers":[{rows}]}}')
    assert (found.verdict, found.words) == (Verdict.PENDING, "67/3 did not take the new key")
    rows = '{"id":"69/0","state":"up","key":"new"},{"id":"67/3","state":"off","key":"old"}'
    assert gate.no_old_key(f'{{"peers":[{rows}]}}').verdict is Verdict.PASS


def test_adding_a_machine_with_another_key_keeps_the_old_one_once(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts[69] = replace(facts[69], files={n: h for n, h in facts[69].files.items() if "alone" not in n})
    found = words(plan("add-machine", context(fleet, facts, (66,), peers=table(fleet), key_hash=OTHER)))
    assert sum(summary.startswith("keep the key") for summary in found) == 1


def test_an_engine_of_the_old_key_comes_back_with_it_when_its_machine_has_it(fleet: Fleet) -> None:
    facts = whole(fleet)
    facts = with_old(fleet, facts, facts[67].files[str(paths.api_key(fleet))], OTHER)
    ctx = context(fleet, facts, (67,), peers=table(fleet), key_hash=OTHER)
    found = actions.restart(ctx, [next(i for i in fleet.instances if i.id == "67/1")])
    assert "the new key" not in " ".join(op.summary for op in found.operations)


def test_a_third_key_waits_until_the_second_is_everywhere(fleet: Fleet) -> None:
    facts = with_old(fleet, whole(fleet), THIRD)
    machines = tuple(fleet.machines)
    assert "third one" in str(expand.problems(context(fleet, facts, machines, peers=table(fleet), key_hash=OTHER)))
    # Back to the one before is a change like any other.
    back = context(fleet, facts, machines, peers=table(fleet), key_hash=THIRD)
    assert "third one" not in str(expand.problems(back))


def test_with_one_key_nothing_waits_for_another(fleet: Fleet) -> None:
    ctx = context(fleet, whole(fleet), tuple(fleet.machines), peers=table(fleet))
    undrain = rotation.undrain(ctx, "restart", fleet.instances[0])
    assert "key" not in " ".join(op.summary for op in undrain.operations())


@pytest.mark.parametrize(
    ("row", "verdict"),
    [('{"id":"69/0","key":"old"}', Verdict.PENDING), ('{"id":"69/0","key":"new"}', Verdict.PASS)],
)
def test_the_balancer_says_which_key_it_sends(fleet: Fleet, row: str, verdict: Verdict) -> None:
    assert gate.knows_key(fleet.instances[0])(f'{{"peers":[{row}]}}').verdict is verdict


def test_status_says_that_two_keys_are_good_and_what_ends_it(fleet: Fleet) -> None:
    facts = whole(fleet)
    live = facts[69].balancer
    assert live is not None
    assert status.document(fleet, facts, {}, table(fleet))["balancer"]["old_key"] is None
    half = tuple(replace(peer, key="old" if n < 5 else "new") for n, peer in enumerate(live.peers))
    facts[69] = replace(facts[69], balancer=replace(live, peers=half))
    said = status.problems(status.document(fleet, facts, {}, table(fleet)))
    assert any("5 instances have the old one: fleetctl key rotate" in line for line in said)


@pytest.mark.parametrize(
    "key", ["sk-with\\backslash", 'sk-with"quote', "sk with space", "short", "sk-中文中文中文", ""]
)
def test_a_key_that_would_not_arrive_as_it_is_is_refused(key: str) -> None:
    """curl reads it between quotes: it would send another one, and every gate would wait for half an hour."""
    assert checks.api_key_shape(key) is not None


def test_a_key_of_any_other_signs_is_one() -> None:
    assert checks.api_key_shape("sk-Aa0!#$%&'()*+,-./:;<=>?@[]^_`{|}~") is None
