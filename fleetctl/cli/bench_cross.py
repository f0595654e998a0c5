"""The `vllm bench serve` of a serving image as a second client: run inside the instance's own container, over SSH."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError
from fleetctl.plan.session import Session
from fleetctl.remote.connection import Connection

if TYPE_CHECKING:
    from fleetctl.bench.rounds import CrossCheck

HELP_SECONDS = 180.0  # a real vllm imports for half a minute before it says anything
ROUND_SECONDS = 1800
STOP_SECONDS = 30.0


@dataclass
class Serve:
    """Asks some prompts with vllm's own client; `stop` ends what it still does when nobody waits for it any more."""

    connection: Connection
    container: str
    words: tuple[str, ...]
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    running: bool = False

    def __call__(self, prompts: Sequence[str]) -> dict[str, float]:
        from fleetctl.bench import cross

        machine = self.connection.target.id
        script = Script("bench_vllm", (self.container, paths.KEY_IN_CONTAINER, ROUND_SECONDS, self.mark, *self.words))
        self.running = True
        answer = self.connection.run(script.text, stdin=cross.lines(prompts), timeout=ROUND_SECONDS + 60)
        self.running = False
        if answer.rc != 0:
            said = " ".join(answer.stderr.split())[-300:] or f"ended with {answer.rc}"
            raise CommandError(f"`vllm bench serve`: {said}", machine=machine, step="cross-check")
        return cross.figures(answer.stdout, len(prompts))

    def stop(self) -> None:
        """Raises CommandError, UnreachableError when it cannot be ended: it ends by itself then, at its time limit."""
        if self.running:
            self.connection.run(Script("bench_vllm_stop", (self.container, self.mark)).text, timeout=STOP_SECONDS)


def rival_of(session: Session, scenario: CrossCheck, seed: int) -> Serve:
    """What has vllm's own client ask some prompts. Raises CommandError where the image has none."""
    from fleetctl.bench import cross

    fleet = session.fleet
    which = next(one for one in fleet.instances if one.id == scenario.backend)
    connection = session.connections[which.machine]
    options = connection.run(Script("bench_help", (which.name,)).text, timeout=HELP_SECONDS).stdout
    model = fleet.inventory.model
    try:
        argv = cross.arguments(
            options,
            url=f"http://127.0.0.1:{which.port}",
            model=model.name,
            tokenizer=str(paths.MODELS_IN_CONTAINER / model.path.name),
            tokens=scenario.tokens,
            prompts=scenario.requests,
            users=scenario.users,
            seed=seed,
        )
    except CommandError as error:
        error.machine, error.step = which.machine, "cross-check"
        error.state = f"nothing was asked of {which.id} ({fleet.image})"
        raise
    return Serve(connection, which.name, tuple(argv))
