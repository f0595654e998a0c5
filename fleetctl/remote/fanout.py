"""All the connections of one command: opened in parallel, used in parallel, one bad machine is one bad row."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from types import TracebackType
from typing import TypeVar

from fleetctl.errors import FleetctlError
from fleetctl.remote.connection import Connection
from fleetctl.remote.target import SshTarget

T = TypeVar("T")


class Connections:
    """One connection a machine, kept until the end of the `with` block; a jump host's is shared by those behind it.

    Worker threads are daemons and never joined: Ctrl-C and a dead machine hold nobody up.
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
        try:
            got = dict(answers.get() for _ in chosen)
        except BaseException:
            self.close()  # wakes the workers: nothing is read any more
            raise
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


def _row(answer: T | BaseException) -> T | FleetctlError:
    if isinstance(answer, BaseException) and not isinstance(answer, FleetctlError):
        raise answer
    return answer
