"""What a plan comes to, in counts: the line it ends with, for whoever does not read all of it. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from fleetctl.plan.meter import duration
from fleetctl.plan.operation import Copy, Group, Job, Node, Operation, Plan, Run

REMOVES = ("clean_unit", "clean_container", "clean_process", "remove_unit", "remove_container", "remove_all")
KINDS = {
    "machines": ("machine", "machines"),
    "copy": ("copy to make", "copies to make"),
    "remove": ("service or container to remove", "services and containers to remove"),
    "start": ("instance to start", "instances to start"),
    "restart": ("instance to restart", "instances to restart"),
    "stop": ("instance to stop", "instances to stop"),
    "write": ("file to write", "files to write"),
    "apply": ("balancer to configure", "balancers to configure"),
}


def counts(plan: Plan) -> dict[str, int]:
    """By kind, those that are 0 too. `copy`: of image or model to one machine; `write`: files of ours; `remove`: what
    is taken off a machine, unless one of ours starts in its place: that is a `restart`.
    """
    operations = plan.operations
    started = _instances(operations, ("unit_start",))
    stopped = _instances(operations, ("unit_stop", "unit_disable"))
    removed = [op for op in operations if _script(op) in REMOVES]
    replaced = stopped | {op.target for op in removed}
    return {
        "machines": len({op.machine for op in operations}),
        "copy": sum(isinstance(op.action, Copy) or _script(op) == "job_pull" for op in operations),
        "remove": sum(op.target not in started for op in removed),
        "start": len(started - replaced),
        "restart": len(started & replaced),
        "stop": len(stopped - started),
        "write": sum(_script(op) == "write_file" for op in operations),
        "apply": sum(_script(op) in ("balancer_apply", "balancer_adopt") for op in operations),
    }


def words(plan: Plan) -> str:
    """`in all: 4 machines, 16 instances to start, 2 files to write`."""
    found = counts(plan)
    said = [f"{found[kind]} {one if found[kind] == 1 else many}" for kind, (one, many) in KINDS.items() if found[kind]]
    return f"in all: {', '.join(said)}"


def notes(root: Group, past: Sequence[float]) -> tuple[str, ...]:
    """How long the starts take, one after the other as the plan has them, if they take what earlier ones took.

    `past`: seconds of starts on these machines. Nothing where nothing is started, or nothing is known yet.
    """
    number = _in_a_row(root)
    if not number or not past:
        return ()
    each = statistics.median(past)
    row = "1 start" if number == 1 else f"{number} starts one after the other"
    return (f"{row}: likely some {duration(number * each)} (the last {len(past)} here took {each:.0f} s, median)",)


def _in_a_row(node: Node) -> int:
    if isinstance(node, Operation):
        return int(node.starts)
    below = [_in_a_row(child) for child in node.children]
    return max(below, default=0) if node.parallel else sum(below)


def _instances(operations: tuple[Operation, ...], scripts: tuple[str, ...]) -> set[str]:
    return {op.target for op in operations if "/" in op.target and _script(op) in scripts}


def _script(operation: Operation) -> str:
    action = operation.action
    return action.script.name if isinstance(action, Run | Job) else ""
