"""Everything that is printed: data to stdout, chatter to stderr, whole when piped, no colour without a terminal."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TextIO
from unicodedata import east_asian_width

from fleetctl.errors import visible
from fleetctl.plan import tally
from fleetctl.plan.operation import Group, Node, Operation, Plan, Status, StepResult

COLOURS = {"green": "32", "yellow": "33", "red": "31", "bold": "1", "dim": "2"}
GOOD, ODD = ("ok", "serving", "up", "done"), ("warn", "draining", "stopped", "loading", "restarting")


def colourful(stream: TextIO | None) -> bool:
    """A terminal that wants colours: NO_COLOR and TERM=dumb are obeyed."""
    if os.environ.get("NO_COLOR") or stream is None:
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    return f"\x1b[{COLOURS[colour]}m{text}\x1b[0m" if colourful(stream or sys.stdout) else text


def state_colour(word: str) -> str:
    return "green" if word in GOOD else "yellow" if word in ODD else "red"


def width(text: str) -> int:
    """Columns on a terminal; Chinese characters take two."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], state_column: int | None = None) -> str:
    """Aligned columns, never cut."""
    lines = [list(head), *([visible(cell) for cell in row] for row in rows)]
    widths = [max(width(line[i]) for line in lines) for i in range(len(head))]
    printed = []
    for number, line in enumerate(lines):
        cells = []
        for i, cell in enumerate(line):
            padded = cell + " " * (widths[i] - width(cell))
            if number == 0:
                padded = paint(padded, "bold")
            elif i == state_column:
                padded = paint(padded, state_colour(cell))
            cells.append(padded)
        printed.append("  ".join(cells).rstrip())
    return "\n".join(printed)


def dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False)


