"""`fleetctl verify`: the acceptance checks, as one table or one document."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleetctl.cli import hint
from fleetctl.cli.change import with_session
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump, paint, table
from fleetctl.errors import visible
from fleetctl.fleet import load
from fleetctl.plan.session import Session, now
from fleetctl.verify import bounds, judge, run
from fleetctl.verify.check import Check, Status

LEGEND = f"PROVES: the failure rate that N looks leave possible at {bounds.CONFIDENCE:.0%}; all: there is no more"
COLOURS = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "red", Status.SKIP: "dim"}


def verify(options: Options, *, reload: bool) -> int:
    """Ask, judge, print. 0: all passed or worth a look at most · 1: something failed · 4: machines do not answer."""

    def look(session: Session) -> int:
        began, when = time.monotonic(), now()
        evidence = run.conduct(session, reload=reload)
        checks = [_pasteable(check, options) for check in judge.everything(evidence)]
        code = judge.exit_code(checks)
        seconds = time.monotonic() - began
        text = (
            dump(document(session, checks, code, when, seconds))
            if options.json
            else report(session.fleet.name, checks, seconds, load.origin(options.inventory))
        )
        # A server that echoes headers would have its answer quoted here.
        print(text.replace(session.key.reveal(), "***"))
        return code

    return with_session(options, lambda fleet: fleet.machines, look)


def verdict(checks: Sequence[Check]) -> Status:
    states = {check.status for check in checks}
    return next((one for one in (Status.FAIL, Status.WARN) if one in states), Status.PASS)


def document(session: Session, checks: Sequence[Check], code: int, when: str, seconds: float) -> dict[str, Any]:
    """`bound`: the failure rate that n looks leave possible at `confidence`; null for a census and for no look."""
    release = session.release
    return {
        "schema": 1,
        "fleet": session.fleet.name,
        "when": when,
        "seconds": round(seconds, 1),
        "release": release.number if release else None,
        "verdict": verdict(checks).value,
        "exit": code,
        "confidence": bounds.CONFIDENCE,
        "checks": [_entry(check) for check in checks],
    }


def _entry(check: Check) -> dict[str, Any]:
    return {
        "id": check.id,
        "where": check.where.value,
        "status": check.status.value,
        "expected": check.expected,
        "seen": check.seen,
        "n": check.n,
        "wrong": check.wrong,
        "bound": round(check.bound, 5) if check.bound is not None else None,
        "failed": sorted(check.failed),
        "problems": list(check.problems),
        "left_out": list(check.left_out),
        "next": check.next_command,
    }


def _pasteable(check: Check, options: Options) -> Check:
    return replace(check, next_command=check.next_command and hint.whole(check.next_command, options.inventory))


def report(fleet: str, checks: Sequence[Check], seconds: float, origin: str = "") -> str:
    """The verdict, what failed with the next command, then every check. `origin`: whose inventory this is."""
    counts = {one: sum(check.status is one for check in checks) for one in Status}
    words = {Status.PASS: "passed", Status.WARN: "worth a look", Status.FAIL: "failed", Status.SKIP: "not judged"}
    tally = ", ".join(f"{counts[one]} {words[one]}" for one in Status if counts[one])
    total = verdict(checks)
    lines = [f"{fleet}  {paint(total.value.upper(), COLOURS[total])}  {tally}, in {seconds:.0f} s"]
    lines += [f"  inventory: {origin}"] if origin else []
    for check in checks:
        if check.status is Status.FAIL:
            lines.append(f"  ! {check.id} ({check.where.value}): {visible(check.seen)}")
            lines += [f"    next: {check.next_command}"] if check.next_command else []
    rows = [_row(check) for check in checks]
    return "\n".join([*lines, "", table(("RESULT", "CHECK", "WHERE", "N", "PROVES", "EXPECTED", "SEEN"), rows), LEGEND])


def _row(check: Check) -> list[str]:
    result = {Status.PASS: "ok", Status.FAIL: "FAIL"}.get(check.status, check.status.value)
    return [
        result,
        check.id,
        check.where.value,
        str(check.n) if check.n else "-",
        proves(check),
        check.expected,
        check.seen,
    ]


def proves(check: Check) -> str:
    """`<= 1.9%` may be wrong, at 95 %; `all` where everything that there is was looked at."""
    if not check.n:
        return "-"
    return "all" if check.bound is None else f"<= {check.bound:.1%}"
