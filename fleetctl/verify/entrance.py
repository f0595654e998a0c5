"""Judgements about the balancer, asked on its machine and from the operator's through public_url. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from fleetctl.verify import gates, questions
from fleetctl.verify.answers import Answer
from fleetctl.verify.check import Check, Look, Status, Where, settle, skipped
from fleetctl.verify.evidence import Evidence, Trip

SHOW = "fleetctl balancer show; fleetctl balancer diff"
APPLY = "fleetctl balancer diff; fleetctl balancer apply"
SHUT = (401, 403, 404)


EXCUSES = ("failover", "spill", "retry")
"""What the balancer's log says when it sent a request past its home on purpose: not well just then, or full."""


def answers(evidence: Evidence, where: Where) -> Check:
    """Somebody is there. When not, it is the only line about this door; with its unit down, `units` has said it."""
    answer = evidence.answer(where, "balancer", "health")
    expected = "/health answers"
    balancer = evidence.fleet.inventory.balancer
    unit = evidence.facts[balancer.machine].units.get(balancer.unit) if balancer.machine in evidence.facts else None
    if unit is not None and unit.active != "active" and not answer.http:
        return skipped("answers", where, expected, f"{balancer.unit} is {unit.active}")
    problem = None if answer.http else answer.words
    if where is Where.OUTSIDE and evidence.outside_problem is not None:
        problem = evidence.outside_problem
    look = Look("balancer", problem)
    return settle(
        "answers",
        where,
        expected,
        [look],
        sampled=False,
        next_command="fleetctl logs balancer --error; fleetctl status",
    )


def truth(evidence: Evidence, where: Where) -> Check:
    """/health against the table and against what the instances themselves say: a fixed text is found out."""
    up = [peer.id for peer in evidence.peers if peer.state.value == "up"]
    alive = [id for id in up if evidence.answer(Where.DIRECT, id, "health").http == 200]
    # What hangs behind a good /health, or is on a machine that did not answer, may be counted either way.
    working = [id for id in alive if gates.completion(evidence, Where.DIRECT, id) is None]
    unknown = [id for id in up if not evidence.reachable(id)]
    answer = evidence.answer(where, "balancer", "health")
    problem = _truth_problem(answer, len(evidence.peers), len(working), len(alive) + len(unknown))
    look = Look("balancer", problem, soft=problem == NO_LUA)
    expected = "/health counts the backends that are well"
    return settle("health-truth", where, expected, [look], sampled=False, next_command=SHOW)


NO_LUA = "it says that it does not know (an nginx without Lua)"


def _truth_problem(answer: Answer, backends: int, least: int, most: int) -> str | None:
    said = answer.json
    if not isinstance(said, dict):
        return f"/health is no JSON: {answer.body[:60]!r}"
    count, up = said.get("backends"), said.get("up")
    if said.get("status") == "unknown" and count == backends:
        return NO_LUA
    if count != backends or not isinstance(up, int) or not least <= up <= most:
        due = str(least) if least == most else f"{least} to {most}"
        return f"it says {up} of {count} up, {due} of {backends} are"
    verdict = "down" if up == 0 else "degraded" if up < backends else "ok"
    if said.get("status") != verdict or answer.http != (503 if verdict == "down" else 200):
        return f"it says {said.get('status')} with {answer.http} at {up} of {backends} up"
    return None


def per_backend(evidence: Evidence, where: Where, who: Iterable[str], out: Mapping[str, str]) -> Iterator[Check]:
    """Model and key as each backend answers them through this door."""
    # One that went away meanwhile was answered for by others: `routing` says so.
    ids = [id for id in who if id not in out and (where, id, "models") in evidence.answers]
    for name, expected, problem in gates.GATES:
        if name in ("model", "auth"):
            looks = [Look(id, problem(evidence, where, id)) for id in ids]
            yield settle(name, where, expected, looks, left_out=out, next_command=SHOW)


