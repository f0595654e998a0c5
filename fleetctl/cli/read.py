"""Commands that only look: `status`, `check`, `logs`, `route`."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fleetctl.balancer import routing
from fleetctl.cli import hint
from fleetctl.cli.change import around, exit_code, with_session
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump, status_text, table
from fleetctl.commands import paths
from fleetctl.commands.script import Script, words
from fleetctl.errors import CommandError, UsageError
from fleetctl.fleet import load, targets
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.schema import Affinity
from fleetctl.remote.fanout import aside

if TYPE_CHECKING:
    from fleetctl.plan.session import Session

ANSWERED = r'"GET /(health|metrics) HTTP/[0-9.]+" 200'  # for grep -E too


def status(options: Options) -> int:
    """The table or the document; exit 4 when machines did not answer."""

    def look(session: Session) -> int:
        session.status(session.fleet.machines)
        from fleetctl.plan import status as states

        document = states.document(session.fleet, session.facts, session.errors, session.peers())
        problems = [*([session.peers_problem] if session.peers_problem else []), *states.problems(document)]
        document["inventory"] = str(session.fleet.path)
        document["problems"] = problems = [hint.whole(problem, options.inventory) for problem in problems]
        origin = load.origin(options.inventory)
        print(dump(document) if options.json else status_text(document, problems, wide=options.wide, origin=origin))
        return exit_code((), session.errors.values())

    return with_session(options, lambda fleet: fleet.machines, look, at_once=True)


def check(options: Options, chosen: Sequence[str]) -> int:
    """Lints of the inventory, then every machine's problems, as one list."""
    from fleetctl.fleet import lint
    from fleetctl.plan import expand

    def ids(fleet: Fleet) -> tuple[int, ...]:
        return around(fleet, targets.machines(fleet, chosen) if chosen else fleet.machines)

    def look(session: Session) -> int:
        session.observe(ids(session.fleet))
        session.inspect(session.facts)
        findings = [*lint.lint(session.fleet), *session.lint_model()]
        rows = [("inventory", str(f.severity.value), f"{f.rule}: {f.message}") for f in findings]
        rows += [(str(machine), "error", error.cause) for machine, error in session.errors.items()]
        record = paths.release(session.fleet)
        rows += [(str(machine), "warning", said) for machine, said in expand.broken_records(session.facts, record)]
        if not session.errors:
            context = session.context(ids(session.fleet), "check", new_release=False)
            for machine, listed in expand.problems(context).items():
                rows += [(str(machine), "error", problem) for problem in listed]
            weights = session.lint_weights()
            rows += [(str(context.source), str(f.severity.value), f"{f.rule}: {f.message}") for f in weights]
            rows += [(str(context.source), "error", problem) for problem in session.lint_engine(context)]
        rows = [(where, severity, hint.whole(message, options.inventory)) for where, severity, message in rows]
        failed = any(severity == "error" for _, severity, _ in rows)
        if options.json:
            entries = [{"where": where, "severity": severity, "message": message} for where, severity, message in rows]
            print(dump({"schema": 1, "fleet": session.fleet.name, "ready": not failed, "findings": entries}))
        elif rows:
            print(table(("WHERE", "SEVERITY", "WHAT"), rows))
        if not options.json:
            verdict = "not ready" if failed else "ready"
            print(f"{verdict}: fleet {session.fleet.name}, of {load.origin(options.inventory)}")
        if session.errors and len(session.errors) == sum(severity == "error" for _, severity, _ in rows):
            return exit_code((), session.errors.values())
        return 1 if failed else 0

    return with_session(options, ids, look)


def route(options: Options, session_id: str) -> int:
    """Computed from the peers file, then asked of the balancer itself; they have to agree."""
    if not session_id or not session_id.isprintable():
        raise UsageError("a session id is one line of printable characters")

    def look(session: Session) -> int:
        fleet = session.fleet
        machine = fleet.inventory.balancer.machine
        from fleetctl.plan import status as states
        from fleetctl.plan.release import puts_right

        session.status([machine])
        session.require([machine])
        peers = session.peers()
        if not peers:
            raise CommandError("no backend has joined yet", machine=machine, next_command=puts_right(session.release))
        live = session.facts[machine].balancer
        health = {peer.id: peer.health for peer in live.peers} if live else {}
        decision = routing.route(
            session_id,
            peers,
            fleet.inventory.balancer.affinity,
            healthy=lambda peer: health.get(peer.id) in states.WELL,
        )
        computed, order = (decision.peer, decision.order) if decision else (None, ())
        if not _computable(fleet):
            computed, order = None, ()
        url = f"http://127.0.0.1:{fleet.inventory.balancer.listen}"
        ask = Script("balancer_verify", (url, paths.api_key(fleet), session_id))
        answer = session.connections[machine].run(ask.text, timeout=30).stdout.split()
        asked = answer[-1] if len(answer) >= 3 else None
        answer_of = {
            "computed": computed.address if computed else None,
            "asked": asked,
            "home": order[0].id if order else None,
        }
        following = [peer.id for peer in order[1:4]]
        if options.json:
            print(dump({"schema": 1, "session": session_id, **answer_of, "next": following}))
        else:
            print(table(("COMPUTED", "ASKED", "HOME"), [[value or "-" for value in answer_of.values()]]))
        return 0 if asked and (computed is None or asked == computed.address) else 1

    return with_session(options, lambda fleet: [fleet.inventory.balancer.machine], look)


