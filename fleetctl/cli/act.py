"""`restart`, `start`, `stop`, `drain`, `undrain`."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.cli.change import around, carry_out, with_session
from fleetctl.cli.options import Options
from fleetctl.errors import CommandError, UnreachableError, UsageError
from fleetctl.fleet import targets
from fleetctl.fleet.fleet import Fleet
from fleetctl.observe.facts import Facts
from fleetctl.plan import actions, checks
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
    if not reason.isprintable():  # it is shown by status, on other people's terminals
        raise UsageError("--reason: one line of printable characters")
    command = " ".join([verb, *(["--all"] if everything else words)])

    def resolved(fleet: Fleet) -> targets.Targets:
        return targets.resolve(fleet, words, everything)

    def machines(fleet: Fleet) -> tuple[int, ...]:
        chosen = resolved(fleet)
        if chosen.balancer and (chosen.instances or verb not in ("restart", "start", "stop")):
            raise UsageError(f"{verb} balancer: it is not a backend; restart, start and stop take it alone")
        return around(fleet, {instance.machine for instance in chosen.instances})

    def go(session: Session) -> int:
        _ = session.key
        chosen = resolved(session.fleet)
        own = {instance.machine for instance in chosen.instances}
        needed = around(session.fleet, own)
        session.observe(needed)
        if chosen.instances and verb in ("restart", "start", "stop"):
            do_without(session, own, balancer_lost=options.balancer_lost)
        session.require({*own, session.fleet.inventory.balancer.machine})
        session.require(needed)
        if verb in ("restart", "start"):
            _refuse_what_cannot_start(session, chosen, command)
        return carry_out(options, session, _plan(session, verb, command, chosen, now_=now, reason=reason))

    return with_session(options, machines, go, changes=command)


def do_without(session: Session, own: set[int], *, balancer_lost: bool) -> None:
    """Of the source nothing is needed here, of the balancer nothing once the person says that it is dead: nobody drains
    what nobody sends to. Only of machines that do not answer at all."""
    balancer, source = session.fleet.inventory.balancer.machine, session.fleet.inventory.source
    for machine in {balancer, source} - own:
        error = session.errors.get(machine)
        if type(error) is not UnreachableError or (machine == balancer and not balancer_lost):
            continue
        words = "nobody is drained, and its table stays as it is" if machine == balancer else "it is only the source"
        session.say("observe", f"without {machine} ({error.cause}): {words}")
        session.facts[machine] = Facts(machine)
        del session.errors[machine]


def _refuse_what_cannot_start(session: Session, chosen: targets.Targets, command: str) -> None:
    """What would not come up again is not stopped: ports, NPUs and tools are looked at before the drain."""
    session.inspect({instance.machine for instance in chosen.instances})
    session.require({instance.machine for instance in chosen.instances})
    found = []
    for machine in dict.fromkeys(instance.machine for instance in chosen.instances):
        own = [instance for instance in chosen.instances if instance.machine == machine]
        listed = checks.machine_problems(session.fleet, session.fleet.machines[machine], session.facts[machine], own)
        found += [f"  {machine}: {problem}" for problem in listed]
    if found:
        raise CommandError(
            "not ready:\n" + "\n".join(found),
            state="nothing was changed",
            next_command=f"mend these, then fleetctl {command}",
        )


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
