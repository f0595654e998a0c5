"""`remove-machine`: out of the balancer's table, then off the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleetctl.cli.change import around, carry_out, with_session
from fleetctl.cli.options import Options
from fleetctl.errors import CommandError, UnreachableError, UsageError
from fleetctl.fleet import targets
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import expand, playbook, removal
from fleetctl.plan.session import Session
from fleetctl.plan.steps import STEPS


def remove_machine(
    options: Options, words: Sequence[str], *, purge: bool = False, accept_overload: bool = False
) -> int:
    """A machine that does not answer leaves the table all the same; what is left there is a failure, exit code 4."""
    if not words:
        raise UsageError("no machine named", next_command="fleetctl remove-machine 67")
    flags = [*(["--purge"] if purge else []), *(["--accept-overload"] if accept_overload else [])]
    command = " ".join(["remove-machine", *words, *flags])

    def chosen(fleet: Fleet) -> tuple[int, ...]:
        machines = _named(fleet, words)
        if (refused := removal.refusal(fleet, machines)) is not None:
            raise UsageError(refused[0], state="nothing was changed", next_command=refused[1])
        return machines

    def act(session: Session) -> int:
        machines = chosen(session.fleet)
        steps = playbook.load(removal.PLAYBOOK, set(STEPS), session.fleet.path.parent)
        _ = session.key  # a missing secret is said before any connection is used
        balancer = session.fleet.inventory.balancer.machine
        session.observe(around(session.fleet, machines))
        session.require([balancer, *(m for m, e in session.errors.items() if not isinstance(e, UnreachableError))])
        context = replace(session.removing(machines, command), purge=purge)
        _possible(session, accept_overload=accept_overload, busy=removal.overload(context), command=command)
        return carry_out(options, session, expand.expand(steps, context, command), context.release)

    return with_session(options, lambda fleet: around(fleet, chosen(fleet)), act, changes=command)


def _named(fleet: Fleet, words: Sequence[str]) -> tuple[int, ...]:
    try:
        return targets.machines(fleet, words)
    except UsageError as error:
        error.next_command = (
            "fleetctl status; instances that the inventory no longer lists are taken out by fleetctl rollout --resume"
        )
        raise


def _possible(session: Session, *, accept_overload: bool, busy: str | None, command: str) -> None:
    """Raises CommandError when the balancer cannot be told, or when the rest could not take the load."""
    balancer = session.fleet.inventory.balancer.machine
    if session.peers() and session.facts[balancer].balancer is None:
        raise CommandError(
            "the balancer does not answer: nobody could be drained",
            machine=balancer,
            state="nothing was changed",
            next_command="fleetctl start balancer",
        )
    if busy is not None and not accept_overload:
        raise CommandError(
            busy, state="nothing was changed", next_command=f"later, or fleetctl {command} --accept-overload"
        )
