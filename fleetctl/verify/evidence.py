"""Everything that a run saw: the pure input of all judgements."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.errors import FleetctlError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import Affinity
from fleetctl.observe.facts import Facts
from fleetctl.verify.answers import NOTHING, Answer
from fleetctl.verify.asks import Ask
from fleetctl.verify.check import Where

Answers = dict[tuple[Where, str, str], Answer]


@dataclass(frozen=True)
class Trip:
    """One request of a session: the status, the address of the backend that answered it, and X-Request-Id."""

    session: str
    http: int
    backend: str | None
    words: str
    request: str | None = None

    @staticmethod
    def of(session: str, answer: Answer) -> Trip:
        return Trip(session, answer.http, answer.backend, answer.words, answer.header("x-request-id"))


@dataclass(frozen=True)
class MachineSeen:
    """Of `verify_machine.sh`: hash of the key file, text of version.info; per container name its image and arguments
    as Docker tells them, and what npu-smi printed in it."""

    key_hash: str | None = None
    driver: str | None = None
    containers: Mapping[str, str] = field(default_factory=dict)
    npu: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Evidence:
    """Filled round by round. `peers`: the balancer's table; `key`: only compared and hashed, never shown.

    `homes`: id of a backend -> sessions that it answers. `trips`: every request that carried a session, by
    door; `first_trips` and `later_trips`: the same sessions before and after a reload. `why`: X-Request-Id -> what the
    balancer's log says of a request that was answered elsewhere. `stream_looks`: how often all streams were asked,
    the best time of each counts. `no_outside`: why public_url was not asked;
    `outside_problem`: why that did not end.
    """

    fleet: Fleet
    peers: tuple[Peer, ...] = ()
    facts: dict[int, Facts] = field(default_factory=dict)
    errors: dict[int, FleetctlError] = field(default_factory=dict)
    seen: dict[int, MachineSeen] = field(default_factory=dict)
    key: str = field(default="", repr=False)
    answers: Answers = field(default_factory=dict)
    homes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sticky: tuple[str, ...] = ()
    trips: dict[Where, list[Trip]] = field(default_factory=lambda: {where: [] for where in Where})
    first_trips: list[Trip] = field(default_factory=list)
    later_trips: list[Trip] = field(default_factory=list)
    why: dict[str, str] = field(default_factory=dict)
    stream_looks: int = 0
    reloaded: bool = False
    reload_problem: str | None = None
    no_outside: str | None = None
    outside_problem: str | None = None

    def add(self, asks: Iterable[Ask], answers: Iterable[Answer]) -> None:
        self.answers.update((ask.name, answer) for ask, answer in zip(asks, answers, strict=True))

    def answer(self, where: Where, who: str, kind: str) -> Answer:
        return self.answers.get((where, who, kind), NOTHING)

    def all(self, where: Where, kind: str) -> Iterator[tuple[str, Answer]]:
        """Every answer of a kind, or of kinds that start so when `kind` ends with a colon."""
        for (place, who, name), answer in self.answers.items():
            if place is where and (name == kind or (kind.endswith(":") and name.startswith(kind))):
                yield who, answer

    @property
    def joined(self) -> tuple[Instance, ...]:
        """Instances that have their place in the balancer's table, in its order."""
        known = {peer.id for peer in self.peers}
        return tuple(instance for instance in self.fleet.instances if instance.id in known)

    @property
    def hosts(self) -> tuple[int, ...]:
        """Machines that answered and have joined instances."""
        return tuple(m for m in self.facts if any(i.machine == m for i in self.joined))

    @property
    def where_stopped(self) -> dict[str, str]:
        """Instances that are out on purpose, with the words for it."""
        found = {}
        for instance in self.joined:
            note = self.facts[instance.machine].stopped.get(instance.name) if instance.machine in self.facts else None
            if note is not None:
                found[instance.id] = f"was stopped on purpose by {note.who}{f' ({note.reason})' if note.reason else ''}"
        return found

    @property
    def drained(self) -> dict[str, str]:
        return {peer.id: f"is {peer.state.value} in the table" for peer in self.peers if peer.state is not PeerState.UP}

    @property
    def asked(self) -> tuple[Instance, ...]:
        """Instances that should answer: joined, on a machine that answered, not stopped on purpose."""
        return tuple(i for i in self.joined if i.machine in self.facts and i.id not in self.where_stopped)

    @property
    def computable(self) -> bool:
        """Whether the backend of a session can be computed here: with Lua, and when sessions decide at all."""
        balancer = self.fleet.inventory.balancer
        return balancer.mode == "lua" and balancer.affinity is not Affinity.LEAST_CONN

    @property
    def sessions_decide(self) -> bool:
        """Whether a session header is what a backend is chosen by."""
        balancer = self.fleet.inventory.balancer
        return balancer.affinity is not Affinity.LEAST_CONN and balancer.key_order[0] == "session"

    @property
    def health_by_balancer(self) -> dict[str, str]:
        """What the balancer thinks of each peer, by id; empty when it did not say."""
        state = self.answer(Where.BALANCER, "balancer", "state").json
        listed = state.get("peers") if isinstance(state, dict) else None
        rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
        return {str(row.get("id")): str(row.get("health") or "ok") for row in rows}

    def home(self, session: str, client: str = "127.0.0.1") -> Peer | None:
        """The first of the session's order that is in rotation: where it belongs whenever that one is well."""
        key = self._affinity_key(session, client)
        decision = routing.route(key, self.peers, self.fleet.inventory.balancer.affinity)
        return decision.peer if decision else None

    def computed(self, session: str) -> tuple[str, ...]:
        """Addresses that may answer a session: its home, and its stand-in when the balancer thinks the home unwell.

        Both, because a home may come and go during a run.
        """
        home, health = self.home(session), self.health_by_balancer
        if home is None or health.get(home.id, "ok") == "ok":
            return (home.address,) if home else ()
        decision = routing.route(
            self._affinity_key(session, "127.0.0.1"),
            self.peers,
            self.fleet.inventory.balancer.affinity,
            healthy=lambda peer: health.get(peer.id, "ok") == "ok",
        )
        return tuple(dict.fromkeys(peer.address for peer in (home, decision and decision.peer) if peer))

    def _affinity_key(self, session: str, client: str) -> str:
        sources = {"session": session, "bearer": self.key, "client": client}
        return next((sources[name] for name in self.fleet.inventory.balancer.key_order if sources[name]), client)

    def strayed(self) -> list[Trip]:
        """Requests that were answered by another backend than their session computes to."""
        if not self.computable:
            return []
        found = []
        for trip in (*self.trips[Where.BALANCER], *self.trips[Where.OUTSIDE]):
            if trip.backend is not None and trip.backend not in self.computed(trip.session):
                found.append(trip)
        return found

    def named(self, address: str | None) -> str | None:
        """The id of the backend at an address such as X-Upstream-Addr tells."""
        return next((peer.id for peer in self.peers if peer.address == address), None)

    def reachable(self, id: str) -> bool:
        """Whether the machine of an instance answered."""
        return any(i.id == id and i.machine in self.facts for i in self.fleet.instances)

    def version(self, id: str) -> Any:
        document = self.answer(Where.DIRECT, id, "version").json
        return document.get("version") if isinstance(document, dict) else None
