"""`fleetctl balancer show|diff|apply|reload`."""

from __future__ import annotations

from collections.abc import Callable

import typer

from fleetctl.cli.change import carry_out, with_session
from fleetctl.cli.options import READS, Options, WholeHelp, taking
from fleetctl.cli.output import dump, table
from fleetctl.commands import paths
from fleetctl.commands.script import words
from fleetctl.errors import CommandError
from fleetctl.plan import actions, balancer_steps, desired
from fleetctl.plan.operation import Plan, sequence
from fleetctl.plan.session import Session

balancer = typer.Typer(cls=WholeHelp, no_args_is_help=True)


def _at_the_balancer(options: Options, act: Callable[[Session], int], *, full: bool, changes: str | None = None) -> int:
    def look(session: Session) -> int:
        machine = session.fleet.inventory.balancer.machine
        if full:
            session.observe([machine])
        else:
            session.status([machine])
        session.require([machine])
        return act(session)

    return with_session(options, lambda fleet: [fleet.inventory.balancer.machine], look, changes)


@balancer.command()
@taking(*READS)
def show(options: Options) -> int:
    """What the running balancer says of itself: configuration, peers, requests in flight."""

    def act(session: Session) -> int:
        machine = session.fleet.inventory.balancer.machine
        live = session.facts[machine].balancer
        if live is None:
            raise CommandError("it does not answer", machine=machine, next_command="fleetctl logs balancer --error")
        if options.json:
            listed = [
                {"id": p.id, "address": p.address, "state": p.state, "health": p.health, "inflight": p.inflight}
                for p in live.peers
            ]
            print(dump({"schema": 1, "config": live.config, "version": live.version, "peers": listed}))
        else:
            print(f"configuration {live.config[:12]}, peers {live.version[:12]}, on machine {machine}")
            rows = [(p.id, p.address, p.state, p.health or "-", _count(p.inflight)) for p in live.peers]
            print(table(("PEER", "ADDRESS", "STATE", "HEALTH", "IN FLIGHT"), rows, state_column=3))
        return 0

    return _at_the_balancer(options, act, full=False)


def _count(number: int | None) -> str:
    return "-" if number is None else str(number)


@balancer.command()
@taking("inventory")
def diff(options: Options) -> int:
    """What `apply` would change in the balancer's files. Exit 1 when they differ."""

    def act(session: Session) -> int:
        from fleetctl.balancer import lint

        wanted = _desired(session)
        text = lint.diff(_files(session, wanted), wanted.files)
        print(text, end="" if text.endswith("\n") else "\n") if text else print("the files are as they should be")
        return 1 if text else 0

    return _at_the_balancer(options, act, full=True)


@balancer.command()
@taking(*READS, "yes", "dry_run", "wait_lock")
def apply(options: Options) -> int:
    """Check the configuration, try it beside the running one, swap it in, ask what is loaded."""

    def act(session: Session) -> int:
        from fleetctl.balancer import lint

        _ = session.key
        checked = lint.check(_desired(session).files)
        if checked.problems:
            raise CommandError(
                "\n".join(checked.problems),
                step="check",
                state="nothing was changed",
                next_command="mend `balancer:` in the inventory (fleetctl balancer diff shows the files), then again",
            )
        if checked.missing:
            options.voice.line(f"not checked here, for want of {', '.join(checked.missing)}: structure and weaknesses")
        if session.fleet.inventory.balancer.mode == "plain":
            from fleetctl.balancer import plain

            options.voice.line("\n".join(["without Lua this balancer cannot do everything:", *plain.LIMITS]))
        context = session.context([session.fleet.inventory.balancer.machine], "balancer apply", new_release=False)
        root = sequence("balancer apply", balancer_steps.apply_balancer(context))
        return carry_out(options, session, Plan("balancer apply", session.fleet.name, root))

    return _at_the_balancer(options, act, full=True, changes="balancer apply")


@balancer.command()
@taking(*READS, "yes", "dry_run", "wait_lock")
def reload(options: Options) -> int:
    """Have the running balancer read its files again. Peers need none: they are read within a second."""

    def act(session: Session) -> int:
        _ = session.key
        context = session.context([session.fleet.inventory.balancer.machine], "balancer reload", new_release=False)
        return carry_out(options, session, actions.balancer(context, "reload", "balancer reload"))

    return _at_the_balancer(options, act, full=True, changes="balancer reload")


def _desired(session: Session) -> desired.DesiredBalancer:
    machine = session.fleet.inventory.balancer.machine
    wanted = desired.balancer(session.fleet, session.facts[machine], session.peers())
    if wanted is None:
        raise CommandError("no nginx with the Lua module there", machine=machine, next_command="fleetctl check")
    return wanted


def _files(session: Session, wanted: desired.DesiredBalancer) -> dict[str, str]:
    """The balancer's files as they are on the machine."""
    machine = session.fleet.inventory.balancer.machine
    folder = paths.balancer(session.fleet)
    found = {}
    for name in wanted.files:
        answer = session.connections[machine].run(words(["cat", folder / name]), timeout=20)
        if answer.rc == 0:
            found[name] = answer.stdout
    return found
