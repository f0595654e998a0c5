"""What went wrong and was mended, what is not right now, and how this report was made. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from fleetctl.bench import results as judged
from fleetctl.fleet.lint import Severity as LintSeverity
from fleetctl.plan.history import Command
from fleetctl.plan.status import BAD
from fleetctl.report.document import Cell, Mark, Marked, Section, Table, Text
from fleetctl.report.material import Material
from fleetctl.report.measured import missing
from fleetctl.report.words import Words
from fleetctl.verify.check import Check, Status, Where

UNKNOWN = "-"
COMMAND = re.compile(r"(.*): (fleetctl .*)", flags=re.S)  # status ends a problem with what to type
WENT_WRONG = ("failed", "interrupted", "cut short")


def problems(material: Material, words: Words) -> Section:
    """Commands that failed, and whether a later one ended well on the same machines."""
    wrong = [command for command in material.history if command.outcome in WENT_WRONG]
    if not wrong:
        text = words("problems.none", n=len(material.history)) if material.history else words("stages.no_history")
        return Section("problems", words("section.problems"), (Text(text),))
    rows = tuple(_problem(material, words, command) for command in wrong)
    columns = tuple(words(f"problems.{name}") for name in ("when", "command", "what", "result", "by"))
    about = words("about.problems", when=material.when, n=len(wrong), all=len(material.history))
    blocks = (Text(words("problems.lead")), Table(columns, rows, about))
    return Section("problems", words("section.problems"), blocks)


def mended_by(history: tuple[Command, ...], wrong: Command) -> Command | None:
    """The first later command that ended well on every machine where this one did not."""
    hurt = {m for m, one in wrong.machines.items() if one.outcome in (None, "failed", "interrupted")} or set(
        wrong.machines
    )
    later = [one for one in history if one.when > wrong.when and one.outcome == "done"]
    return next((one for one in later if hurt <= one.machines.keys()), None)


def _problem(material: Material, words: Words, command: Command) -> tuple[Cell, ...]:
    what = [f"{one.failed or m}: {one.error}" for m, one in command.machines.items() if one.error]
    after = mended_by(material.history, command)
    state = Marked(words("problems.mended"), Mark.GOOD) if after else Marked(words("problems.open"), Mark.ODD)
    return (
        command.when,
        f"fleetctl {command.command}",
        "; ".join(what) or words(f"outcome.{command.outcome}"),
        state,
        f"fleetctl {after.command}, {after.when}" if after else UNKNOWN,
    )


class Severity(str, Enum):
    """In the order in which they are shown."""

    SERIOUS = "serious"
    WARNING = "warning"
    NOTE = "note"


MARKS = {Severity.SERIOUS: Mark.BAD, Severity.WARNING: Mark.ODD, Severity.NOTE: Mark.UNKNOWN}


LINTS = {
    LintSeverity.ERROR: Severity.SERIOUS,
    LintSeverity.WARNING: Severity.WARNING,
    LintSeverity.NOTE: Severity.NOTE,
}


@dataclass(frozen=True)
class Found:
    """`source`: a key of `source.*`; `next`: what to type."""

    severity: Severity
    source: str
    text: str
    next: str = UNKNOWN


def found(material: Material, words: Words) -> list[Found]:
    """Everything that is not as it should be, worst first."""
    listed = [*_machines(material, words), *_checks(material, words), *_lints(material), *_measured(material, words)]
    return sorted(listed, key=lambda one: list(Severity).index(one.severity))


def _machines(material: Material, words: Words) -> Iterator[Found]:
    for machine, cause in material.errors.items():
        text = f"{words('machine', id=machine)}: {words('unreachable')}: {cause}"
        yield Found(Severity.SERIOUS, "machines", text, f"fleetctl check {machine}")
    bad = {one.id for one in material.instances if material.state(one.id).get("state") in BAD}
    for problem in material.problems:
        head = problem.partition(":")[0]
        if head.isdigit() and int(head) in material.errors:
            continue
        who = problem.replace(":", " ").split(" ")[0]
        split = COMMAND.fullmatch(problem)
        text, command = (split[1], split[2]) if split else (problem, UNKNOWN)
        serious = who in bad or problem.startswith("balancer on")
        severity = Severity.SERIOUS if serious else Severity.WARNING
        yield Found(severity, "status", text, command)


def _checks(material: Material, words: Words) -> Iterator[Found]:
    if material.unverified is not None:
        why = words("verify.switched_off") if material.unverified == "--no-verify" else words.said(material.unverified)
        yield Found(Severity.WARNING, "verify", words("verify.none", why=why), "fleetctl verify")
    for check in material.checks:
        severity = {Status.FAIL: Severity.SERIOUS, Status.WARN: Severity.WARNING}.get(check.status)
        if severity is not None and check.id != "reachable":
            yield Found(severity, "verify", _said(words, check), check.next_command or UNKNOWN)
    outside = material.check("answers", Where.OUTSIDE)
    if outside is not None and outside.status is Status.SKIP:
        yield Found(Severity.NOTE, "verify", words("finding.not_outside"))


def _said(words: Words, check: Check) -> str:
    name = words.get(f"check.{check.id}", check.expected)
    return f"{name} ({check.id}, {words(f'where.{check.where.value}')}): {check.seen}"


def _lints(material: Material) -> Iterator[Found]:
    for lint in material.lints:
        severity = LINTS[lint.severity]
        yield Found(severity, "inventory", f"{lint.rule}: {lint.where}: {lint.message}", lint.fix or UNKNOWN)


def _measured(material: Material, words: Words) -> Iterator[Found]:
    for scenario in dict.fromkeys(one.run.header.scenario for one in material.runs):
        one = material.run(scenario)
        if one is None:
            continue
        result = judged.result(one.run)
        name = words.get(f"scenario.{scenario}", scenario)
        where = words("finding.run", name=name, when=one.run.header.started, n=len(one.run.measured))
        for reason in result.invalid:
            yield Found(Severity.WARNING, "bench", f"{where}: {words('bench.invalid', why=words.said(reason))}")
        for check in result.checks:
            if check.verdict in ("failed", "warn"):
                severity = Severity.SERIOUS if check.verdict == "failed" else Severity.WARNING
                yield Found(severity, "bench", f"{where}: {words.said(check.what)}: {words.said(check.seen)}")
    if absent := missing(material):
        names = ", ".join(absent)
        yield Found(
            Severity.NOTE, "bench", words("finding.missing", n=len(absent), names=names), f"fleetctl bench {absent[0]}"
        )


def findings(material: Material, words: Words) -> Section:
    listed = found(material, words)
    if not listed:
        return Section("findings", words("section.findings"), (Text(words("findings.none"), Mark.GOOD),))
    rows = tuple(
        (
            str(number),
            Marked(words(f"severity.{one.severity.value}"), MARKS[one.severity]),
            words(f"source.{one.source}"),
            one.text,
            one.next,
        )
        for number, one in enumerate(listed, 1)
    )
    columns = tuple(words(f"findings.{name}") for name in ("number", "severity", "source", "what", "next"))
    counts = {one: sum(entry.severity is one for entry in listed) for one in Severity}
    lead = words(
        "findings.lead", serious=counts[Severity.SERIOUS], warning=counts[Severity.WARNING], note=counts[Severity.NOTE]
    )
    about = words("about.findings", when=material.when, n=len(listed))
    return Section("findings", words("section.findings"), (Text(lead), Table(columns, rows, about)))


def about(material: Material, words: Words) -> Section:
    """How it was made, and what was taken out of it."""
    lines = ("about.made", "about.masked", "about.program_words")
    texts = tuple(Text(words(key, version=material.fleetctl, when=material.when)) for key in lines)
    return Section("about", words("section.about"), texts)
