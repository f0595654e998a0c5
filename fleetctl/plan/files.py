"""The step kinds that write files on a machine: releases, the API key, unit files. Pure."""

from __future__ import annotations

import json
from dataclasses import replace

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.plan.build import comparisons_on, op, unit_active, write
from fleetctl.plan.context import Context
from fleetctl.plan.operation import ApiKey, Group, Run, sequence


def release(context: Context, machine: int) -> Group:
    """Record what is being rolled out before anything is changed, so that every command after a kill wants the same."""
    if context.release is None:
        return sequence("release")
    path = paths.release(context.fleet)
    return sequence("release", write(context, "release", machine, path, context.release.text()))


def record(context: Context, machine: int) -> Group:
    """The release proved good on all machines: it is what can be gone back to."""
    if context.release is None:
        return sequence("record")
    good = replace(context.release, outcome="good")
    kept = paths.releases(context.fleet) / f"{good.number:05d}.json"
    return sequence(
        "record",
        write(context, "record", machine, kept, json.dumps(good.document) + "\n"),
        write(context, "record", machine, paths.release(context.fleet), good.text()),
    )


def key(context: Context, machine: int) -> Group:
    """The API key as a 0600 file; it travels on standard input only."""
    path = paths.api_key(context.fleet)
    if context.facts[machine].files.get(str(path)) == context.key_hash:
        return sequence("key")
    script = Script("write_file", (path, "0600"), context.fleet.name)
    unit = context.fleet.inventory.balancer.unit
    probes_with_it = machine == context.balancer and unit_active(context, machine, unit)
    reload = Run(Script("unit_reload", (f"{unit}.service", context.state_url), context.fleet.name))
    return sequence(
        "key",
        op("key", machine, f"write {path} (0600)", Run(script, ApiKey())),
        op("key", machine, f"reload {unit}.service, which probes with it", reload) if probes_with_it else None,
    )


def units(context: Context, machine: int) -> Group:
    """Unit files and the folders that containers mount; daemon-reload when a file changed."""
    fleet = context.fleet
    changed = [c for c in comparisons_on(context, machine) if c.write_unit]
    if not changed:
        return sequence("units")
    caches = tuple(paths.cache(fleet, c.desired.instance) for c in changed)
    return sequence(
        "units",
        op(
            "units",
            machine,
            f"make cache folders of {len(changed)} instances",
            Run(Script("make_folders", caches, fleet.name)),
        ),
        *(write(context, "units", machine, paths.unit(c.desired.instance.name), c.desired.unit_text) for c in changed),
        op("units", machine, "daemon-reload", Run(Script("daemon_reload", (), fleet.name))),
    )
