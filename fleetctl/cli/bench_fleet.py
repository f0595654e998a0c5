"""A fleet as `bench` sees it: what is measured, what it is, and ways to look at it while it is under load."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Script, Word
from fleetctl.errors import CommandError, FleetctlError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Affinity
from fleetctl.plan.session import Session

if TYPE_CHECKING:
    from fleetctl.bench.perform import Eyes
    from fleetctl.bench.target import Target

EYE_SECONDS = 15.0
LOOKS = 3  # at the balancer before the run, to see whether the fleet is in use


def target_of(session: Session, url: str | None) -> Target:
    """What is measured: the public address where there is one, and the backends that take requests.

    Raises CommandError when there are none.
    """
    from fleetctl.bench.samples import Backend
    from fleetctl.bench.target import Target

    fleet, balancer = session.fleet, session.fleet.inventory.balancer
    up = tuple(peer for peer in session.peers() if peer.state is PeerState.UP)
    if not up:
        raise CommandError("no backend takes requests", next_command="fleetctl status")
    engine = fleet.engine
    weights = tuple(float(peer.weight) for peer in up) if balancer.affinity is Affinity.RENDEZVOUS else None
    return Target(
        url=url or balancer.public_url or _own_url(fleet),
        key=session.key,
        model=fleet.inventory.model.name,
        backends=tuple(Backend(peer.id, peer.address) for peer in up),
        home=_home(fleet, session.peers()),
        session_header=balancer.session_headers[0],
        weights=weights,
        max_sequences=int(str(engine.get("max-num-seqs") or 32)),
        longest=int(str(engine["max-model-len"])) if engine.get("max-model-len") else None,
    )


def _own_url(fleet: Fleet) -> str:
    balancer = fleet.inventory.balancer
    address = fleet.machines[balancer.machine].address
    host = f"[{address}]" if ":" in address else address
    return f"{'https' if balancer.tls else 'http'}://{host}:{balancer.listen}"


def _home(fleet: Fleet, peers: Sequence[Peer]) -> Callable[[str], str | None]:
    """The address that a session computes to; always None where only the balancer knows."""
    balancer = fleet.inventory.balancer
    if balancer.mode == "plain" or balancer.affinity is Affinity.LEAST_CONN:
        return lambda _: None

    def home(key: str) -> str | None:
        decision = routing.route(key, peers, balancer.affinity)
        return decision.peer.address if decision else None

    return home


def about(session: Session, target: Target) -> dict[str, Any]:
    """The fleet's side of the header: what this run is a measurement of."""
    fleet, release = session.fleet, session.release
    containers = [c for facts in session.facts.values() for c in facts.containers or ()]
    names = {instance.name for instance in fleet.instances}
    ids = sorted({container.image_id for container in containers if container.name in names})
    return {
        "fleet": fleet.name,
        "release": {"number": release.number, "outcome": release.outcome} if release else None,
        "image": {"reference": fleet.image, "ids": ids},
        "tokens": fleet.tokens,
        "affinity": fleet.inventory.balancer.affinity.value,
        "backends": list(target.backends),
        "weights": list(target.weights) if target.weights else None,
        "engine": dict(fleet.engine),
    }


def eyes_of(session: Session, target: Target) -> Eyes:
    """Looks over SSH: at the balancer's state document and counters, and at every engine's."""
    from fleetctl.bench import counters
    from fleetctl.bench.perform import Counters, Eyes
    from fleetctl.observe import observe

    fleet = session.fleet
    machine = fleet.inventory.balancer.machine
    base = f"http://127.0.0.1:{fleet.inventory.balancer.state_listen}"
    serving = {instance.id: instance for instance in fleet.instances}

    def ask(path: str) -> str | None:
        answer = session.connections[machine].run(Script("state_ask", (f"{base}{path}",)).text, timeout=EYE_SECONDS)
        return answer.stdout if answer.rc == 0 else None

    def in_flight() -> int | None:
        state = observe.balancer(ask("/state") or "")
        counted = [peer.inflight for peer in state.peers] if state else []
        known = [count for count in counted if count is not None]
        return sum(known) if known else None

    def requests() -> int | None:
        page = ask("/metrics")
        return None if page is None else counters.balancer_requests(page)

    def engine_counters() -> Counters | None:
        own = [serving[backend.id] for backend in target.backends if backend.id in serving]
        wanted: dict[int, list[str]] = {}
        for instance in own:
            wanted.setdefault(instance.machine, []).extend((instance.id, f"http://{instance.address}/metrics"))
        found: Counters = {}

        def one(connection: Any) -> str:
            words: tuple[Word, ...] = (paths.api_key(fleet), counters.PATTERN, *wanted[connection.target.id])
            return str(connection.run(Script("bench_counters", words).text, timeout=EYE_SECONDS).stdout)

        for answer in session.connections.map(one, wanted).values():
            if isinstance(answer, FleetctlError):
                return None
            found |= {name: counters.parse(text) for name, text in observe.sections(answer).items()}
        return found if found and all(found.values()) else None

    def kill(backend: Any) -> None:
        instance = serving[backend.id]
        script = Script("bench_kill", (instance.name,), fleet.name)
        answer = session.connections[instance.machine].run(script.text, timeout=60)
        if answer.rc != 0:
            raise CommandError(answer.stderr.strip() or "it cannot be killed", machine=instance.machine, step="kill")

    return Eyes(in_flight, requests, engine_counters, kill)


def in_use(eyes: Eyes) -> int | None:
    """Foreign requests seen within a second: in flight, or sent on. None: it cannot be seen."""
    before = eyes.requests()
    most: int | None = None
    for look in range(LOOKS):
        if look:
            time.sleep(0.4)
        seen = eyes.in_flight()
        most = seen if most is None else max(most, seen or 0)
    after = eyes.requests()
    # A balancer that was started in between counts from 0 again.
    sent = after - before if after is not None and before is not None and after >= before else None
    return None if most is None and sent is None else max(most or 0, sent or 0)
