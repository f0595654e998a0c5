"""A fleet of plain values that answers every question rightly, and can be told to answer some of them otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from fleetctl.balancer import peers, routing
from fleetctl.balancer.peers import Peer
from fleetctl.commands import docker, paths
from fleetctl.fleet import flags
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts, Unit
from fleetctl.observe.prompts import PROMPTS
from fleetctl.verify import questions
from fleetctl.verify.answers import Answer
from fleetctl.verify.asks import Ask, Key
from fleetctl.verify.check import Where
from fleetctl.verify.evidence import Evidence, MachineSeen, Trip
from fleetctl.verify.questions import Door

from ..conftest import KEY, serving

LISTEN = "http://127.0.0.1:2219"
PUBLIC = "http://models.example:2219"
RIGHT = {prompt.text: prompt.accepts[0] for prompt in PROMPTS}
Change = Callable[[Ask, Answer], Answer]


def whole(document: Any, http: int = 200, **headers: str) -> Answer:
    named = tuple((name.replace("_", "-").lower(), value) for name, value in headers.items())
    return Answer(http, headers=named, body=document if isinstance(document, str) else json.dumps(document))


def usage(completion: int, prompt: int = 12) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def completion(message: dict[str, Any], tokens: int, finish: str = "stop") -> Answer:
    return whole({"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage(tokens)})


def events(tokens: int, *, counts: bool = True, done: bool = True, chunks: int = 24) -> Answer:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": "one "} for _ in range(chunks))]
    rows: list[Any] = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    rows += [{"choices": [], "usage": usage(tokens)}] if counts else []
    lines = [f"data: {json.dumps(row)}\n\n" for row in rows] + (["data: [DONE]\n\n"] if done else [])
    times = tuple(0.05 * n for n in range(chunks))
    return Answer(200, exit=0 if done else 28, seconds=30.0, body="".join(lines), times=times)


def page(drafted: int, accepted: int) -> str:
    labels = '{engine="0",model_name="m"}'
    name = "vllm:spec_decode_num"
    return f"{name}_draft_tokens_total{labels} {drafted}.0\n{name}_accepted_tokens_total{labels} {accepted}.0\n"


@dataclass
class World:
    """`changes`: applied to an answer after it was made, in order; `tables`: the balancer's."""

    fleet: Fleet
    changes: list[Change] = field(default_factory=list)
    table: tuple[Peer, ...] = ()
    public: bool = True
    homes: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.table = self.table or peers.of(self.fleet, {}, self.fleet.machines)

    def change(self, kind: str, answer: Answer | Change, who: str | None = None, where: Where | None = None) -> World:
        """Another answer to questions of `kind` (`cap:` for all that start so) about `who` at `where`."""

        def changed(ask: Ask, right: Answer) -> Answer:
            hit = ask.kind == kind or (kind.endswith(":") and ask.kind.startswith(kind))
            about = self._instance(ask)
            if (
                not hit
                or (who is not None and who not in (ask.who, about))
                or (where is not None and where != ask.where)
            ):
                return right
            made = answer(ask, right) if callable(answer) else answer
            kept = tuple(h for h in right.headers if h[0] == "x-upstream-addr" and not made.every(h[0]))
            return replace(made, headers=(*made.headers, *kept)) if made.http else made

        self.changes.append(changed)
        return self

    def _session(self, ask: Ask) -> str | None:
        header = self.fleet.inventory.balancer.session_headers[0]
        return next((value for name, value in ask.headers if name == header), None)

    def _instance(self, ask: Ask) -> str | None:
        """Who computes the answer."""
        if ask.where is Where.DIRECT:
            return ask.who
        session = self._session(ask)
        if session is None:
            return None
        if session not in self.homes:
            home = routing.route(session, self.table, self.fleet.inventory.balancer.affinity)
            self.homes[session] = home.peer.id if home else None
        return self.homes[session]

    def reply(self, ask: Ask) -> Answer:
        answer = self._right(ask)
        if ask.where is not Where.DIRECT:
            home = next((peer for peer in self.table if peer.id == self._instance(ask)), None)
            if home is not None and answer.http:
                answer = replace(answer, headers=(*answer.headers, ("x-upstream-addr", home.address)))
        for change in self.changes:
            answer = change(ask, answer)
        return answer

    def _right(self, ask: Ask) -> Answer:
        path = urlsplit(ask.url).path
        if ask.kind == "health":
            if ask.where is Where.DIRECT:
                return Answer(200)
            machines = list(map(str, self.fleet.machines))
            up = sum(peer.state.value == "up" for peer in self.table)
            verdict = "ok" if up == len(self.table) else "degraded"
            return whole({"status": verdict, "backends": len(self.table), "up": up, "machines": machines})
        if ask.kind == "state":
            return whole({"peers": [{"id": p.id, "address": p.address, "health": "ok"} for p in self.table]})
        if ask.kind.startswith("cors:"):
            return self._browser(ask)
        if ask.kind.startswith("open:"):
            return whole({"error": {}}, 404)
        if path.startswith("/v1/") and ask.key is not Key.RIGHT:
            return whole({"error": "Unauthorized"}, 401)
        if path == "/v1/models":
            longest = self.fleet.engine["max-model-len"]
            return whole({"data": [{"id": self.fleet.inventory.model.name, "max_model_len": longest}]})
        if path == "/version":
            return whole({"version": "0.32.0"})
        if path == "/metrics":
            return whole(page(100, 70) if ask.kind == "metrics-before" else page(900, 600))
        return self._chat(ask)

    def _browser(self, ask: Ask) -> Answer:
        http = {"cors:401": 401, "cors:404": 404, "cors:preflight": 204}.get(ask.kind, 200)
        headers = {"Access_Control_Allow_Origin": "*"}
        if http == 204:
            headers |= {
                "Access_Control_Allow_Methods": "GET, POST, OPTIONS",
                "Access_Control_Allow_Headers": "authorization, content-type, x-session-id",
            }
        return whole({}, http, **headers)

    def _chat(self, ask: Ask) -> Answer:
        body = ask.body or {}
        limit, text = body["max_tokens"], body["messages"][0]["content"]
        if body.get("stream"):
            return events(limit)
        if text in RIGHT:
            return completion({"content": RIGHT[text]}, 3)
        if ask.kind == "tool":
            function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
            return completion({"content": None, "tool_calls": [{"function": function}]}, 20, "tool_calls")
        if ask.kind == "reasoning":
            return completion({"content": "13", "reasoning": "6 and 7 make 13."}, 40)
        if ask.kind.startswith("t"):
            return completion({"content": f"The sea at {body['temperature']}."}, 24, "length")
        return completion({"content": "1, 2, 3"}, limit, "length")

    def evidence(self, *, reloaded: bool = True) -> Evidence:
        """What `run.conduct` would have seen."""
        fleet = self.fleet
        up = Unit("active", "running", "enabled", "success", 0, "/etc/systemd/system/x.service")
        facts = dict(_facts(fleet))
        home = fleet.inventory.balancer
        facts[home.machine] = replace(facts[home.machine], units={**facts[home.machine].units, home.unit: up})
        found = Evidence(fleet, peers=self.table, facts=facts, key=KEY)
        found.seen = {machine: self._seen(machine) for machine in fleet.machines}
        model = fleet.inventory.model.name
        for instance in found.asked:
            door = questions.direct(instance)
            self._put(found, questions.gate(instance, model))
            self._put(found, [questions.metrics(instance, "metrics-after")])
            self._put(found, questions.behaviour(door, instance.id, fleet, 7))
            self._put(found, [questions.stream(door, instance.id, model)])
        self._front(found, reloaded)
        if self.public:
            self._outside(found)
        else:
            found.no_outside = "balancer.public_url is not set"
        return found

    def _seen(self, machine: int) -> MachineSeen:
        prefix = ["-c", docker.READ_KEY, str(paths.KEY_IN_CONTAINER)]
        return MachineSeen(
            key_hash=hashlib.sha256(KEY.encode()).hexdigest(),
            driver="Version=26.0.rc1\n",
            containers={
                i.name: f"sha256:{'a' * 64} {json.dumps(prefix + flags.engine_argv(self.fleet, i))}"
                for i in self.fleet.on(machine)
            },
            npu={i.name: npu_table() for i in self.fleet.on(machine)},
        )

    def _put(self, found: Evidence, asks: Any) -> None:
        for ask in asks:
            answer = self.reply(ask)
            session = self._session(ask)
            if session is not None:
                found.trips[ask.where].append(Trip.of(session, answer))
            meant = any(i.id == ask.who for i in self.fleet.instances)
            actual = found.named(answer.backend) if meant and ask.where is not Where.DIRECT else None
            found.add([replace(ask, who=actual or ask.who)], [answer])

    def session_of(self, id: str) -> str:
        return next(
            name
            for name in (f"s{n}" for n in range(10_000))
            if (home := routing.route(name, self.table, self.fleet.inventory.balancer.affinity)) and home.peer.id == id
        )

    def _front(self, found: Evidence, reloaded: bool) -> None:
        fleet, door, header = self.fleet, Door(Where.BALANCER, LISTEN), self.fleet.inventory.balancer.session_headers[0]
        model = fleet.inventory.model.name
        self._put(found, questions.front(door, "http://127.0.0.1:2220/state", fleet))
        names = [f"r{n}" for n in range(160)]
        self._put(found, questions.route(door, fleet, names, "route"))
        found.first_trips = list(found.trips[Where.BALANCER])
        homes = [peer.id for peer in self.table if peer.state.value == "up"]
        found.homes = {id: (self.session_of(id),) for id in homes}
        for id, (session,) in found.homes.items():
            asks = [
                *questions.auth(door, id, model),
                *questions.behaviour(door, id, fleet, 7),
                questions.stream(door, id, model),
            ]
            self._put(found, [replace(ask, headers=((header, session), *ask.headers)) for ask in asks])
        found.sticky = tuple(session for (session,) in list(found.homes.values())[:2])
        for session in found.sticky:
            for kind in ("serial", "concurrent"):
                self._put(found, questions.sticky(door, fleet, session, kind))
        if reloaded:
            found.reloaded = True
            before = len(found.trips[Where.BALANCER])
            self._put(found, questions.route(door, fleet, names, "route-after-reload"))
            found.later_trips = found.trips[Where.BALANCER][before:]

    def _outside(self, found: Evidence) -> None:
        fleet, door, header = self.fleet, Door(Where.OUTSIDE, PUBLIC), self.fleet.inventory.balancer.session_headers[0]
        model = fleet.inventory.model.name
        self._put(found, questions.front(door, None, fleet))
        for n, (id, (session,)) in enumerate(found.homes.items()):
            asks = list(questions.auth(door, id, model))
            if n == 0:
                asks += [*questions.behaviour(door, id, fleet, 7), questions.stream(door, id, model)]
            self._put(found, [replace(ask, headers=((header, session), *ask.headers)) for ask in asks])


_KNOWN: dict[int, tuple[Fleet, dict[int, Facts]]] = {}


def _facts(fleet: Fleet) -> dict[int, Facts]:
    """Made once an inventory: rendering units takes most of a test. The fleet is kept, so that its id stays its own."""
    key = id(fleet.inventory)
    if key not in _KNOWN:
        _KNOWN[key] = (fleet, {machine: serving(fleet, machine) for machine in fleet.machines})
    return _KNOWN[key][1]


def npu_table(ids: range = range(8)) -> str:
    chips = "".join(
        f"| {i}     910B4               | OK            | 90.0                 40                      0    / 0 |\n"
        f"| 0                         | 0000:C{i}:00.0  | 0                    0    / 0                31000/ 65536 |\n"
        for i in ids
    )
    return f"| npu-smi 26.0.rc1   Version: 26.0.rc1 |\n{chips}"