def routed(evidence: Evidence, where: Where, trips: Iterable[Trip], name: str = "routing") -> Check:
    """Every answer comes from the backend that its session computes to."""
    expected = "every answer from the backend that the session computes to"
    if not evidence.computable:
        balancer = evidence.fleet.inventory.balancer
        why = (
            "no session has a home with least_conn"
            if balancer.mode == "lua"
            else "nginx's own hash is not computed here"
        )
        return skipped(name, where, expected, why)
    all_trips = list(trips)
    if where is Where.OUTSIDE and all_trips and not any(trip.backend for trip in all_trips):
        look = Look("gateway", "X-Upstream-Addr does not come through: who answered is unknown", soft=True)
        return settle(name, where, expected, [look], sampled=False)
    looks = []
    for trip in all_trips:
        due = evidence.computed(trip.session)
        looks.append(_trip_look(evidence, trip, evidence.named(due[0] if due else None) or trip.session, due))
    return settle(name, where, expected, looks, next_command="fleetctl balancer show; fleetctl logs balancer --access")


def _trip_look(evidence: Evidence, trip: Trip, who: str, due: tuple[str, ...]) -> Look:
    """Soft when the balancer itself says why it went elsewhere."""
    problem, why = _trip_problem(trip, due), evidence.why.get(trip.request or "")
    if problem is not None and trip.backend is not None and why in EXCUSES:
        return Look(who, f"{problem}: {why}, says the balancer", soft=True)
    return Look(who, problem)


def _trip_problem(trip: Trip, due: tuple[str, ...]) -> str | None:
    if trip.http == 0:
        return f"session {trip.session}: {trip.words}"
    if trip.backend is None:
        return f"session {trip.session}: {trip.http} of the balancer itself"
    if trip.backend in due:
        return None
    return f"session {trip.session} answered by {trip.backend}, {' or '.join(due) or 'nobody'} was due"


def reached(evidence: Evidence, trips: Iterable[Trip]) -> Check:
    """Every backend that is in rotation and well answers somebody."""
    rows = list(trips)
    hit = Counter(trip.backend for trip in rows)
    out, looks = {}, []
    for peer in evidence.peers:
        instance = next((i for i in evidence.asked if i.id == peer.id), None)
        if peer.state.value != "up":
            out[peer.id] = evidence.drained[peer.id]
        elif instance is None or evidence.answer(Where.DIRECT, peer.id, "health").http != 200:
            out[peer.id] = "is not well itself"
        else:
            looks.append(Look(peer.id, None if hit[peer.address] else f"never answered one of {len(rows)} requests"))
    good = f"{min((hit[p.address] for p in evidence.peers if p.id not in out), default=0)} requests or more each"
    return settle(
        "reached",
        Where.BALANCER,
        "every backend in rotation answers",
        looks,
        good=good,
        sampled=False,
        left_out=out,
        next_command=SHOW,
    )


def sticky(evidence: Evidence) -> Check:
    """The same session ten times, one after the other and all at once, from one backend."""
    expected = f"{questions.SESSION_REPEATS} requests one by one and at once, one backend"
    if not evidence.sessions_decide:
        return skipped("session", Where.BALANCER, expected, "sessions do not decide in this balancer")
    looks = []
    for session in evidence.sticky:
        found = [
            (kind, answer)
            for kind in ("serial", "concurrent")
            for who, answer in evidence.all(Where.BALANCER, kind)
            if who.partition("#")[0] == session
        ]
        usual = Counter(answer.backend for _, answer in found if answer.backend).most_common(1)
        home = usual[0][0] if usual else None
        for kind, answer in found:
            problem = None if answer.http == 200 else f"{kind}: answers {answer.words}"
            why = evidence.why.get(answer.header("x-request-id") or "")
            if problem is None and answer.backend != home:
                problem = f"{kind}: from {answer.backend}, the others from {home}"
                problem += f": {why}, says the balancer" if why else ""
            looks.append(Look(f"session {session}", problem, soft=why in EXCUSES))
    return settle("session", Where.BALANCER, expected, looks, next_command=SHOW)


