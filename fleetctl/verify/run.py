"""A run of all questions, in a few rounds: the only part of verify that talks to anybody.

Takes no lock and changes nothing, but for the balancer's reload when that is asked for.
"""

from __future__ import annotations

import json
import re
import secrets as randomness
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Protocol

from fleetctl.balancer import peers as peers_file
from fleetctl.balancer.config import Places
from fleetctl.balancer.peers import PeerState
from fleetctl.commands import paths, probe
from fleetctl.commands.script import Script, Word
from fleetctl.errors import CommandError, FleetctlError
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.secrets import MASK
from fleetctl.observe.facts import parse_json
from fleetctl.plan.release import puts_right
from fleetctl.plan.session import Session
from fleetctl.remote import here
from fleetctl.remote.connection import Result
from fleetctl.verify import answers, asks, behaviour, gates, questions
from fleetctl.verify.answers import Answer
from fleetctl.verify.asks import Ask
from fleetctl.verify.check import Status, Where
from fleetctl.verify.evidence import Evidence, MachineSeen, Trip
from fleetctl.verify.questions import Door

LIMIT = 110.0  # seconds for any one script; requests end by themselves long before
AT_ONCE = 8  # requests in flight on one instance, out of --max-num-seqs: users are there too
MOST = 96  # requests in flight through the balancer
STREAM_LOOKS = 3
ROUTE_SESSIONS = 160  # none wrong of 160: at most 1.9 %
SESSIONS_EACH = 4  # sessions that stand for one backend: a limit per session is not met
CANDIDATES = 50_000
LEAST_OF_A_KEY = 8  # characters; what is shorter is a part of other words
STRAYED = 200  # requests that the balancer's log is asked about
ID = re.compile(r"[0-9a-f]{32}")


class Run(Protocol):
    """A way to run a script: a machine's connection, or this computer."""

    def __call__(self, script: str, *, stdin: bytes = b"", timeout: float) -> Result: ...


def conduct(session: Session, *, reload: bool) -> Evidence:
    """Ask everything. Raises CommandError when no backend has joined, SecretError when there is no key to ask with."""
    key = session.key.reveal()
    session.status(session.fleet.machines)
    session.look(list(session.facts), lambda m: probe.state(session.fleet, session.fleet.machines[m]))
    facts = {m: facts for m, facts in session.facts.items() if m not in session.errors}
    evidence = Evidence(session.fleet, facts=facts, errors=dict(session.errors), key=key)
    evidence.peers = session.peers() or _assumed(session, evidence)
    if not evidence.peers and facts:
        raise CommandError("no backend has joined yet", step="verify", next_command=puts_right(session.release))
    _Rounds(session, evidence, randomness.token_hex(4)).all(reload=reload)
    return evidence


def _assumed(session: Session, evidence: Evidence) -> tuple[peers_file.Peer, ...]:
    """The table when the balancer's machine does not answer: every machine that has units of ours."""
    fleet = session.fleet
    if fleet.inventory.balancer.machine in evidence.facts:
        return ()
    known = {i.machine for i in fleet.instances if i.machine in evidence.facts and _has_unit(evidence, i)}
    return peers_file.of(fleet, {}, known)


def _has_unit(evidence: Evidence, instance: Instance) -> bool:
    unit = evidence.facts[instance.machine].units.get(instance.name)
    return unit is not None and unit.active != "absent"


