"""The step kind that gives disk space back: versions of image and model that no release can go back to. Pure.

What runs now and what ran before it stay, and the image of the release that a rollback goes back to, however many came
and failed since. Only what fleetctl brought itself is ever removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.plan.build import op
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Operation, Run, sequence
from fleetctl.plan.release import last_good, proved, proved_on

LONG = 600.0  # seconds: 30 GB in many files


def tidy(context: Context, machine: int) -> Group:
    fleet, facts = context.fleet, context.facts[machine]
    record, path = paths.images(fleet), fleet.inventory.model.path
    images = [
        op(
            "tidy",
            machine,
            f"remove image {id.removeprefix('sha256:')[:12]}, which no release uses",
            Run(Script("tidy_image", (record, id), fleet.name), timeout=LONG),
        )
        for id in _older(_last_of(facts.brought), facts.image.id if facts.image else None, context.new_image(machine))
        if id not in _to_go_back_to(context, machine)
    ]
    # A folder that stood there before fleetctl came is somebody's: it stays.
    known = tuple(v for v in (facts.model.versions if facts.model else ()) if not v.startswith("found."))
    current = facts.model.version if facts.model else None
    models = [
        op(
            "tidy",
            machine,
            f"remove version {version} of the model, which no release uses",
            Run(Script("tidy_model", (path, version), fleet.name), timeout=LONG),
        )
        for version in _older(known, current, context.new_model(machine))
    ]
    return sequence("tidy", *images, *models, *ended_jobs(context, "tidy", machine))


def ended_jobs(context: Context, step: str, machine: int) -> Iterator[Operation]:
    """Units of work that ended while nobody watched, and their files."""
    facts = context.facts[machine]
    for unit in facts.progress:
        if facts.jobs.get(unit) in (None, "exited", "failed", "dead"):
            script = Script("job_clear", (unit, paths.job_progress(unit)), context.fleet.name)
            yield op(step, machine, f"clear {unit}, which ended while nobody watched", Run(script))


def _to_go_back_to(context: Context, machine: int) -> set[str]:
    """The ids of the images that a rollback of the fleet, or of the machine alone, needs once this plan is done: the
    newest brought under their names."""
    now = context.release or context.current
    good = proved(one for facts in context.facts.values() for one in facts.releases)
    left = replace(now, outcome="good") if now else None
    back = [last_good(proved_on(good, which), left) for which in (context.fleet.machines, (machine,))]
    names = {one.whole.image for one in back if one is not None and one.whole is not None}
    return {id for name, id in {name: id for id, name in context.facts[machine].brought_as}.items() if name in names}


def _last_of(ids: tuple[str, ...]) -> tuple[str, ...]:
    """Each once, where it was last brought: one image may have come under two names."""
    return tuple(reversed(dict.fromkeys(reversed(ids))))


def _older(known: tuple[str, ...], current: str | None, replaced: bool) -> list[str]:
    """Of versions, oldest first: all but the one in use and the one before it. `replaced`: this plan brings another."""
    others = [one for one in known if one != current]
    return others if replaced and current is not None else others[:-1]
