"""Looks at the machines for a report: the only part of it that talks to anybody. Takes no lock and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fleetctl import __version__
from fleetctl.balancer import config
from fleetctl.commands.script import Script
from fleetctl.errors import FleetctlError, UnreachableError
from fleetctl.fleet import lint
from fleetctl.fleet.lint import Finding
from fleetctl.observe.facts import Facts
from fleetctl.plan import status
from fleetctl.plan.history import Command
from fleetctl.plan.session import Session, now
from fleetctl.remote.connection import Connection
from fleetctl.report.material import Material, NamedRun, Software, software
from fleetctl.verify import judge, run
from fleetctl.verify.check import Check

VERSIONS_SECONDS = 60.0
NOT_ASKED = "--no-verify"


def gather(
    session: Session, history: Sequence[Command], runs: Sequence[NamedRun], *, verify: bool, reload: bool
) -> Material:
    """What the fleet is now. Machines that do not answer are in `errors`, and everything else is still there."""
    when = now()
    session.say("report", "looking at the machines")
    # A log that cannot be read makes no machine one that does not answer; one that does not is not tried again.
    gone = {m: error for m, error in session.errors.items() if isinstance(error, UnreachableError)}
    session.errors = dict(gone)
    session.observe(m for m in session.fleet.machines if m not in gone)
    session.inspect(m for m in list(session.facts) if m not in session.errors)
    facts = {m: seen for m, seen in session.facts.items() if m not in session.errors}
    session.facts = dict(facts)
    peers = session.peers()
    problem = [session.peers_problem] if session.peers_problem else []
    known = software_of(session, facts)
    lints = _lints(session)
    # Before verify looks again, with fewer questions.
    document = status.document(session.fleet, facts, session.errors, peers)
    release, proved = session.release, session.proved
    checks, engines, verified, why = _verified(session, verify=verify, reload=reload)
    return Material(
        fleet=session.fleet,
        when=when,
        status=document,
        facts=facts,
        errors={m: error.cause for m, error in session.errors.items()},
        peers=peers,
        software=known,
        engines=engines,
        release=release,
        proved=proved,
        history=tuple(history),
        checks=checks,
        verified=verified,
        unverified=why,
        runs=tuple(runs),
        lints=lints,
        problems=(*problem, *status.problems(document)),
        fleetctl=__version__,
    )


def software_of(session: Session, facts: Mapping[int, Facts]) -> dict[int, Software]:
    """By machine; one that fails to tell is left out: the report says that it is not known."""
    balancer = session.fleet.inventory.balancer.machine

    def one(connection: Connection) -> str:
        machine = connection.target.id
        own = {instance.name for instance in session.fleet.on(machine)}
        running = [c.name for c in facts[machine].containers or () if c.name in own and c.state == "running"]
        flavour = config.FLAVOURS.get(facts[machine].flavour or "", config.PLAIN)
        binary = flavour.binary if machine == balancer and facts[machine].flavour else ""
        script = Script("report_versions", (running[0] if running else "", binary))
        return connection.run(script.text, timeout=VERSIONS_SECONDS).stdout

    answers = session.connections.map(one, facts)
    return {m: software(answer) for m, answer in answers.items() if isinstance(answer, str)}


def _lints(session: Session) -> tuple[Finding, ...]:
    found = [*lint.lint(session.fleet), *session.lint_model()]
    try:
        found += session.lint_weights()
    except FleetctlError as error:
        session.say("report", f"the weights were not looked at: {error.cause}")
    return tuple(found)


Verified = tuple[tuple[Check, ...], dict[str, str], str | None, str | None]


def _verified(session: Session, *, verify: bool, reload: bool) -> Verified:
    """Checks, vLLM's versions, when; or why nothing was checked."""
    if not verify:
        return (), {}, None, NOT_ASKED
    if not session.facts:
        return (), {}, None, "no machine answered"
    when = now()
    try:
        evidence = run.conduct(session, reload=reload)
    except FleetctlError as error:
        return (), {}, None, error.cause
    versions = {one.id: str(found) for one in evidence.asked if (found := evidence.version(one.id))}
    return tuple(judge.everything(evidence)), versions, when, None
