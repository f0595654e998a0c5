"""What is measured: an address that speaks OpenAI's API, the backends behind it, where a session should land. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from fleetctl.bench.samples import Backend
from fleetctl.errors import CommandError
from fleetctl.fleet.secrets import Secret

TRIES = 10_000


@dataclass(frozen=True)
class Target:
    """`home` computes the address of the backend that answers a session; None where that cannot be computed.

    `max_sequences`: requests that one backend runs at once. `longest`: max_model_len in tokens.
    """

    url: str
    key: Secret
    model: str
    backends: tuple[Backend, ...]
    home: Callable[[str], str | None] = field(default=lambda _: None)
    session_header: str = "X-Session-ID"
    weights: tuple[float, ...] | None = None
    max_sequences: int = 32
    longest: int | None = None

    @property
    def completions(self) -> str:
        return f"{self.url.rstrip('/')}/v1/chat/completions"

    def name(self, address: str | None) -> str:
        """`67/2` for an address of the table."""
        return next((one.id for one in self.backends if one.address == address), address or "?")


@dataclass(frozen=True)
class Session:
    key: str
    home: str | None


class Sessions:
    """Session keys of one run, from its seed: any, or those that land on a given backend."""

    def __init__(self, target: Target, seed: int) -> None:
        self.target = target
        self._dice = random.Random(f"sessions/{seed}")  # noqa: S311
        self._spare: dict[str | None, list[Session]] = {}

    def any(self) -> Session:
        key = f"bench-{self._dice.getrandbits(64):016x}"
        return Session(key, self.target.home(key))

    def on(self, backend: Backend) -> Session:
        """A fresh key that computes to this backend. Raises CommandError where that cannot be computed."""
        if spare := self._spare.get(backend.address):
            return spare.pop()
        for _ in range(TRIES):
            session = self.any()
            if session.home is None:
                raise CommandError(
                    "with this balancer nobody can compute where a session lands, so no load can be aimed",
                    next_command="fleetctl bench distribution, or balancer.affinity: md5-mod or rendezvous",
                )
            if session.home == backend.address:
                return session
            self._spare.setdefault(session.home, []).append(session)
        raise CommandError(f"no session lands on {backend.id}: it takes no requests", next_command="fleetctl status")

    def spread(self) -> Iterator[Session]:
        """Endless sessions, one backend after the other, so that lanes are even; any where that cannot be computed."""
        if self.any().home is not None:
            yield from self.aimed(self.target.backends)
        while True:
            yield self.any()

    def aimed(self, backends: Sequence[Backend]) -> Iterator[Session]:
        """Endless sessions on these backends and no others, in turn. Raises CommandError as `on` does."""
        while True:
            for backend in backends:
                yield self.on(backend)
