"""All the connections of one command: opened in parallel, used in parallel, one bad machine is one bad row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import TypeVar

from fleetctl.errors import FleetctlError
from fleetctl.remote.connection import Connection
from fleetctl.remote.link import libraries
from fleetctl.remote.target import SshTarget

T = TypeVar("T")


class Connections:
    """One connection a machine, kept until the end of the `with` block; a jump host's is shared by those behind it.

    Worker threads are daemons and never joined: Ctrl-C and a dead machine hold nobody up. The end of the block wakes
    them; until then the connections stand, so that a lock can be let go over them.
    """

    def __init__(self, targets: Iterable[SshTarget]) -> None:
        self._jumps: dict[tuple[object, ...], Connection] = {}
        self._connections = {target.id: self._connection(target) for target in targets}

    def __enter__(self) -> Connections:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, machine: int) -> Connection:
        """The connection of a machine; it opens itself when used. Raises KeyError for a machine that is none."""
        return self._connections[machine]

    def begin(self) -> None:
        """Connect to all of them behind the scenes: whoever uses one then waits for what is left of that."""
        for connection in self._connections.values():
            threading.Thread(target=_quietly, args=(connection.open,), daemon=True).start()
        # What the caller imports after that takes nothing from the handshakes, which mostly wait for the other side.
        libraries()

    def open(self, ids: Iterable[int] | None = None) -> dict[int, FleetctlError]:
        """Open the connections of `ids` (all of them by default). Returns the failures by machine."""
        answers = self.map(Connection.open, ids)
        return {machine: answer for machine, answer in answers.items() if isinstance(answer, FleetctlError)}

    def map(self, fn: Callable[[Connection], T], ids: Iterable[int] | None = None) -> dict[int, T | FleetctlError]:
        """`fn(connection)` for each machine of `ids` (all by default) at once; the answers or FleetctlErrors.

        Any other exception is a bug and is raised here, once every machine has answered.
        """
        chosen = list(dict.fromkeys(self._connections if ids is None else ids))
        answers: SimpleQueue[tuple[int, T | BaseException]] = SimpleQueue()

        def work(machine: int) -> None:
            try:
                answers.put((machine, fn(self._connections[machine])))
            except BaseException as error:  # whatever it is, the row has to arrive
                answers.put((machine, error))

        for machine in chosen:
            threading.Thread(target=work, args=(machine,), name=f"fleetctl-{machine}", daemon=True).start()
        got = dict(answers.get() for _ in chosen)
        return {machine: _row(got[machine]) for machine in chosen}

    def close(self) -> None:
        """Close every connection; never waits for a machine."""
        for connection in (*self._connections.values(), *self._jumps.values()):
            connection.close()

    def _connection(self, target: SshTarget) -> Connection:
        return Connection(target, self._jump(target.jump) if target.jump is not None else None)

    def _jump(self, hop: SshTarget) -> Connection:
        """The one connection to a jump host, whichever machine asks for it first."""
        key = tuple((step.host, step.port, step.user, step.key, step.identities) for step in hop.hops)
        if key not in self._jumps:
            self._jumps[key] = self._connection(hop)
        return self._jumps[key]


def aside(fn: Callable[[], T]) -> Callable[[float | None], T]:
    """Begin `fn()` in a daemon thread. The function returned waits for its end, at most so many seconds (None: as long
    as it takes), and gives its answer or raises its exception; TimeoutError when it is not there yet."""
    answers: SimpleQueue[tuple[bool, T | BaseException]] = SimpleQueue()

    def work() -> None:
        try:
            answers.put((True, fn()))
        except BaseException as error:
            answers.put((False, error))

    def wait(seconds: float | None = None) -> T:
        try:
            fine, answer = answers.get(timeout=seconds)
        except Empty:
            raise TimeoutError from None
        if not fine:
            raise answer  # type: ignore[misc]  # the pair says that it is an exception
        return answer  # type: ignore[return-value]

    threading.Thread(target=work, name="fleetctl-aside", daemon=True).start()
    return wait


def _quietly(open_it: Callable[[], None]) -> None:
    with suppress(FleetctlError):  # whoever uses the connection is told
        open_it()


def _row(answer: T | BaseException) -> T | FleetctlError:
    if isinstance(answer, BaseException) and not isinstance(answer, FleetctlError):
        raise answer
    return answer
