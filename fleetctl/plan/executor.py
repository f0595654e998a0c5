"""Walk a plan and do it. The only part of `plan/` with effects.

A failed operation ends its own branch; branches side by side with it finish what they are in, and nothing after
them starts. Every wait says every few seconds what it waits for.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from fleetctl.balancer import peers as peers_file
from fleetctl.balancer.peers import Peer, PeersError
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError, FleetctlError
from fleetctl.fleet.secrets import Secret
from fleetctl.observe.facts import live_table, parse_json
from fleetctl.observe.observe import balancer as balancer_state
from fleetctl.plan.jobs import Jobs
from fleetctl.plan.meter import HEARTBEAT, Progress
from fleetctl.plan.operation import (
    ApiKey,
    Copy,
    EditPeers,
    Group,
    Job,
    Node,
    Operation,
    OutputOf,
    Plan,
    Run,
    Status,
    Stdin,
    StepResult,
    Verdict,
    Wait,
)
from fleetctl.plan.transfers import Transfers
from fleetctl.remote.connection import Result
from fleetctl.remote.fanout import Connections

LOADED_SECONDS = 15.0  # the workers re-read the peers within one
SWAPPED_MEANWHILE = 76


class Stop(Exception):
    """A branch ends here; the failure is already recorded."""


class Executor:
    """Runs one plan over open connections. `say(target, words)` tells the person what is going on.

    `progress(operation, progress)` draws that of long work; without it there is a line every few seconds.
    """

    def __init__(
        self,
        fleet: str,
        connections: Connections,
        key: Callable[[], Secret],
        say: Callable[[str, str], None],
        progress: Callable[[Operation, Progress], None] | None = None,
    ):
        self.fleet = fleet
        self.connections = connections
        self.key = key
        self.say = say
        self.progress = progress
        self.guard: Callable[[], None] = lambda: None  # raises LockedError once the fleet's lock is somebody else's
        self.results: list[StepResult] = []
        self.outputs: dict[str, str] = {}
        self.failed = threading.Event()
        self.interrupted = threading.Event()
        self._one_writer = threading.Lock()
        self._spoken: dict[tuple[int, str], float] = {}
        self.jobs = Jobs(fleet, self._call, say, self._tell, self.interrupted)
        self.transfers = Transfers(self.jobs, self._act_on, say, self.interrupted)

    def execute(self, plan: Plan) -> list[StepResult]:
        """One result per operation, those not reached included."""
        try:
            with suppress(Stop):
                self._walk(plan.root)
        except KeyboardInterrupt:
            self.interrupted.set()
            raise
        reached = {id(result.operation) for result in self.results}
        skipped = [StepResult(op, Status.NOT_REACHED, 0) for op in plan.operations if id(op) not in reached]
        return self.results + skipped

    def _walk(self, node: Node) -> None:
        if isinstance(node, Operation):
            self._operation(node)
        elif not node.parallel or len(node.children) < 2:
            for child in node.children:
                self._walk(child)
        else:
            self._side_by_side(node)

    def _side_by_side(self, group: Group) -> None:
        pool = ThreadPoolExecutor(max_workers=min(len(group.children), 32))
        futures = [pool.submit(self._branch, child) for child in group.children]
        try:
            errors = [future.exception() for future in futures]
        except KeyboardInterrupt:
            self.interrupted.set()
            pool.shutdown(wait=False, cancel_futures=True)  # closing the connections wakes the workers
            raise
        pool.shutdown()
        for error in errors:
            if error is not None and not isinstance(error, Stop):
                raise error
        if any(errors):
            raise Stop

    def _branch(self, child: Node) -> None:
        """One of several side by side: when it ends early, nobody waits for what its machines would have had."""
        try:
            self._walk(child)
        except BaseException:
            for operation in child.operations() if isinstance(child, Group) else (child,):
                if isinstance(operation.action, Copy):
                    self.transfers.lost(operation.machine)
            raise

    def _operation(self, operation: Operation) -> None:
        if self.interrupted.is_set():
            raise Stop
        started = time.monotonic()
        self.say(operation.target, f"{operation.step}: {operation.summary}")
        try:
            self.guard()
            output = self._act(operation)
        except FleetctlError as error:
            error.machine = error.machine or operation.machine
            error.step = error.step or operation.step
            self.failed.set()
            self.results.append(StepResult(operation, Status.FAILED, time.monotonic() - started, error))
            raise Stop from error
        if operation.id:
            self.outputs[operation.id] = output
        self.results.append(StepResult(operation, Status.DONE, time.monotonic() - started))

    def _act(self, operation: Operation) -> str:
        match operation.action:
            case Run() as run:
                return self._run(operation, run)
            case Job() as job:
                return self.jobs.run(operation, job)
            case Copy() as copy:
                return self.transfers.copy(operation, copy)
            case Wait() as wait:
                return self._wait(operation, wait)
            case EditPeers() as edit:
                return self._edit_peers(operation, edit)

    def _stdin(self, stdin: Stdin) -> bytes:
        match stdin:
            case ApiKey():
                return self.key().reveal().encode()
            case OutputOf(operation=name):
                return self.outputs[name].encode()
            case bytes():
                return stdin

    def _call(self, machine: int, script: Script, timeout: float, stdin: bytes = b"") -> Result:
        return self.connections[machine].run(script.text, stdin=stdin, timeout=timeout)

    def _run(self, operation: Operation, run: Run) -> str:
        return self._act_on(operation.machine, run, self._stdin(run.stdin))

    def _act_on(self, machine: int, run: Run, stdin: bytes) -> str:
        result = self._call(machine, run.script, run.timeout, stdin or self._stdin(run.stdin))
        if result.rc != 0:
            words = result.stderr.strip() or result.stdout.strip() or f"ended with {result.rc}"
            state = "nothing after this step was done"
            raise CommandError(f"{run.script.name}: {words}", state=state, next_command=run.next_command)
        if run.judge is not None:
            judgement = run.judge(result.stdout)
            if judgement.verdict is not Verdict.PASS:
                raise CommandError(judgement.words, state=run.state, next_command=run.next_command)
        return result.stdout

    def _wait(self, operation: Operation, wait: Wait) -> str:
        started = spoken = time.monotonic()
        while True:
            result = self._call(operation.machine, wait.script, wait.timeout)
            judgement = wait.judge(result.stdout)
            waited = time.monotonic() - started
            if judgement.verdict is Verdict.PASS or (wait.late_is_fine and waited > wait.deadline):
                return result.stdout
            if judgement.verdict is Verdict.DEAD or waited > wait.deadline or self.interrupted.is_set():
                slow = "" if judgement.verdict is Verdict.DEAD else f" (after {waited:.0f} s of {wait.deadline:.0f} s)"
                raise CommandError(f"{judgement.words}{slow}", state=self._last_words(operation, wait))
            if time.monotonic() - spoken > HEARTBEAT:
                spoken = time.monotonic()
                self.say(
                    operation.target,
                    f"{operation.step}: {judgement.words}, {waited:.0f} s of {wait.deadline:.0f} s",
                )
            time.sleep(wait.interval)

    def _last_words(self, operation: Operation, wait: Wait) -> str | None:
        if wait.on_failure is None:
            return None
        try:
            result = self._call(operation.machine, wait.on_failure, 15)
        except FleetctlError as error:  # beside why it failed, never instead of it
            return f"its last words could not be had: {error.cause}"
        if not result.stdout.strip():
            return None
        cause = wait.explain(result.stdout) if wait.explain is not None else None
        return f"its last words:\n{result.stdout.rstrip()}" + (f"\nknown cause: {cause}" if cause else "")

    def _tell(self, operation: Operation, progress: Progress) -> None:
        """To whoever draws it, or every few seconds as a line."""
        if self.progress is not None:
            self.progress(operation, progress)
            return
        key = (operation.machine, operation.step)
        if time.monotonic() - self._spoken.get(key, -HEARTBEAT) >= HEARTBEAT:
            self._spoken[key] = time.monotonic()
            words = str(progress) if progress.total else progress.words
            self.say(operation.target, f"{operation.step}: {words}")

    def _edit_peers(self, operation: Operation, edit: EditPeers) -> str:
        for _ in range(10):
            seen = self._call(operation.machine, Script("read_file", (edit.path,)), 20)
            old = seen.stdout if seen.rc == 0 else ""
            text = peers_file.render(edit.edit(self._table(operation, edit, old)))
            if text == old:
                break
            before = self._hash(operation, edit, old) if seen.rc == 0 else "-"
            swap = Script("swap_file", (edit.path, "0644", before), self.fleet)
            result = self._call(operation.machine, swap, 60, text.encode())
            if result.rc == 0:
                break
            if result.rc != SWAPPED_MEANWHILE:
                raise CommandError(result.stderr.strip() or "the peers file could not be written")
        else:
            raise CommandError("the peers file keeps changing under this command: another fleetctl is at work")
        if edit.configuration is not None:
            self._write_configuration(operation, edit)
        return self._loaded(operation, edit)

    def _hash(self, operation: Operation, edit: EditPeers, text: str) -> str:
        """Of the file. One that holds other bytes than text is not what was read of it: its machine is asked."""
        if "\ufffd" not in text:
            return hashlib.sha256(text.encode()).hexdigest()
        return self._call(operation.machine, Script("hash_file", (edit.path,)), 20).stdout.strip()

    def _table(self, operation: Operation, edit: EditPeers, text: str) -> tuple[Peer, ...]:
        """The peers of the file; of the running balancer when somebody broke or removed it."""
        try:
            if text:
                return peers_file.parse(text)
        except PeersError:
            pass
        result = self._call(operation.machine, Script("state_ask", (edit.state_url,)), 15)
        return live_table(balancer_state(result.stdout))

    def _write_configuration(self, operation: Operation, edit: EditPeers) -> None:
        """The peers as they are now, of whichever branch wrote them last, one writer at a time."""
        if edit.configuration is None:
            return
        with self._one_writer:
            text = self._call(operation.machine, Script("read_file", (edit.path,)), 20).stdout
            apply = Script("balancer_apply", (edit.path.parent, edit.unit, "reload", edit.applied), self.fleet)
            self._run(operation, Run(apply, edit.configuration(peers_file.parse(text))))

    def _loaded(self, operation: Operation, edit: EditPeers) -> str:
        """Until the workers say the version of the file as it is: ours, or a later one that has our change in it."""
        deadline = time.monotonic() + LOADED_SECONDS
        while True:
            result = self._call(operation.machine, Script("state_ask", (edit.state_url,)), 15)
            state = parse_json(result.stdout)
            said = state.get("version") if isinstance(state, dict) else None
            written = self._call(operation.machine, Script("read_file", (edit.path,)), 20).stdout
            if said is not None and said == peers_file.version(written):
                return result.stdout
            if time.monotonic() > deadline:
                raise CommandError(
                    f"the balancer did not load the new peers (it says {said or 'nothing'})",
                    state="the new peers file is in place",
                    next_command="fleetctl status",
                )
            time.sleep(0.2)