def after_reload(evidence: Evidence, before: Iterable[Trip], after: Iterable[Trip]) -> Check:
    """A reload moves nobody and loses nothing."""
    expected = "after a reload every session answers from where it did"
    name = "reload"
    if evidence.reload_problem is not None:
        look = Look("balancer", evidence.reload_problem)
        return settle(
            name, Where.BALANCER, expected, [look], sampled=False, next_command="fleetctl logs balancer --error"
        )
    if not evidence.reloaded:
        return skipped(name, Where.BALANCER, expected, "not asked for: --reload does it, gracefully")
    if not evidence.sessions_decide:
        return skipped(name, Where.BALANCER, expected, "sessions do not decide in this balancer")
    homes = {trip.session: trip.backend for trip in before}
    looks = []
    for trip in after:
        # Computed where it can be: before the reload the balancer may have found the home unwell for a moment.
        old = homes.get(trip.session)
        due = evidence.computed(trip.session) if evidence.computable else (old,) if old else ()
        looks.append(_trip_look(evidence, trip, f"session {trip.session}", due))
    return settle(name, Where.BALANCER, expected, looks, next_command=SHOW)


def unguarded(evidence: Evidence, where: Where) -> Check:
    """The engine asks for its key under /v1 only; the balancer keeps the rest shut."""
    opened = evidence.fleet.inventory.balancer.paths
    looks = []
    for _, answer, path in _by_path(evidence, where):
        shut = answer.http in SHUT
        wanted = any(path.startswith(prefix) for prefix in opened) and ".." not in path and "%2e" not in path
        problem = None if shut else f"{path} answers {answer.words}"
        if problem and wanted:
            problem += ": balancer.paths lets it through, and the engine asks for no key there"
        looks.append(Look("balancer", problem, soft=wanted and answer.http != 0))
    return settle("unguarded", where, "routes without a key answer 404", looks, sampled=False, next_command=APPLY)


def _by_path(evidence: Evidence, where: Where) -> Iterator[tuple[str, Answer, str]]:
    for (place, who, kind), answer in evidence.answers.items():
        if place is where and kind.startswith("open:"):
            yield who, answer, kind.removeprefix("open:")


def cors(evidence: Evidence, where: Where) -> Check:
    """One Access-Control-Allow-Origin in answers, in errors, and in preflights, which say what a page may send."""
    wanted = questions.origin_of(evidence.fleet)
    looks = []
    for kind in ("answer", "401", "404", "preflight"):
        answer = evidence.answer(where, "balancer", f"cors:{kind}")
        looks.append(Look("balancer", _cors_problem(evidence, kind, answer, wanted)))
    return settle(
        "cors",
        where,
        "one Access-Control-Allow-Origin, errors and preflight too",
        looks,
        sampled=False,
        next_command=APPLY,
    )


def _cors_problem(evidence: Evidence, kind: str, answer: Answer, wanted: str) -> str | None:
    if not answer.http:
        return f"{kind}: {answer.words}"
    found = answer.every("access-control-allow-origin")
    if len(found) != 1 or found[0] not in ("*", wanted):
        return f"{kind}: {len(found)} headers ({', '.join(found) or 'none'})"
    if kind in ("401", "404") and answer.http != int(kind):
        return f"{kind}: answers {answer.words}"
    if kind != "preflight":
        return None
    if answer.http not in (200, 204):
        return f"preflight answers {answer.words}"
    methods = (answer.header("access-control-allow-methods") or "").upper()
    headers = (answer.header("access-control-allow-headers") or "").lower()
    due = ("authorization", "content-type", evidence.fleet.inventory.balancer.session_headers[0].lower())
    missing = [name for name in due if name not in headers and headers != "*"]
    if "POST" not in methods or missing:
        return f"preflight allows {methods or 'no method'}, and not {', '.join(missing) or 'POST'}"
    return None


def failed(check: Check) -> bool:
    return check.status is Status.FAIL
