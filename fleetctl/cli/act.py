"""`restart`, `start`, `stop`, `drain`, `undrain`."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.cli.change import Options, around, carry_out, with_session
from fleetctl.errors import UsageError
from fleetctl.fleet import targets
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import actions
from fleetctl.plan.operation import Plan
from fleetctl.plan.session import Session, now, who


def act(
    verb: str,
    options: Options,
    words: Sequence[str],
    *,
    everything: bool = False,
    now: bool = False,
    reason: str = "",
) -> int:
    """Resolve the names, look, plan, carry out."""

    def resolved(fleet: Fleet) -> targets.Targets:
        return targets.resolve(fleet, words, everything)

    def machines(fleet: Fleet) -> tuple[int, ...]:
        chosen = resolved(fleet)
        if chosen.balancer and verb not in ("restart", "start", "stop"):
            raise UsageError(f"{verb} balancer: it is not a backend")
        return around(fleet, {instance.machine for instance in chosen.instances})

    def go(session: Session) -> int:
        _ = session.key
        chosen = resolved(session.fleet)
        own = {instance.machine for instance in chosen.instances}
        needed = around(session.fleet, own)
        session.observe(needed)
        session.require({*own, session.fleet.inventory.balancer.machine})
        session.require(needed)
        command = " ".join([verb, *(["--all"] if everything else words)])
        return carry_out(options, session, _plan(session, verb, command, chosen, now_=now, reason=reason))

    return with_session(options, machines, go)


def _plan(session: Session, verb: str, command: str, chosen: targets.Targets, *, now_: bool, reason: str) -> Plan:
    own = {instance.machine for instance in chosen.instances}
    context = session.context(own, command, new_release=False)
    if chosen.balancer and not chosen.instances:
        return actions.balancer(context, verb, command)
    if verb == "restart":
        plan = actions.restart(context, chosen.instances, now=now_)
    elif verb == "start":
        plan = actions.start(context, chosen.instances)
    elif verb == "stop":
        plan = actions.stop(context, chosen.instances, who=who(), when=now(), reason=reason, now=now_)
    else:
        plan = actions.rotation(context, chosen.instances, drain=verb == "drain")
    return Plan(command, plan.fleet, plan.root, plan.notes)
