"""The step kind that gives disk space back: versions of image and model that no release can go back to. Pure.

What runs now and what ran before it stay, for a rollback. Only what fleetctl brought itself is ever removed.
"""

from __future__ import annotations

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.plan.build import op
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Run, sequence

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
        for id in _older(facts.brought, facts.image.id if facts.image else None, context.new_image(machine))
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
    return sequence("tidy", *images, *models)


def _older(known: tuple[str, ...], current: str | None, replaced: bool) -> list[str]:
    """Of versions, oldest first: all but the one in use and the one before it. `replaced`: this plan brings another."""
    others = [one for one in known if one != current]
    return others if replaced and current is not None else others[:-1]
