"""The acceptance checks as tables: every one with its n and what that proves. Pure."""

from __future__ import annotations

import re

from fleetctl.report.document import Block, Cell, Mark, Marked, Section, Table, Text
from fleetctl.report.material import Material
from fleetctl.report.words import Words
from fleetctl.verify import bounds
from fleetctl.verify.check import Check, Status, Where

UNKNOWN = "-"
MARKS = {Status.PASS: Mark.GOOD, Status.WARN: Mark.ODD, Status.FAIL: Mark.BAD, Status.SKIP: Mark.UNKNOWN}
# The headings of the first report's section 7, and the checks that stand for them.
PARTS = {
    "verify-machines": (
        "reachable",
        "joined",
        "units",
        "npu-smi",
        "image",
        "flags",
        "model-files",
        "driver",
        "key-files",
    ),
    "verify-health": ("health", "model", "auth", "completion", "version", "answers", "health-truth"),
    "verify-routing": ("routing", "reached", "session", "reload", "unguarded", "cors"),
}
TALLY = re.compile(r"(\d+) of (\d+)(?:, |; )?(.*)", flags=re.S)


def verification(material: Material, words: Words) -> Section:
    title = words("section.verification")
    if not material.checks:
        why = words("verify.switched_off") if material.unverified == "--no-verify" else material.unverified or UNKNOWN
        nothing = Text(words("verify.none", why=words.said(why)), Mark.ODD)
        return Section("verification", title, (nothing,), (_backends(material, words),))
    counts = {one: sum(check.status is one for check in material.checks) for one in Status}
    lead = words(
        "verify.lead",
        when=material.verified,
        good=counts[Status.PASS],
        odd=counts[Status.WARN],
        bad=counts[Status.FAIL],
        skipped=counts[Status.SKIP],
        confidence=f"{bounds.CONFIDENCE:.0%}",
    )
    known = {id for ids in PARTS.values() for id in ids}
    parts = [_backends(material, words)]
    for name, ids in PARTS.items():
        parts.append(_part(material, words, name, [one for one in material.checks if one.id in ids]))
    parts.append(_part(material, words, "verify-answers", [one for one in material.checks if one.id not in known]))
    return Section("verification", title, (Text(lead), Text(words("verify.doors"))), tuple(parts))


def _backends(material: Material, words: Words) -> Section:
    """The first report's table of all backends: status and model of each, as it answered when it was looked at."""
    rows = []
    for one in material.instances:
        seen = material.state(one.id)
        health = seen.get("health") or {}
        http = health.get("http")
        shown: Cell = Marked("-" if http is None else str(http), Mark.GOOD if http == 200 else Mark.BAD)
        failed = [check.id for check in material.failed if one.id in check.failed]
        verdict: Cell = Marked(", ".join(failed), Mark.BAD) if failed else UNKNOWN
        rows.append(
            (
                one.id,
                one.address,
                shown,
                str(health.get("model") or UNKNOWN),
                material.engines.get(one.id, UNKNOWN),
                verdict,
            )
        )
    columns = tuple(words(f"backends.{name}") for name in ("id", "address", "http", "model", "engine", "failed"))
    healthy = sum((material.state(one.id).get("health") or {}).get("http") == 200 for one in material.instances)
    about = words("about.backends", when=material.when, n=healthy, all=len(rows))
    return Section(
        "verify-backends", words("section.verify-backends", n=len(rows)), (Table(columns, tuple(rows), about),)
    )


def _part(material: Material, words: Words, name: str, checks: list[Check]) -> Section:
    columns = tuple(words(f"verify.{key}") for key in ("result", "check", "where", "n", "proves", "seen"))
    rows = tuple(_row(words, check) for check in checks)
    n = sum(check.n for check in checks)
    blocks: tuple[Block, ...] = (Table(columns, rows, words("about.verified", when=material.verified, n=n)),)
    return Section(name, words(f"section.{name}"), blocks)


def _row(words: Words, check: Check) -> tuple[Cell, ...]:
    return (
        Marked(words(f"result.{check.status.value}"), MARKS[check.status]),
        f"{words.get(f'check.{check.id}', check.expected)} ({check.id})",
        words(f"where.{check.where.value}"),
        str(check.n) if check.n else UNKNOWN,
        proves(words, check),
        seen(words, check),
    )


def proves(words: Words, check: Check) -> str:
    """The failure rate that n looks leave possible, or that everything there is was looked at."""
    if not check.n:
        return UNKNOWN
    return words("proves.all") if check.bound is None else f"<= {check.bound:.1%}"


def seen(words: Words, check: Check) -> str:
    """`160/160`, and what the program said besides."""
    match = TALLY.fullmatch(check.seen)
    if match is None:
        return words.said(check.seen)
    rest = words.parts(match[3], "; ") if match[3] else ""
    return f"{match[1]}/{match[2]}" + (f"; {rest}" if rest else "")


def acceptance(material: Material) -> Check | None:
    """What the counters of the engines said of speculation during the checks."""
    check = material.check("mtp", Where.DIRECT)
    return check if check is not None and check.n else None