class Voice:
    """Chatter on stderr, one line at a time from any thread; silent with --quiet."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.above: Callable[[str], None] | None = None  # bars at the foot of the terminal print it above themselves
        self._lock = threading.Lock()

    def __call__(self, target: str, words: str) -> None:
        self.line(visible(f"[{target}] {words}"))

    def line(self, text: str) -> None:
        if not self.quiet:
            with self._lock:
                if self.above is not None:
                    self.above(text)
                else:
                    print(text, file=sys.stderr, flush=True)


def plan_text(plan: Plan, *, verbose: bool) -> str:
    """The operations that would run, as the tree they would run in."""
    lines: list[str] = []
    machines = {op.machine for op in plan.operations}
    for child in plan.root.children:
        _tree(child, 1, lines, verbose)
    lines += [visible(f"note: {note}") for note in plan.notes]
    count = len(plan.operations)
    if not count:
        return "\n".join([f"Plan {plan.id}: {plan.command}: nothing to do", *lines])
    head = f"Plan {plan.id}: {plan.command}: {count} operations on {len(machines)} machines"
    return "\n".join([paint(head, "bold"), *lines, tally.words(plan)])


def _tree(node: Node, depth: int, lines: list[str], verbose: bool) -> None:
    pad = "  " * depth
    if isinstance(node, Operation):
        lines.append(visible(f"{pad}{node.target:<6} {node.step:<9} {node.summary}"))
        if verbose:
            lines.append(paint(f"{pad}       on {node.machine}: {visible(node.detail)}", "dim"))
        return
    if depth == 1:
        lines.append(f"{pad}{node.name}{' (side by side)' if node.parallel else ''}")
    for child in node.children:
        _tree(child, depth + 1 if depth == 1 else depth, lines, verbose)


def plan_document(plan: Plan) -> dict[str, Any]:
    def tree(node: Node) -> dict[str, Any]:
        if isinstance(node, Operation):
            return {
                "step": node.step,
                "machine": node.machine,
                "target": node.target,
                "summary": node.summary,
                "command": node.detail,
            }
        return {
            "group": node.name,
            "parallel": node.parallel,
            "children": [tree(child) for child in node.children],
        }

    operations: Group = plan.root
    return {
        "schema": 1,
        "fleet": plan.fleet,
        "command": plan.command,
        "plan": plan.id,
        "operations": len(plan.operations),
        "counts": tally.counts(plan),
        "tree": tree(operations),
        "notes": list(plan.notes),
    }


def results_document(plan: Plan, results: Sequence[StepResult], exit_code: int) -> dict[str, Any]:
    """What became of every operation, by machine; printed also when everything failed."""
    entries = [
        {
            "machine": result.operation.machine,
            "target": result.operation.target,
            "step": result.operation.step,
            "summary": result.operation.summary,
            "status": result.status.value,
            "seconds": round(result.seconds, 2),
            "error": str(result.error) if result.error else None,
        }
        for result in results
    ]
    return {
        "schema": 1,
        "fleet": plan.fleet,
        "command": plan.command,
        "plan": plan.id,
        "exit": exit_code,
        "results": entries,
    }


def results_text(results: Sequence[StepResult]) -> str:
    """One row a machine: how far it came."""
    rows = []
    for machine in dict.fromkeys(result.operation.machine for result in results):
        own = [result for result in results if result.operation.machine == machine]
        failed = next((result for result in own if result.status is Status.FAILED), None)
        done = sum(result.status is Status.DONE for result in own)
        word = "failed" if failed else "done" if done == len(own) else "not reached"
        what = failed.operation.step if failed else ""
        rows.append((str(machine), word, f"{done}/{len(own)}", f"{sum(r.seconds for r in own):.1f}s", what))
    return table(("MACHINE", "RESULT", "STEPS", "TIME", "FAILED STEP"), rows, state_column=1)


def status_text(document: Mapping[str, Any], problems: Sequence[str], *, wide: bool, origin: str = "") -> str:
    """The verdict first, then problems, then a row an instance; narrow enough for 80 columns.

    `origin`: which inventory this is the fleet of.
    """
    balancer, machines = document["balancer"], document["machines"]
    instances = [one for machine in machines for one in machine["instances"]]
    serving = sum(one["state"] == "serving" for one in instances)
    up = "?" if balancer["up"] is None else f"{balancer['up']}/{balancer['backends']}"
    release = document["release"]
    verdict = paint(document["verdict"].upper(), state_colour(document["verdict"]))
    head = f"{document['fleet']}  {verdict}  {serving}/{len(instances)} serving, balancer {up} up"
    if release:
        back = "" if release.get("back_to") is None else f", went back to {release['back_to']}"
        head += f", release {release['number']} ({release.get('outcome') or 'unknown'}{back})"
    lines = [
        head,
        *([f"  inventory: {origin}"] if origin else []),
        *(f"  ! {visible(problem)}" for problem in problems),
    ]
    columns = ["INSTANCE", "STATE", "ADDRESS", "BALANCER", "MTP", "NPUS", "RESTARTS"]
    columns += ["SPEC", "CONTAINER", "UNIT", "HTTP", "MODEL"] if wide else []
    lines += ["", table(columns, [_row(one, wide) for one in instances], state_column=1)]
    return "\n".join(lines)


def _row(one: Mapping[str, Any], wide: bool) -> list[str]:
    def text(value: Any) -> str:
        return "-" if value is None else str(value)

    unit, container, health = one["unit"] or {}, one["container"] or {}, one["health"] or {}
    mtp = text(one["mtp"]) + ("*" if one["drift"] else "")
    npus = ",".join(map(str, one["npus"]))
    row = [one["id"], one["state"], one["address"], text(one["balancer"]), mtp, npus, text(unit.get("restarts"))]
    if wide:
        row += [
            text(one["spec"]),
            text(container.get("id")),
            f"{text(unit.get('active'))}/{text(unit.get('enabled'))}",
        ]
        row += [text(health.get("http")), text(health.get("model"))]
    return row