@dataclass
class _Rounds:
    """`seed`: makes this run's sessions and samples its own."""

    session: Session
    evidence: Evidence
    seed: str

    def all(self, *, reload: bool) -> None:
        say = self.session.say
        say("verify", f"first look at {len(self.evidence.asked)} instances and the balancer")
        self._first()
        say("verify", "prompts, parameters, tools: directly and through the balancer")
        self._behaviour()
        say("verify", "streams")
        self._streams()
        say("verify", "sessions, counters, and the way in from outside")
        self._last()
        if reload and self._balancer_answers:
            say("verify", "reloading the balancer, and the same sessions again")
            self._reload()
        self._explain()

    # Ways and doors

    def _on(self, machine: int) -> Run:
        return self.session.connections[machine].run

    @property
    def _machine(self) -> int:
        return self.evidence.fleet.inventory.balancer.machine

    @property
    def _door(self) -> Door:
        balancer = self.evidence.fleet.inventory.balancer
        return Door(Where.BALANCER, f"{'https' if balancer.tls else 'http'}://127.0.0.1:{balancer.listen}")

    @property
    def _balancer_answers(self) -> bool:
        front = self.evidence.answer(Where.BALANCER, "balancer", "health")
        return self._machine in self.evidence.facts and front.http != 0

    def _ask(self, run: Run, wanted: Sequence[Ask], parallel: int) -> None:
        """One script, all of `wanted`. The certificate names the public host: that one is checked from outside."""
        if not wanted:
            return
        mark = randomness.token_hex(8)
        insecure = self.evidence.fleet.inventory.balancer.tls is not None and wanted[0].where is not Where.OUTSIDE
        text = asks.config(wanted, self.evidence.key, mark, insecure=insecure)
        result = run(Script("verify_ask", (mark, parallel)).text, stdin=text.encode(), timeout=LIMIT)
        self._keep(wanted, answers.parse(self._masked(result.stdout), mark, len(wanted)))

    def _masked(self, text: str) -> str:
        """Without the key, which a server may repeat: before anybody cuts a text off in the middle of it."""
        key = self.evidence.key
        for form in (key, json.dumps(key)[1:-1]):
            text = text.replace(form, MASK) if len(key) >= LEAST_OF_A_KEY else text
        return text

    def _keep(self, wanted: Sequence[Ask], found: Sequence[Answer]) -> None:
        """Answers through a balancer are those of the backend that gave them, whoever was meant."""
        header = self.evidence.fleet.inventory.balancer.session_headers[0]
        kept = []
        for ask, answer in zip(wanted, found, strict=True):
            name = next((value for key, value in ask.headers if key == header), None)
            if name is not None:
                self.evidence.trips[ask.where].append(Trip.of(name, answer))
            meant = any(instance.id == ask.who for instance in self.evidence.fleet.instances)
            actual = self.evidence.named(answer.backend) if meant and ask.where is not Where.DIRECT else None
            kept.append(replace(ask, who=actual or ask.who))
        self.evidence.add(kept, found)

    def _together(self, jobs: Iterable[tuple[int | None, Callable[[], None]]]) -> None:
        """All at once. A job of a machine that fails makes it one that does not answer."""
        listed = list(jobs)
        pool = ThreadPoolExecutor(max_workers=max(1, len(listed)))
        try:
            waiting = [(machine, pool.submit(job)) for machine, job in listed]
            for machine, future in waiting:
                try:
                    future.result()
                except FleetctlError as error:
                    if machine is None:
                        raise
                    self.evidence.errors[machine] = error
                    self.evidence.facts.pop(machine, None)
        except BaseException:
            self.session.connections.close()
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _instances(self, out: Iterable[str] = ()) -> dict[int, list[Instance]]:
        """By machine, those that are to be asked."""
        found: dict[int, list[Instance]] = {}
        for instance in self.evidence.asked:
            if instance.id not in out:
                found.setdefault(instance.machine, []).append(instance)
        return found

    def _directly(
        self, questions_of: Callable[[Instance], Iterable[Ask]], out: Iterable[str] = ()
    ) -> list[tuple[int | None, Callable[[], None]]]:
        """A job a machine: its instances' questions, taking turns."""
        jobs: list[tuple[int | None, Callable[[], None]]] = []
        for machine, instances in self._instances(out).items():
            wanted = _in_turn([list(questions_of(instance)) for instance in instances])
            run, parallel = self._on(machine), AT_ONCE * len(instances)
            jobs.append((machine, lambda run=run, wanted=wanted, n=parallel: self._ask(run, wanted, n)))  # type: ignore[misc]
        return jobs

    # Rounds

    def _first(self) -> None:
        model = self.evidence.fleet.inventory.model.name
        jobs = self._directly(lambda instance: questions.gate(instance, model))
        jobs += [(m, lambda m=m: self._look_at(m)) for m in self.evidence.facts]  # type: ignore[misc]
        if self._machine in self.evidence.facts:
            jobs.append((self._machine, self._front))
        self._together(jobs)

    def _look_at(self, machine: int) -> None:
        fleet, mark = self.evidence.fleet, randomness.token_hex(8)
        names = [i.name for i in self.evidence.asked if i.machine == machine]
        arguments: tuple[Word, ...] = (mark, paths.api_key(fleet), fleet.inventory.accelerator.driver, *names)
        part = answers.files(self._on(machine)(Script("verify_machine", arguments).text, timeout=60).stdout, mark)
        self.evidence.seen[machine] = MachineSeen(
            key_hash=part.get("key", "").strip() or None,
            driver=part.get("driver"),
            containers={name: part.get(f"inspect-{name}", "") for name in names},
            npu={name: part.get(f"npu-{name}", "") for name in names},
        )

    def _front(self) -> None:
        fleet = self.evidence.fleet
        state = f"http://127.0.0.1:{fleet.inventory.balancer.state_listen}/state"
        count = max(ROUTE_SESSIONS, 10 * len(self.evidence.peers))
        names = [self._session(n) for n in range(count)]
        wanted = [*questions.front(self._door, state, fleet), *questions.route(self._door, fleet, names, "route")]
        self._ask(self._on(self._machine), wanted, self._at_once())
        self.evidence.first_trips = list(self.evidence.trips[Where.BALANCER])
        self.evidence.homes = self._homes(names)

    def _at_once(self) -> int:
        """Through the balancer: more than its backends take at once would be sent past their homes."""
        taking = sum(peer.state is PeerState.UP for peer in self.evidence.peers)
        return min(MOST, AT_ONCE * max(1, taking))

    def _session(self, number: int) -> str:
        return f"verify-{self.seed}-{number}"

    def _homes(self, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
        """Sessions for each backend in rotation: computed, or where nginx hashes by itself, seen."""
        evidence = self.evidence
        found: dict[str, list[str]] = {peer.id: [] for peer in evidence.peers if peer.state is PeerState.UP}
        if not evidence.sessions_decide:
            # Any session will do: answers are those of whoever gives them.
            return {id: tuple(names[n :: len(found)][:SESSIONS_EACH]) for n, id in enumerate(found)}
        if not evidence.computable:
            for trip in evidence.first_trips:
                id = evidence.named(trip.backend)
                if id in found:
                    found[id].append(trip.session)
            return {id: tuple(sessions[:SESSIONS_EACH]) for id, sessions in found.items() if sessions}
        away = {id for id, word in evidence.health_by_balancer.items() if word != "ok"}
        for number in range(CANDIDATES):
            if all(len(sessions) >= SESSIONS_EACH for id, sessions in found.items() if id not in away):
                break
            home = evidence.home(self._session(number))
            if home is not None and home.id not in away and len(found[home.id]) < SESSIONS_EACH:
                found[home.id].append(self._session(number))
        return {id: tuple(sessions) for id, sessions in found.items() if sessions}

    def _through(self, door: Door, id: str, wanted: Iterable[Ask]) -> list[Ask]:
        """The questions of one backend, each with one of its sessions."""
        header, sessions = self.evidence.fleet.inventory.balancer.session_headers[0], self.evidence.homes[id]
        return [
            replace(ask, headers=((header, sessions[n % len(sessions)]), *ask.headers)) for n, ask in enumerate(wanted)
        ]

    def _behaviour(self) -> None:
        _, out = gates.direct(self.evidence)
        fleet, seed = self.evidence.fleet, int(self.seed, 16) % 1_000_000
        jobs = self._directly(lambda i: questions.behaviour(questions.direct(i), i.id, fleet, seed), out)
        if self._balancer_answers:
            jobs.append((self._machine, lambda: self._behaviour_through(out, seed)))
        self._together(jobs)

    def _behaviour_through(self, out: Iterable[str], seed: int) -> None:
        fleet, door = self.evidence.fleet, self._door
        wanted = [
            self._through(
                door,
                id,
                chain(questions.auth(door, id, fleet.inventory.model.name), questions.behaviour(door, id, fleet, seed)),
            )
            for id in self.evidence.homes
            if id not in out
        ]
        self._ask(self._on(self._machine), _in_turn(wanted), min(MOST, AT_ONCE * max(1, len(wanted))))

    def _streams(self) -> None:
        """Again where the balancer seems to bundle chunks: one that buffers does so every time, a computer that stood
        still for a moment does not. Of each stream the best look counts."""
        for _ in range(STREAM_LOOKS):
            _, out = gates.direct(self.evidence)
            before = {name: answer for name, answer in self.evidence.answers.items() if name[2] == "stream"}
            self.evidence.stream_looks += 1
            self._together(self._stream_jobs(out))
            for name, answer in before.items():
                self.evidence.answers[name] = behaviour.calmer(answer, self.evidence.answers[name])
            ids = [instance.id for instance in self.evidence.asked]
            if behaviour.spread(self.evidence, ids, out).status is not Status.FAIL:
                return

    def _stream_jobs(self, out: Iterable[str]) -> list[tuple[int | None, Callable[[], None]]]:
        """Directly and through the balancer at the same time: what else goes on is the same for both."""
        model = self.evidence.fleet.inventory.model.name
        jobs: list[tuple[int | None, Callable[[], None]]] = []
        for machine, instances in self._instances(out).items():
            wanted = [questions.stream(questions.direct(i), i.id, model) for i in instances]
            jobs.append((machine, lambda m=machine, wanted=wanted: self._stream(m, wanted)))  # type: ignore[misc]
        if self._balancer_answers:
            door = self._door
            through = [
                ask
                for id in self.evidence.homes
                if id not in out
                for ask in self._through(door, id, [questions.stream(door, id, model)])
            ]
            jobs.append((self._machine, lambda: self._stream(self._machine, through)))
        return jobs

    def _stream(self, machine: int, wanted: Sequence[Ask]) -> None:
        if not wanted:
            return
        mark = randomness.token_hex(8)
        insecure = self.evidence.fleet.inventory.balancer.tls is not None
        texts = [asks.stream_config(ask, insecure=insecure) for ask in wanted]
        script = Script("verify_stream", (mark, *texts)).text
        result = self._on(machine)(script, stdin=asks.key_of_streams(self.evidence.key), timeout=LIMIT)
        self._keep(wanted, answers.parse_streams(self._masked(result.stdout), mark, len(wanted)))

    def _last(self) -> None:
        _, out = gates.direct(self.evidence)
        jobs = self._directly(lambda instance: [questions.metrics(instance, "metrics-after")], out)
        if self._balancer_answers:
            jobs += [(self._machine, job) for job in self._sticky_jobs(out)]
        jobs.append((None, lambda: self._outside(out)))
        self._together(jobs)

    def _sticky_jobs(self, out: Iterable[str]) -> list[Callable[[], None]]:
        if not self.evidence.sessions_decide:
            return []
        usable = [sessions[0] for id, sessions in self.evidence.homes.items() if id not in out]
        # Spread over the table.
        step = max(1, len(usable) // questions.SESSIONS)
        self.evidence.sticky = tuple(usable[::step][: questions.SESSIONS])
        run, fleet, door = self._on(self._machine), self.evidence.fleet, self._door
        jobs: list[Callable[[], None]] = []
        at_once: list[Ask] = []
        for name in self.evidence.sticky:
            one_by_one = questions.sticky(door, fleet, name, "serial")
            jobs.append(lambda wanted=one_by_one: self._ask(run, wanted, 1))  # type: ignore[misc]
            at_once += questions.sticky(door, fleet, name, "concurrent")
        return [*jobs, lambda: self._ask(run, at_once, max(2, len(at_once)))]

    def _outside(self, out: Iterable[str]) -> None:
        """Through public_url from this computer: NAT, TLS and gateways are part of the way."""
        fleet = self.evidence.fleet
        url = fleet.inventory.balancer.public_url
        if url is None or not here.has("curl"):
            self.evidence.no_outside = "balancer.public_url is not set" if url is None else "there is no curl here"
            return
        door, model = Door(Where.OUTSIDE, url.rstrip("/")), fleet.inventory.model.name
        wanted: list[Ask] = []
        usable = [id for id in self.evidence.homes if id not in out]
        for id in usable:
            wanted += self._through(door, id, questions.auth(door, id, model))
        for id in usable[:1]:
            seed = int(self.seed, 16) % 1_000_000
            every = chain(questions.behaviour(door, id, fleet, seed), [questions.stream(door, id, model)])
            wanted += self._through(door, id, every)
        try:
            self._ask(here.run, list(questions.front(door, None, fleet)), AT_ONCE)
            if self.evidence.answer(Where.OUTSIDE, "balancer", "health").http:
                self._ask(here.run, wanted, AT_ONCE)
        except CommandError as error:
            # A gateway that swallows requests is a red line of its own, and all else has been seen.
            self.evidence.outside_problem = error.cause

    def _reload(self) -> None:
        fleet = self.evidence.fleet
        unit = f"{fleet.inventory.balancer.unit}.service"
        result = self._on(self._machine)(Script("verify_reload", (unit,), fleet.name, 45).text, timeout=90)
        if result.rc != 0:
            self.evidence.reload_problem = f"{unit} did not reload: {result.stderr.strip()[-200:]}"
            return
        self.evidence.reloaded = True
        names = [trip.session for trip in self.evidence.first_trips]
        before = len(self.evidence.trips[Where.BALANCER])
        again = questions.route(self._door, fleet, names, "route-after-reload")
        self._ask(self._on(self._machine), again, self._at_once())
        self.evidence.later_trips = self.evidence.trips[Where.BALANCER][before:]

    def _explain(self) -> None:
        """Ask the balancer's log about answers from elsewhere: a backend that was full or unwell for a moment."""
        ids = [trip.request for trip in self.evidence.strayed() if trip.request and ID.fullmatch(trip.request)]
        if not ids or self._machine not in self.evidence.facts:
            return
        log = Places.of(self.evidence.fleet).logs / "access.log"
        script = Script("verify_why", (log, *ids[:STRAYED])).text
        for line in self._on(self._machine)(script, timeout=30).stdout.splitlines():
            entry = parse_json(line)
            if isinstance(entry, dict) and entry.get("why"):
                self.evidence.why[str(entry.get("id"))] = str(entry["why"])


def _in_turn(lists: Sequence[Sequence[Ask]]) -> list[Ask]:
    """One of each, then the next of each: load is spread from the first moment."""
    return [ask for row in zip_longest(*lists) for ask in row if ask is not None]
