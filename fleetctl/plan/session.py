"""One command against the fleet: connect, observe, decide what is desired, plan, execute.

Effects live here and below.
"""

from __future__ import annotations

import hashlib
import platform
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cached_property
from typing import TYPE_CHECKING

from fleetctl.balancer import peers as peers_file
from fleetctl.balancer.peers import Peer, PeersError
from fleetctl.balancer.routing import sid
from fleetctl.commands import paths, probe
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError, LockedError, UnreachableError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.secrets import Secret, resolve
from fleetctl.observe import observe
from fleetctl.observe.facts import Facts, live_table
from fleetctl.plan import checks, release
from fleetctl.plan.context import Context
from fleetctl.plan.meter import Progress
from fleetctl.plan.operation import Operation, Plan, StepResult
from fleetctl.plan.release import Release
from fleetctl.remote.connection import Connection
from fleetctl.remote.fanout import Connections, aside
from fleetctl.remote.user import name as user_name

if TYPE_CHECKING:
    from fleetctl.fleet.lint import Finding
    from fleetctl.plan.executor import Executor
    from fleetctl.plan.lock import FleetLock

PROBE_SECONDS = 90.0
LOCK_PATIENCE = 45
LOCK_HELD = 75  # lock.sh


@dataclass
class Session:
    """Open connections to some machines and what was seen there. `errors`: machines without facts, with the reason."""

    fleet: Fleet
    connections: Connections
    say: Callable[[str, str], None]
    facts: dict[int, Facts] = field(default_factory=dict)
    errors: dict[int, FleetctlError] = field(default_factory=dict)
    progress: Callable[[Operation, Progress], None] | None = None
    executor: Executor | None = None
    lock: FleetLock | None = None
    plans: int = 0  # that were carried out

    @cached_property
    def key(self) -> Secret:
        """The API key. Raises SecretError when its reference does not resolve or it is no key."""
        secret = resolve(self.fleet.inventory.secrets.api_key, self.fleet.path.parent)
        if (problem := checks.api_key_shape(secret.reveal())) is not None:
            raise CommandError(problem)
        return secret

    def look(self, machines: Iterable[int], script: Callable[[int], str]) -> None:
        """One round trip to every machine, side by side; each is in `facts` or in `errors` afterwards, not in both."""

        def one(connection: Connection, machine: int) -> Facts:
            result = connection.run(script(machine), timeout=PROBE_SECONDS)
            if result.rc == LOCK_HELD:
                held = "fleetctl status, then the same command again"
                raise LockedError(result.stderr.strip(), step="observe", state="nothing was changed", next_command=held)
            if result.rc != 0:
                raise CommandError(result.stderr.strip() or f"the probe ended with {result.rc}", step="observe")
            facts = observe.parse(machine, result.stdout)
            if not facts.units:  # Docker's is always asked for: without an answer no instance is absent
                raise CommandError(
                    "systemd gives no answer (systemctl show)",
                    step="observe",
                    state="nothing was changed",
                    next_command="systemctl status, on that machine",
                )
            return facts

        ids = tuple(machines)
        found = self.connections.map(lambda connection: one(connection, connection.target.id), ids)
        for machine, answer in found.items():
            if isinstance(answer, FleetctlError):
                answer.machine = answer.machine or machine
                self.errors[machine] = answer
                self.facts.pop(machine, None)
            else:
                self.facts[machine] = answer
                self.errors.pop(machine, None)

    def status(self, machines: Iterable[int], *, npu: bool = False) -> None:
        self.look(machines, lambda m: probe.status(self.fleet, self.fleet.machines[m], npu=npu))
        self._apply_release()
        self._say_who_is_at_work()

    def observe(self, machines: Iterable[int], overrides: Overrides | None = None) -> None:
        """Facts that say what differs from the desired state, once no step of an earlier run is alive there.

        `overrides`: what this command asks for; None keeps those of the release in force. A command that changes
        something takes the fleet's lock meanwhile, and looks again if somebody else held it when it began to look.
        """
        ids = tuple(machines)
        if self.lock is None:
            self._observe(ids, overrides)
            self._say_who_is_at_work()
            return
        self.lock.start()
        begun = time.monotonic()
        looking = aside(lambda: self._observe(ids, overrides))
        self.lock.wait()
        looking(None)
        if self.lock.contested(begun):
            for machine in ids:
                self.facts.pop(machine, None)
                self.errors.pop(machine, None)
            self._observe(ids, overrides)
        self.lock.require_alone(self.facts)

    def _observe(self, ids: tuple[int, ...], overrides: Overrides | None) -> None:
        """Who only looks waits for nobody's step; what it sees may be half-way, and it is told so."""
        wait = _in_subshell(Script("settle", (), self.fleet.name, LOCK_PATIENCE).text) if self.lock is not None else ""
        self.look(ids, lambda m: f"{wait}{probe.state(self.fleet, self.fleet.machines[m])}")
        before = self.fleet.image
        self._apply_release(overrides)
        if self.fleet.image != before:
            self.look(ids, lambda m: probe.state(self.fleet, self.fleet.machines[m]))

    def _say_who_is_at_work(self) -> None:
        if all(facts.lock is None or facts.lock.holder is None for facts in self.facts.values()):
            return
        from fleetctl.plan.lock import living

        for machine, holder in living(self.facts).items():
            self.say("lock", f"somebody is at work: the lock on {machine} is held by {holder}")

    def inspect(self, machines: Iterable[int]) -> None:
        """`observe` has been done and there is work: also what the checks before a change need."""
        self.look(machines, lambda m: probe.full(self.fleet, self.fleet.machines[m]))

    def _apply_release(self, overrides: Overrides | None = None) -> None:
        current = self.release
        wanted = overrides if overrides is not None else current.overrides if current else Overrides()
        self.fleet = self.fleet.with_overrides(release.needed(self.fleet, wanted))

    @property
    def release(self) -> release.Release | None:
        return release.newest(facts.release for facts in self.facts.values())

    @property
    def proved(self) -> dict[int, Release]:
        """Releases that proved good, by number."""
        return release.proved(one for facts in self.facts.values() for one in facts.releases)

    def context(
        self, machines: Iterable[int], command: str, *, new_release: bool, back_to: int | None = None
    ) -> Context:
        """What steps need. `new_release`: the command rolls out; a changed desired state is the next release.

        `back_to`: the release that a rollback goes back to.
        """
        machines, current = set(machines), self.release
        wanted = None
        if new_release:
            whole = release.whole(self.fleet)
            same = current is not None and current.overrides == self.fleet.overrides
            same = same and current is not None and (current.whole is None or current.whole.alike(whole))
            known = release.highest(one for f in self.facts.values() for one in (f.release, *f.releases))
            same = same and current is not None and current.number == known
            number = known + (0 if same else 1)
            back_to = current.back_to if same and current and back_to is None else back_to
            # Who has proved this very release before has proved it.
            before = self.proved.get(number)
            left = [m for m in self.fleet.machines if m not in machines and (not before or m in before.left_out)]
            wanted = release.Release(
                number, self.fleet.overrides, now(), who(), command, "running", whole, back_to, tuple(left)
            )
        order = [m for m in self.fleet.machines if m in machines]
        return Context(
            fleet=self.fleet,
            facts=self.facts,
            machines=tuple(order),
            key_hash=hashlib.sha256(self.key.reveal().encode()).hexdigest(),
            key_sid=sid(self.key.reveal()),
            stamp=now().replace(":", ""),
            release=wanted,
            current=current,
            users={m: self.connections[m].target.user for m in self.facts},
            peers=self.peers(),
            peers_broken=self.peers_problem is not None,
        )

    def removing(self, machines: Iterable[int], command: str) -> Context:
        """What the steps need that take machines out; with a way back where the release in force goes with them."""
        context = self.context(machines, command, new_release=False)
        stay = {int(peer.id.partition("/")[0]) for peer in context.peers} - set(context.machines)
        before = release.in_force_without(stay, self.proved, self.release)
        # With a damaged record the one before may not be the one that is seen; status names it.
        if before is None or before.whole is None or context.facts[context.balancer].broken_releases:
            return context
        number = 1 + release.highest(one for f in self.facts.values() for one in (f.release, *f.releases))
        overrides = release.going_back(self.fleet, before.whole)
        # Its command is what finishes it, should it ever be half done.
        words = f"rollback {before.number}"
        back = release.Release(
            number, overrides, now(), who(), words, "good", before.whole, before.number, before.left_out
        )
        return replace(context, release=back)

    @property
    def peers_problem(self) -> str | None:
        """Why the peers file cannot be used as it is; None when it can, or when there is none yet."""
        facts = self.facts.get(self.fleet.inventory.balancer.machine)
        if facts is None or (facts.peers is None and not (facts.balancer and facts.balancer.peers)):
            return None
        again = release.puts_right(self.release)
        if facts.peers is None:
            return f"{paths.peers(self.fleet)} is gone; the balancer keeps what it had: {again}"
        try:
            peers_file.parse(facts.peers)
        except PeersError as error:
            return f"{paths.peers(self.fleet)}: {error.cause}; the balancer keeps the last good one: {again}"
        return None

    def peers(self) -> tuple[Peer, ...]:
        """The table: of the file, or of the running balancer when the file was broken or removed by hand."""
        facts = self.facts.get(self.fleet.inventory.balancer.machine)
        if facts is None:
            return ()
        if facts.peers is not None and self.peers_problem is None:
            return peers_file.parse(facts.peers)
        return live_table(facts.balancer)

    def lint_model(self) -> list[Finding]:
        """The inventory against the config.json of the model on the source."""
        from fleetctl.fleet import lint

        source = self._model_source
        return lint.lint_config(self.fleet, source.model_config, source.model_described) if source else []

    def lint_weights(self) -> list[Finding]:
        """The model's weights on the source: are all there, and whole? One round trip, a few MB: headers are small.

        Asked anew each time: it costs less than to keep an answer and know that it still holds. Raises CommandError.
        """
        from fleetctl.fleet import lint
        from fleetctl.fleet.rules.weights import MAX_HEADER
        from fleetctl.observe import weights

        source = self._model_source
        if source is None:
            return []
        script = Script("model_headers", (self.fleet.inventory.model.path, MAX_HEADER))
        result = self.connections[source.machine].run(script.text, timeout=PROBE_SECONDS)
        if result.rc != 0:
            raise CommandError(
                f"the weights could not be read: {result.stderr.strip()[-200:]}",
                machine=source.machine,
                step="observe",
                state="nothing was changed",
            )
        return lint.lint_weights(self.fleet, weights.parse(result.stdout))

    @property
    def _model_source(self) -> Facts | None:
        """The facts of the source, when it has been inspected and has the model's folder."""
        source = self.facts.get(self.fleet.inventory.source)
        if source is None or source.machine in self.errors or source.model is None or not source.model.present:
            return None
        return source

    def lint_engine(self, context: Context) -> list[str]:
        """The fleet's flags against what the image itself says it knows, asked once per image."""
        from fleetctl.fleet import flags

        source = self.facts[context.source]
        if source.image is None:
            return []
        script = Script("engine_help", (self.fleet.image, paths.engine_help(self.fleet, source.image.content)))
        result = self.connections[context.source].run(script.text, timeout=150)
        if result.rc != 0:
            return [f"`vllm serve --help=all` of {self.fleet.image} failed: {result.stderr.strip()[-200:]}"]
        return [str(problem) for problem in flags.lint_flags(self.fleet.engine, flags.parse_help(result.stdout))]

    def execute(self, plan: Plan, new: Release | None = None) -> list[StepResult]:
        """Do it, with a line before and after in the audit log of each machine it touches. `new`: what it rolls out."""
        from fleetctl.plan import audit
        from fleetctl.plan.executor import Executor

        run, taken_from = audit.new_run(), None
        self.plans += 1
        self.executor = Executor(self.fleet.name, self.connections, lambda: self.key, self.say, self.progress)
        if self.lock is not None:
            self.lock.wait()
            self.executor.guard = self.lock.check
            # The second plan of a command, such as the rollback of what failed, is an entry of its own.
            run = f"{self.lock.run}-{self.plans}" if self.plans > 1 else self.lock.run
            taken_from = self.lock.taken_from
        trail = audit.Trail(self.connections, paths.audit(self.fleet), run, self.say)
        try:
            trail.begin(plan, who(), now(), release=new, taken_from=str(taken_from) if taken_from else None)
            results = self.executor.execute(plan)
        except KeyboardInterrupt:
            trail.interrupted(now())
            raise
        trail.end(results, now())
        return results

    def require(self, machines: Iterable[int]) -> None:
        """Raise the first error among machines that the command cannot do without."""
        for machine in machines:
            if machine in self.errors:
                raise self.errors[machine]
            if machine not in self.facts:
                raise UnreachableError("not observed", machine=machine)


def _in_subshell(text: str) -> str:
    """The lock is let go before the probe runs."""
    return f"(\n{text}) || exit $?\n"


def now() -> str:
    """RFC 3339, UTC, seconds."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def who() -> str:
    return f"{user_name()}@{platform.node()}"
