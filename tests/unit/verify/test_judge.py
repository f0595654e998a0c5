"""Every check passes on a fleet that is well, and each fault makes exactly its own check fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fleetctl.balancer import peers
from fleetctl.balancer.peers import PeerState
from fleetctl.errors import CommandError, UnreachableError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.load import load
from fleetctl.fleet.schema import Affinity
from fleetctl.observe.facts import Image, ModelState, Stopped, Unit
from fleetctl.observe.prompts import PROMPTS
from fleetctl.verify import judge
from fleetctl.verify.answers import Answer
from fleetctl.verify.check import Check, Status, Where
from fleetctl.verify.evidence import Evidence

from ..conftest import KEY, ROOT
from .world import World, completion, events, npu_table, page, usage, whole

D, B, OUT, M = Where.DIRECT, Where.BALANCER, Where.OUTSIDE, Where.MACHINES
ELSEWHERE = "10.255.254.65:8000"
SILENT = Answer(0, exit=7, error="Failed to connect to 10.255.254.67 port 8002")


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    """Two machines, eight instances."""
    shipped = load(ROOT / "inventory.yaml")
    two = tuple(machine for machine in shipped.inventory.machines if machine.id in (69, 67))
    return Fleet(shipped.inventory.model_copy(update={"machines": two}), shipped.path)


@pytest.fixture
def world(fleet: Fleet) -> World:
    return World(fleet)


def judged(evidence: Evidence) -> dict[tuple[str, Where], Check]:
    checks = judge.everything(evidence)
    found = {(check.id, check.where): check for check in checks}
    assert len(found) == len(checks)
    return found


def failing(evidence: Evidence) -> set[tuple[str, Where]]:
    return set(failures(evidence))


def failures(evidence: Evidence) -> dict[tuple[str, Where], Check]:
    return {name: check for name, check in judged(evidence).items() if check.status is Status.FAIL}


def the_one(evidence: Evidence, id: str, where: Where = D) -> Check:
    """The one check that fails."""
    found = failures(evidence)
    assert set(found) == {(id, where)}
    return found[(id, where)]


def with_inventory(fleet: Fleet, section: str, **values: Any) -> Fleet:
    part = getattr(fleet.inventory, section).model_copy(update=values)
    return Fleet(fleet.inventory.model_copy(update={section: part}), fleet.path)


def test_a_fleet_that_is_well_passes_everything(world: World) -> None:
    found = judged(world.evidence())
    assert {name: check.seen for name, check in found.items() if check.status is not Status.PASS} == {}
    assert judge.exit_code(found.values()) == 0
    assert len(found) > 50


def test_every_check_says_what_was_expected_and_what_was_seen_how_often(world: World) -> None:
    for check in judged(world.evidence()).values():
        assert check.expected
        assert check.seen
        assert check.n > 0
        assert (check.bound is None or 0 < check.bound < 0.4) or check.where is OUT


def test_the_bound_follows_from_the_number_of_looks(world: World) -> None:
    found = judged(world.evidence())
    prompts = found[("prompts", D)]
    assert prompts.n == 8 * 8
    assert prompts.bound == pytest.approx(1 - 0.05 ** (1 / 64))
    assert found[("routing", B)].n >= 160
    assert found[("model", D)].bound is None


# Instances that are not well: one red line each, and left out of all that follows


@pytest.mark.parametrize(
    ("kind", "answer", "check", "words"),
    [
        ("health", Answer(503), "health", "/health answers 503"),
        ("health", SILENT, "health", "Failed to connect"),
        ("models", whole({"data": [{"id": "other", "max_model_len": 262144}]}), "model", "serves other"),
        ("models", whole({"data": []}), "model", "serves no model"),
        ("models", whole({"data": [{"id": "Qwen3.8-27B-W8A8", "max_model_len": 4096}]}), "model", "max_model_len 4096"),
        ("models", whole("<html>busy</html>"), "model", "no JSON"),
        ("models", whole({"error": "Unauthorized"}, 401), "auth", "started with another one"),
        ("models-none", whole({"data": []}), "auth", "answers 200 without a key"),
        ("chat-none", whole({"choices": []}), "auth", "answers 200 without a key"),
        ("models-wrong", whole({"data": []}), "auth", "answers 200 with a wrong key"),
        ("completion", whole({"error": "dead"}, 500), "completion", "answers 500"),
        ("completion", whole(""), "completion", "empty body"),
        ("completion", whole("<html>oops</html>"), "completion", "no JSON: <html>oops</html>"),
        ("completion", whole({"object": "error"}), "completion", "no choices"),
        ("completion", Answer(0, exit=28, seconds=20.0), "completion", "nothing within 20 s"),
    ],
)
def test_an_instance_that_fails_a_gate_is_one_red_line(
    world: World, kind: str, answer: Answer, check: str, words: str
) -> None:
    evidence = world.change(kind, answer, "67/2", D).evidence()
    if check == "health":
        # The balancer has seen it too.
        world.change("health", whole({"status": "degraded", "backends": 8, "up": 7}), where=B)
        world.change("health", whole({"status": "degraded", "backends": 8, "up": 7}), where=OUT)
        evidence = world.evidence()
    found = the_one(evidence, check)
    assert found.failed == {"67/2"}
    assert words in found.seen
    assert judged(evidence)[("prompts", D)].left_out == ("67/2",)
    assert judged(evidence)[("prompts", D)].n == 7 * 8


# What an instance does with requests


def prompt_answer(text: str) -> Answer:
    return completion({"content": text}, 5)


@pytest.mark.parametrize(
    ("kind", "answer", "check", "words"),
    [
        ("prompt:sum", prompt_answer("43"), "prompts", 'wrong at sum: "43"'),
        ("prompt:capital", prompt_answer("锟斤拷!!!!"), "prompts", "garbled at capital"),
        ("prompt:sum", whole({"error": "x"}, 500), "answered", "prompt:sum: a completion answers 500"),
        ("cap:8", completion({"content": "x"}, 9, "length"), "max-tokens", "max_tokens 8 gave 9 tokens"),
        ("cap:33", completion({"content": "x"}, 33, "stop"), "max-tokens", "finish_reason stop"),
        ("t0.5", completion({"content": "The sea at 0."}, 24), None, ""),
        ("t:", completion({"content": "always this"}, 24), None, ""),
        ("reasoning", completion({"content": "<think>hm</think>13"}, 9), "reasoning", "marks of thinking"),
        ("reasoning", completion({"content": "13", "reasoning": None}, 9), "reasoning", "no reasoning"),
        ("reasoning", completion({"content": None, "reasoning": "hm"}, 9), "reasoning", "says nothing"),
        ("tool", completion({"content": "I cannot"}, 9), "tool-call", "no tool call"),
        ("stream", events(96, done=False), "stream", "does not end"),
        ("stream", events(96, counts=False), "stream-usage", "no usage in the stream"),
        ("stream", events(95), "stream-usage", "gave 95 tokens"),
        ("stream", events(96, chunks=1), "stream", "all of it in 1 chunk"),
        ("stream", whole(""), "stream", "no events"),
        ("stream", whole("<html>"), "stream", "no events"),
        ("stream", whole({"error": 1}, 500), "stream", "answers 500"),
        ("stream", whole('data: {"error": {"message": "EngineDeadError"}}\n\n'), "stream", "EngineDeadError"),
        ("stream", whole("data: {half\n\ndata: [DONE]\n\n"), "stream", "no JSON"),
        ("metrics-after", whole(page(900, 70)), "mtp", "0 of 800 drafted tokens accepted"),
        ("metrics-after", whole(page(100, 70)), "mtp", "drafts nothing"),
        ("metrics-after", whole(page(5, 3)), "mtp", "restarted"),
        ("metrics-after", whole("# nothing"), "mtp", "do not tell"),
    ],
)
def test_a_fault_of_an_instance_fails_its_own_check_directly_and_nothing_through_the_balancer(
    world: World, kind: str, answer: Answer, check: str | None, words: str
) -> None:
    evidence = world.change(kind, answer, "67/2").evidence()
    if check is None:
        assert failing(evidence) == set()
        return
    found = the_one(evidence, check)
    assert found.failed == {"67/2"}
    assert words in found.seen
    assert found.next_command is not None
    assert "67/2" in found.next_command


def test_a_fault_that_only_shows_through_the_balancer_is_the_balancers(world: World) -> None:
    assert the_one(world.change("tool", completion({"content": "?"}, 9), "67/2", B).evidence(), "tool-call", B)


def test_a_cut_answer_that_only_thought_keeps_reasoning_apart(world: World) -> None:
    thinking = completion({"content": None, "reasoning": "hm"}, 1024, "length")
    assert failing(world.change("reasoning", thinking).evidence()) == set()


def test_an_older_engine_calls_it_reasoning_content(world: World) -> None:
    old = completion({"content": "13", "reasoning_content": "hm"}, 12)
    assert failing(world.change("reasoning", old).evidence()) == set()


@pytest.mark.parametrize(
    ("arguments", "name", "finish"),
    [
        ("{half", "get_weather", "tool_calls"),
        ("{}", "get_weather", "tool_calls"),
        ('{"city": "Paris"}', "other", "stop"),
    ],
)
def test_a_tool_call_has_its_name_and_arguments_as_json(world: World, arguments: str, name: str, finish: str) -> None:
    call = {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}
    assert the_one(world.change("tool", completion(call, 9, finish), "67/2").evidence(), "tool-call")


def test_usage_that_does_not_add_up_fails(world: World) -> None:
    document = {"choices": [{"message": {"content": "The sea."}}], "usage": {**usage(24), "total_tokens": 99}}
    found = the_one(world.change("t1", whole(document), "67/2").evidence(), "usage")
    assert "12 + 24 tokens, total 99" in found.seen


def test_a_right_answer_in_other_words_warns(world: World) -> None:
    evidence = world.change("prompt:sum", prompt_answer("It is 42."), "67/2", D).evidence()
    found = judged(evidence)[("prompts", D)]
    assert failing(evidence) == set()
    assert found.status is Status.WARN
    assert 'different at sum: "It is 42."' in found.seen
    assert judge.exit_code(judged(evidence).values()) == 0


def test_what_all_say_alike_is_the_usual_answer(world: World) -> None:
    evidence = world.change("prompt:sum", prompt_answer("17 + 25 = 42.")).evidence()
    assert judged(evidence)[("prompts", D)].status is Status.PASS


def test_temperature_0_that_differs_now_and_then_warns_and_fails_when_it_mostly_does(world: World) -> None:
    other = completion({"content": "Another sentence."}, 24)
    evidence = world.change("t0-again", other, "67/2", D).evidence()
    assert judged(evidence)[("temperature-0", D)].status is Status.WARN
    assert failing(evidence) == set()
    assert the_one(world.change("t0-again", other, where=D).evidence(), "temperature-0")


def test_a_temperature_that_is_ignored_fails(world: World) -> None:
    for kind in ("t0", "t0-again", "t0.5", "t1"):
        world.change(kind, completion({"content": "always this"}, 24), "67/2")
    assert "the same text" in the_one(world.evidence(), "temperature").seen


def test_random_weights_are_not_asked_what_a_model_has_to_have_learned(fleet: Fleet) -> None:
    shape = with_inventory(fleet, "model", random_weights=True)
    found = judged(World(shape).evidence())
    skipped = {name for name, check in found.items() if check.status is Status.SKIP}
    assert skipped == {(id, where) for id in ("prompts", "tool-call") for where in (D, B, OUT)} | {("mtp", D)}
    assert {found[name].seen for name in skipped} == {"not applicable: random weights"}
    assert judge.exit_code(found.values()) == 0
    assert not any(kind.startswith("prompt:") or kind == "tool" for _, _, kind in World(shape).evidence().answers)


def test_what_the_engine_was_not_started_with_is_not_judged(fleet: Fleet) -> None:
    bare = Fleet(
        fleet.inventory.model_copy(update={"engine": {"max-model-len": 262144}, "speculative": None}), fleet.path
    )
    found = judged(World(bare).evidence())
    assert {id for (id, _), check in found.items() if check.status is Status.SKIP} == {"reasoning", "tool-call", "mtp"}


# Streams on their way


def test_a_balancer_that_bundles_chunks_fails_the_spread(world: World) -> None:
    def bundle(ask: Any, right: Answer) -> Answer:
        return replace(right, times=right.times[::4])

    evidence = world.change("stream", bundle, where=B).evidence()
    assert "bundled" in the_one(evidence, "spread", B).seen


def test_chunks_that_engines_bundle_themselves_do_not(world: World) -> None:
    def bundle(ask: Any, right: Answer) -> Answer:
        return replace(right, times=right.times[::4])

    assert failing(world.change("stream", bundle).evidence()) == set()


# The balancer


def test_an_answer_of_another_backend_fails_the_routing(world: World) -> None:
    def stray(ask: Any, right: Answer) -> Answer:
        return replace(right, headers=(("x-upstream-addr", ELSEWHERE),))

    # Only before the reload: the same sessions are right again after it.
    evidence = world.change("route", stray, "r3", B).evidence()
    found = judged(evidence)[("routing", B)]
    assert f"answered by {ELSEWHERE}" in found.seen
    assert found.wrong == 1
    assert failing(evidence) == {("routing", B)}


def test_an_answer_from_elsewhere_that_the_balancer_explains_warns(world: World) -> None:
    def spilled(ask: Any, right: Answer) -> Answer:
        return replace(right, headers=(("x-upstream-addr", ELSEWHERE), ("x-request-id", "f" * 32)))

    evidence = world.change("route", spilled, "r3", B).evidence()
    assert [trip.request for trip in evidence.strayed()] == ["f" * 32]
    evidence.why["f" * 32] = "primary"
    assert ("routing", B) in failing(evidence)
    evidence.why["f" * 32] = "spill"
    assert failing(evidence) == set()
    found = judged(evidence)[("routing", B)]
    assert found.status is Status.WARN
    assert "spill, says the balancer" in found.seen


def test_an_error_of_the_balancer_itself_fails_the_routing(world: World) -> None:
    evidence = world.change("route", lambda ask, right: Answer(503), "r3", B).evidence()
    # The world keeps the header of the right answer; a balancer that found nobody sends none.
    evidence.trips[B] = [replace(t, backend=None) if t.http == 503 else t for t in evidence.trips[B]]
    assert "503 of the balancer itself" in judged(evidence)[("routing", B)].seen


def test_a_backend_that_nobody_reaches_is_named(world: World) -> None:
    evidence = world.evidence()
    lost = next(peer.address for peer in world.table if peer.id == "67/2")
    evidence.trips[B] = [trip for trip in evidence.trips[B] if trip.backend != lost]
    assert the_one(evidence, "reached", B).failed == {"67/2"}


def test_a_session_that_wanders_fails(world: World) -> None:
    evidence = world.evidence()
    name = (B, f"{evidence.sticky[0]}#4", "concurrent")
    evidence.answers[name] = replace(evidence.answers[name], headers=(("x-upstream-addr", "10.255.254.65:8003"),))
    assert "concurrent: from 10.255.254.65:8003" in the_one(evidence, "session", B).seen


def test_a_reload_that_moves_sessions_fails_and_without_one_it_is_not_judged(world: World) -> None:
    evidence = world.evidence()
    evidence.later_trips[5] = replace(evidence.later_trips[5], backend="10.255.254.65:8003")
    assert the_one(evidence, "reload", B).wrong == 1
    found = judged(world.evidence(reloaded=False))[("reload", B)]
    assert found.status is Status.SKIP
    assert "--reload" in found.seen


def test_a_reload_that_did_not_happen_fails(world: World) -> None:
    evidence = world.evidence(reloaded=False)
    evidence.reload_problem = "openresty-qwen.service did not reload: test failed"
    assert "did not reload" in the_one(evidence, "reload", B).seen


@pytest.mark.parametrize(
    "said",
    [
        {"status": "ok", "backends": 8, "machines": ["69"]},
        {"status": "ok", "backends": 8, "up": 7},
        {"status": "ok", "backends": 4, "up": 4},
        {"status": "degraded", "backends": 8, "up": 8},
        "all is well",
    ],
)
def test_a_health_that_does_not_tell_the_truth_fails(world: World, said: Any) -> None:
    assert the_one(world.change("health", whole(said), where=B).evidence(), "health-truth", B)


def test_a_health_that_stays_green_over_dead_backends_is_found_out(world: World) -> None:
    evidence = world.change("health", Answer(503), "67/2", D).evidence()
    assert failing(evidence) == {("health", D), ("health-truth", B)}


@pytest.mark.parametrize("path", ["/invocations", "/metrics", "/v1/../metrics"])
@pytest.mark.parametrize("http", [200, 405, 500])
def test_a_route_that_is_open_fails(world: World, path: str, http: int) -> None:
    evidence = world.change(f"open:{path}", Answer(http), where=OUT).evidence()
    assert f"{path} answers {http}" in the_one(evidence, "unguarded", OUT).seen


def test_a_route_that_the_inventory_opens_warns(fleet: Fleet) -> None:
    opened = with_inventory(fleet, "balancer", paths=("/v1/", "/tokenize"))
    evidence = World(opened).change("open:/tokenize", Answer(405), where=B).evidence()
    assert judged(evidence)[("unguarded", B)].status is Status.WARN


@pytest.mark.parametrize("kind", ["cors:answer", "cors:401", "cors:404", "cors:preflight"])
def test_two_cors_headers_or_none_fail(world: World, kind: str) -> None:
    def twice(ask: Any, right: Answer) -> Answer:
        return replace(right, headers=(*right.headers, ("access-control-allow-origin", "*")))

    def none(ask: Any, right: Answer) -> Answer:
        return replace(right, headers=())

    evidence = World(world.fleet).change(kind, twice, where=B).evidence()
    assert "2 headers" in the_one(evidence, "cors", B).seen
    evidence = World(world.fleet).change(kind, none, where=B).evidence()
    assert "0 headers" in the_one(evidence, "cors", B).seen


def test_a_preflight_has_to_allow_what_clients_send(world: World) -> None:
    def fewer(ask: Any, right: Answer) -> Answer:
        return replace(right, headers=tuple(h for h in right.headers if h[0] != "access-control-allow-headers"))

    assert "authorization" in the_one(world.change("cors:preflight", fewer, where=B).evidence(), "cors", B).seen


def test_a_balancer_that_is_down_is_one_red_line(world: World) -> None:
    gone = Answer(0, exit=7, error="Failed to connect to 127.0.0.1 port 2219")
    world.changes.append(lambda ask, right: gone if ask.where in (B, OUT) else right)
    evidence = replace(world.evidence(reloaded=False), reloaded=False)
    assert "Failed to connect" in the_one(evidence, "answers", B).seen


def test_a_public_url_that_leads_nowhere_is_one_red_line_and_without_one_it_is_not_judged(world: World) -> None:
    gone = Answer(0, exit=60, error="SSL certificate problem: certificate has expired")
    world.changes.append(lambda ask, right: gone if ask.where is OUT else right)
    assert "expired" in the_one(world.evidence(), "answers", OUT).seen
    found = judged(World(world.fleet, public=False).evidence())
    assert found[("answers", OUT)].status is Status.SKIP


def test_a_gateway_that_hides_who_answered_warns(world: World) -> None:
    evidence = world.evidence()
    evidence.trips[OUT] = [replace(trip, backend=None) for trip in evidence.trips[OUT]]
    assert judged(evidence)[("routing", OUT)].status is Status.WARN


def test_one_shared_key_before_the_session_sends_everybody_to_one_backend_and_is_found(fleet: Fleet) -> None:
    shared = with_inventory(fleet, "balancer", key_order=("bearer", "session", "client"))
    evidence = World(shared).evidence()
    only = evidence.home("anybody")
    assert only is not None
    evidence.trips[B] = [replace(trip, backend=only.address) for trip in evidence.trips[B]]
    found = judged(evidence)
    assert found[("routing", B)].status is Status.PASS
    assert found[("reached", B)].wrong == 7
    assert found[("session", B)].status is Status.SKIP


def test_least_conn_has_no_homes_to_judge(fleet: Fleet) -> None:
    found = judged(World(with_inventory(fleet, "balancer", affinity=Affinity.LEAST_CONN)).evidence())
    skipped = {id for (id, where), check in found.items() if check.status is Status.SKIP and where is B}
    assert skipped == {"routing", "session", "reload"}


def test_plain_nginx_is_not_computed_and_says_that_it_does_not_know(fleet: Fleet) -> None:
    world = World(with_inventory(fleet, "balancer", mode="plain"))
    for where in (B, OUT):
        world.change("health", whole({"status": "unknown", "backends": 8, "machines": []}), where=where)
    found = judged(world.evidence())
    assert found[("routing", B)].status is Status.SKIP
    assert found[("health-truth", B)].status is Status.WARN
    assert found[("session", B)].status is Status.PASS
    assert found[("reload", B)].status is Status.PASS


# The machines


def test_an_instance_stopped_on_purpose_is_worth_a_look_and_not_asked(fleet: Fleet) -> None:
    world = World(fleet, table=peers.of(fleet, {"67/2": PeerState.OFF}, fleet.machines))
    evidence = world.evidence()
    name = fleet.on(67)[2].name
    stopped = {name: Stopped("ops", "2026-08-29T00:00:00Z", "fan")}
    evidence.facts[67] = replace(evidence.facts[67], stopped=stopped)
    found = judged(evidence)
    assert {id for (id, _), check in found.items() if check.status is Status.FAIL} == set()
    joined = found[("joined", M)]
    assert joined.status is Status.WARN
    assert joined.expected == "7 of the inventory's 8 instances in rotation"
    assert joined.seen == "7 of 7; 1 stopped on purpose: 67/2 by ops (fan)"
    assert joined.problems == ("67/2: stopped on purpose by ops (fan)",)
    assert found[("health", D)].n == 7


def test_an_instance_that_somebody_drained_is_not_counted_as_in_rotation(fleet: Fleet) -> None:
    world = World(fleet, table=peers.of(fleet, {"67/2": PeerState.HELD, "67/1": PeerState.DRAIN}, fleet.machines))
    joined = judged(world.evidence())[("joined", M)]
    assert joined.status is Status.WARN
    assert joined.seen == "6 of 7; 67/1: is drain in the table; 1 drained on purpose: 67/2"


def test_a_fleet_that_is_stopped_on_purpose_is_worth_a_look(fleet: Fleet) -> None:
    evidence = World(fleet, table=peers.of(fleet, {i.id: PeerState.OFF for i in fleet.instances}, [69, 67])).evidence()
    for machine in fleet.machines:
        stopped = {i.name: Stopped("ops", "2026-08-29T00:00:00Z", "") for i in fleet.on(machine)}
        evidence.facts[machine] = replace(evidence.facts[machine], stopped=stopped)
    joined = judged(evidence)[("joined", M)]
    assert joined.status is Status.WARN
    assert joined.seen == "0 of 0; 8 stopped on purpose: 69/0 by ops, 69/1 by ops, 69/2 by ops and 5 more"


def test_machines_that_have_not_joined_are_worth_a_look(fleet: Fleet) -> None:
    world = World(fleet, table=peers.of(fleet, {}, [69]))
    found = judged(world.evidence())
    assert {id for (id, _), check in found.items() if check.status is Status.FAIL} == set()
    assert found[("joined", M)].status is Status.WARN
    assert found[("health", D)].n == 4


def test_a_machine_that_does_not_answer_is_exit_code_4_and_no_more_red_lines(world: World) -> None:
    evidence = world.evidence()
    del evidence.facts[67], evidence.seen[67]
    evidence.errors[67] = UnreachableError("no answer", machine=67)
    assert the_one(evidence, "reachable", M).failed == {"67"}
    assert judge.exit_code(judge.everything(evidence)) == 4
    evidence.errors[67] = CommandError("the probe ended with 1", machine=67)
    assert judge.exit_code(judge.everything(evidence)) == 1


def test_the_balancers_machine_does_not_answer(world: World) -> None:
    evidence = world.evidence()
    del evidence.facts[69], evidence.seen[69]
    evidence.errors[69] = UnreachableError("no answer", machine=69)
    found = judged(evidence)
    assert found[("answers", B)].status is Status.SKIP
    assert judge.exit_code(found.values()) == 4


@pytest.mark.parametrize(
    "unit",
    [
        Unit("active", "running", "disabled", "success", 0, ""),
        Unit("failed", "failed", "enabled", "exit-code", 5, ""),
    ],
)
@pytest.mark.parametrize("name", ["qwen38-tp2-2", "openresty-qwen", "docker"])
def test_a_unit_that_is_not_enabled_and_running_fails(world: World, unit: Unit, name: str) -> None:
    evidence = world.evidence()
    evidence.facts[69] = replace(evidence.facts[69], units={**evidence.facts[69].units, name: unit})
    if name == "openresty-qwen" and unit.active == "failed":
        for where in (B, OUT):
            evidence.answers[(where, "balancer", "health")] = SILENT
    assert the_one(evidence, "units", M).failed == {f"69 {name}"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('OCI runtime exec failed: exec: "npu-smi": executable file not found in $PATH\nexit 127', "not found"),
        ("dcmi module initialize failed. ret is -8005\nexit 255", "-8005"),
        (npu_table(range(4)), "shows NPUs 0,1,2,3, 4,5 were due"),
        ("", "nothing"),
    ],
)
def test_npu_smi_that_fails_in_a_container_fails(world: World, text: str, words: str) -> None:
    evidence = world.evidence()
    seen = evidence.seen[67]
    evidence.seen[67] = replace(seen, npu={**seen.npu, "qwen38-tp2-2": text})
    assert words in the_one(evidence, "npu-smi", M).seen


def test_another_image_fails(world: World) -> None:
    evidence = world.evidence()
    evidence.facts[67] = replace(evidence.facts[67], image=Image("sha256:" + "a" * 64, "d" * 64, 1))
    assert the_one(evidence, "image", M).failed == {"67"}
    evidence.facts[67] = replace(evidence.facts[67], image=Image("sha256:" + "b" * 64, "c" * 64, 1))
    assert the_one(evidence, "image", M).failed == {f"67/{n}" for n in range(4)}


def test_other_flags_fail_and_are_named(world: World) -> None:
    evidence = world.evidence()
    seen = evidence.seen[67]
    other = seen.containers["qwen38-tp2-2"].replace('"--max-num-seqs", "32"', '"--max-num-seqs", "16"')
    evidence.seen[67] = replace(seen, containers={**seen.containers, "qwen38-tp2-2": other})
    assert "--max-num-seqs 16 instead of 32" in the_one(evidence, "flags", M).seen


def test_a_release_counts_as_the_desired_state(world: World, fleet: Fleet) -> None:
    evidence = world.evidence()
    evidence.fleet = fleet.with_overrides(Overrides(tokens=5))
    assert failing(evidence) == {("flags", M)}


def test_other_mounts_or_devices_fail(world: World) -> None:
    evidence = world.evidence()
    first, *rest = evidence.facts[67].containers or ()
    changed = replace(first, labels={**first.labels, "fleetctl.spec": "0" * 12})
    evidence.facts[67] = replace(evidence.facts[67], containers=(changed, *rest))
    assert "mounts, devices or environment" in the_one(evidence, "flags", M).seen


def test_another_model_manifest_fails(world: World) -> None:
    evidence = world.evidence()
    for model in (ModelState(True, "l", "x" * 64, "l", 1), ModelState(True, "changed", "m" * 64, "l", 1)):
        evidence.facts[67] = replace(evidence.facts[67], model=model)
        assert the_one(evidence, "model-files", M).failed == {"67"}


def test_another_driver_fails(world: World) -> None:
    evidence = world.evidence()
    evidence.seen[67] = replace(evidence.seen[67], driver="Version=25.2.0\n")
    assert "67: driver 25.2.0" in the_one(evidence, "driver", M).seen


def test_another_version_of_vllm_fails(world: World) -> None:
    evidence = world.change("version", whole({"version": "0.23.0"}), "67/2").evidence()
    assert "67/2: vLLM 0.23.0" in the_one(evidence, "version").seen


def test_another_key_file_fails(world: World) -> None:
    evidence = world.evidence()
    evidence.seen[67] = replace(evidence.seen[67], key_hash="0" * 64)
    assert the_one(evidence, "key-files", M).failed == {"67"}
    evidence.seen[67] = replace(evidence.seen[67], key_hash=None)
    assert "no key file" in the_one(evidence, "key-files", M).seen


def test_what_was_seen_does_not_show_the_key(world: World) -> None:
    evidence = world.evidence()
    assert KEY not in repr(evidence)


def test_every_prompt_is_asked_of_every_instance(world: World) -> None:
    evidence = world.evidence(reloaded=False)
    for prompt in PROMPTS:
        assert len(list(evidence.all(D, f"prompt:{prompt.id}"))) == 8
        assert len(list(evidence.all(B, f"prompt:{prompt.id}"))) == 8
