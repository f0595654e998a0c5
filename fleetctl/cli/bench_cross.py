"""The `vllm bench serve` of a serving image as a second client: run inside the instance's own container, over SSH."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.errors import CommandError
from fleetctl.plan.session import Session

if TYPE_CHECKING:
    from fleetctl.bench.rounds import CrossCheck
    from fleetctl.bench.scenarios import Rival

HELP_SECONDS = 180.0  # a real vllm imports for half a minute before it says anything
ROUND_SECONDS = 1800


def rival_of(session: Session, scenario: CrossCheck, seed: int) -> Rival:
    """A callable that has vllm's own client ask some prompts. Raises CommandError where the image has none."""
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

    def ask(prompts: Sequence[str]) -> dict[str, float]:
        script = Script("bench_vllm", (which.name, paths.KEY_IN_CONTAINER, ROUND_SECONDS, *argv))
        answer = connection.run(script.text, stdin=cross.lines(prompts), timeout=ROUND_SECONDS + 60)
        if answer.rc != 0:
            said = " ".join(answer.stderr.split())[-300:] or f"ended with {answer.rc}"
            raise CommandError(f"`vllm bench serve`: {said}", machine=which.machine, step="cross-check")
        return cross.figures(answer.stdout, len(prompts))

    return ask