def _computable(fleet: Fleet) -> bool:
    """nginx's own hash, another key than the session, or no session at all: the balancer can only be asked."""
    balancer = fleet.inventory.balancer
    return (
        balancer.mode == "lua" and balancer.key_order[0] == "session" and balancer.affinity is not Affinity.LEAST_CONN
    )


def logs(
    options: Options,
    chosen: Sequence[str],
    *,
    follow: bool,
    since: str | None,
    lines: int,
    access: bool,
    error: bool,
    probes: bool,
) -> int:
    """journalctl of instances, or a log file of the balancer; every line says whose it is when there are several.

    `probes`: also the lines of those that were answered, such as the balancer's of every second.
    """
    period = _since(since)

    def machines(fleet: Fleet) -> tuple[int, ...]:
        found = targets.resolve(fleet, chosen)
        own = {instance.machine for instance in found.instances}
        return tuple(
            m for m in fleet.machines if m in own or (found.balancer and m == fleet.inventory.balancer.machine)
        )

    def look(session: Session) -> int:
        found = targets.resolve(session.fleet, chosen)
        wanted = [(i.id, i.machine, _journal(i.name, follow, period, lines, probes=probes)) for i in found.instances]
        if found.balancer:
            wanted.append(
                (
                    "balancer",
                    session.fleet.inventory.balancer.machine,
                    _balancer_log(session.fleet, follow, period, lines, access, error),
                )
            )
        return _print_logs(session, wanted, probes=probes)

    return with_session(options, machines, look)


def _print_logs(session: Session, wanted: Sequence[tuple[str, int, str]], *, probes: bool) -> int:
    prefix = len(wanted) > 1

    def one(name: str, machine: int, command: str) -> None:
        shown = False

        def show(line: str) -> None:
            nonlocal shown
            if not probes and re.search(ANSWERED, line):
                return
            shown = True
            text = line.rstrip("\n")
            sys.stdout.write(f"[{name}] {text}\n" if prefix else f"{text}\n")
            sys.stdout.flush()

        session.connections[machine].run(command, timeout=math.inf, on_output=show)
        if not shown and not probes and name != "balancer":
            session.say(name, "nothing, but for probes that were answered: --probes shows those")

    # No pool: its end waits for workers that follow for ever, so Ctrl-C would not end it.
    waits = [aside(partial(one, *entry)) for entry in wanted]
    failures: list[Exception] = []
    for wait in waits:
        try:
            wait(None)
        except Exception as error:
            failures.append(error)
    if failures:
        raise failures[0]
    return 0


def _since(since: str | None) -> str | None:
    """`1h` -> `-1h` for journalctl. Raises UsageError for anything else."""
    if since is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]*[smhd]", since):
        raise UsageError(f"--since {since}: a number and s, m, h or d, such as 30m")
    return f"-{since}"


def _journal(name: str, follow: bool, since: str | None, lines: int, *, probes: bool) -> str:
    """Without `probes` the newest `lines` that are none; what is followed is sorted out here, as it comes."""
    argv = ["journalctl", "-u", f"{name}.service", "--no-pager", "-o", "short-iso"]
    argv += ["--since", since] if since else []
    if probes or follow:
        return words(["exec", *argv, "-n", str(lines), *(["-f"] if follow else [])])
    backwards = words([*argv, "--quiet", "-r"])
    return f"{backwards} | {words(['grep', '-Ev', ANSWERED])} | {words(['head', '-n', str(lines)])} | tac"


def _balancer_log(fleet: Fleet, follow: bool, since: str | None, lines: int, access: bool, error: bool) -> str:
    if not access and not error:
        return _journal(fleet.inventory.balancer.unit, follow, since, lines, probes=True)
    file = f"/var/log/fleetctl/{fleet.name}/{'access' if access else 'error'}.log"
    return words(["exec", "tail", "-n", str(lines), *(["-F"] if follow else []), file])
