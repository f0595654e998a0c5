"""The step kinds that write files on a machine: releases, the API key, unit files. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from fleetctl.commands import paths
from fleetctl.commands import units as unit_texts
from fleetctl.commands.script import Script
from fleetctl.plan import adopt, drift, gate
from fleetctl.plan.build import comparisons_on, enable, op, unit_active, write
from fleetctl.plan.context import Context
from fleetctl.plan.desired import Comparison, sha256
from fleetctl.plan.operation import ApiKey, Group, Operation, Run, Wait, sequence


def release(context: Context, machine: int) -> Group:
    """Record what is being rolled out before anything is changed, so that every command after a kill wants the same.

    The balancer's machine has it too: every command looks there, also one that is about other machines.
    """
    if context.release is None:
        return sequence("release")
    path, text = paths.release(context.fleet), context.release.text()
    current = context.current
    # What has proved good stays so at the balancer's: the machine that joins may be taken out again.
    proved = current is not None and current.outcome == "good" and current.number == context.release.number
    where = [machine] if proved else _everywhere(context, machine)
    return sequence("release", *(write(context, "release", one, path, text) for one in where))


def _everywhere(context: Context, machine: int) -> list[int]:
    """The machine, and with the first one of a command the balancer's, when the command is not about that."""
    at_balancer = machine == context.machines[0] and context.balancer not in context.machines
    return [*([context.balancer] if at_balancer else []), machine]


def record(context: Context, machine: int) -> Group:
    """The release proved good on all machines of the command: it is what these can go back to."""
    if context.release is None:
        return sequence("record")
    mark = paths.experiment(context.fleet)
    forget = Run(Script("remove_file", (mark,), context.fleet.name))
    return sequence(
        "record",
        *(one for where in _everywhere(context, machine) for one in recorded(context, "record", where)),
        op("record", machine, f"remove {mark}: all is as the release has it", forget)
        if context.facts[machine].experiment is not None
        else None,
    )


def recorded(context: Context, step: str, where: int) -> Iterator[Operation]:
    """The release is in force, and one to go back to, for who looks on this machine."""
    if context.release is None:
        return
    good = replace(context.release, outcome="good")
    kept = paths.releases(context.fleet) / f"{good.number:05d}.json"
    yield write(context, step, where, kept, json.dumps(good.document) + "\n")
    yield write(context, step, where, paths.release(context.fleet), good.text())


def key(context: Context, machine: int) -> Group:
    """The API key as a 0600 file; it travels on standard input only.

    The balancer's machine has it too, and what its balancer had before is good until no engine has it (`old_key`).
    """
    return sequence("key", *(one for where in _everywhere(context, machine) for one in _key(context, where)))


def _key(context: Context, machine: int) -> Iterator[Operation]:
    fleet, path, old = context.fleet, paths.api_key(context.fleet), paths.old_key(context.fleet)
    unit, at_balancer = fleet.inventory.balancer.unit, machine == context.balancer
    seen = context.facts[machine]
    differs = seen.files.get(str(path)) != context.key_hash or seen.key_mode not in (None, drift.KEY_MODE)
    if at_balancer and context.changes_key and not context.plain:
        yield op("key", machine, "keep the key that engines run with", Run(Script("keep_key", (path, old), fleet.name)))
    if differs:
        yield op(
            "key", machine, f"write {path} (0600)", Run(Script("write_file", (path, "0600"), fleet.name), ApiKey())
        )
    # Also when an earlier run wrote it and died: engines must not change before the balancer knows. One that does not
    # answer as ours gets its configuration, and the key with it, in the balancer's own step.
    ours = context.plain or context.facts[machine].balancer is not None
    if at_balancer and ours and unit_active(context, machine, unit) and (differs or not context.key_in_force):
        why = "which takes both keys" if context.two_keys else "which probes with it"
        yield op("key", machine, f"reload {unit}.service, {why}", _reload(context))


def _reload(context: Context) -> Run:
    unit = f"{context.fleet.inventory.balancer.unit}.service"
    return Run(Script("unit_reload", (unit, context.state_url), context.fleet.name))


def old_key(context: Context, machine: int) -> Group:
    """Once every machine has changed to the new key, and the balancer has seen it, the old one is good nowhere."""
    fleet, where = context.fleet, context.balancer
    if machine != context.machines[-1] or not context.two_keys or set(context.machines) != set(fleet.machines):
        return sequence("old-key")
    proof = Wait(Script("state_ask", (context.state_url,)), gate.no_old_key, 60, 15)
    remove = Run(Script("remove_file", (paths.old_key(fleet),), fleet.name))
    return sequence(
        "old-key",
        op("old-key", where, "wait until the balancer sends nobody the old key", proof),
        op("old-key", where, f"remove {paths.old_key(fleet)}", remove),
        op("old-key", where, f"reload {fleet.inventory.balancer.unit}.service: one key is good", _reload(context)),
    )


def units(context: Context, machine: int) -> Group:
    """Unit files, the folders that containers mount, the watchdog; daemon-reload when a file of systemd changed."""
    fleet, by_others = context.fleet, adopt.names(context, machine)
    # What is taken over gets its unit when it is its turn.
    comparisons = [c for c in comparisons_on(context, machine) if c.desired.instance.name not in by_others]
    changed = [c for c in comparisons if c.write_unit]
    watchdog, rearm = _watchdog(context, machine)
    caches = tuple(paths.cache(fleet, c.desired.instance) for c in changed)
    folders = Run(Script("make_folders", caches, fleet.name))
    by_hand = [_save(context, c) for c in comparisons if c.by_hand not in (None, drift.GONE)]
    texts = [_write_unit(context, c) for c in changed]
    reload = op("units", machine, "daemon-reload", Run(Script("daemon_reload", (), fleet.name)))
    return sequence(
        "units",
        op("units", machine, f"make cache folders of {len(changed)} instances", folders) if changed else None,
        *by_hand,
        *texts,
        *watchdog,
        reload if by_hand or texts or any(not w.summary.endswith(".sh") for w in watchdog) else None,
        rearm,
        *(enable(context, "units", c.desired.instance) for c in comparisons if c.enable),
    )


def _write_unit(context: Context, comparison: Comparison) -> Operation:
    which = comparison.desired.instance
    return write(context, "units", which.machine, paths.unit(which.name), comparison.desired.unit_text)


def _save(context: Context, comparison: Comparison) -> Operation:
    """What a person made of a unit is kept for that person."""
    which, folder = comparison.desired.instance, paths.saved(context.fleet, context.stamp)
    unit = f"{which.name}.service"
    run = Run(Script("unit_by_hand", (folder, unit), context.fleet.name))
    return op("units", which.machine, f"save {unit} in {folder}: {comparison.by_hand}", run, which.id)


def _watchdog(context: Context, machine: int) -> tuple[list[Operation], Operation | None]:
    """Its files where they differ, and the start of its timer; or their removal where none is wanted."""
    fleet, facts = context.fleet, context.facts[machine]
    name = paths.watchdog_unit(fleet)
    wanted = unit_texts.watchdog(fleet, machine)
    if not wanted:
        return [], _no_watchdog(context, machine)
    writes = [
        write(context, "units", machine, path, text)
        for path, text in wanted.items()
        if facts.files.get(path) != sha256(text)
    ]
    timer = facts.units.get(f"{name}.timer")
    runs = timer is not None and timer.active == "active" and timer.enabled == "enabled"
    if runs and not any(path.summary.endswith(".timer") for path in writes):
        return writes, None
    arm = Run(Script("unit_restart", (f"{name}.timer",), fleet.name, uses=("unit_up",)))
    return writes, op("units", machine, f"start {name}.timer", arm)


def _no_watchdog(context: Context, machine: int) -> Operation | None:
    """Its removal, where it is."""
    fleet, facts = context.fleet, context.facts[machine]
    name, files = paths.watchdog_unit(fleet), paths.watchdog_files(fleet)
    timer = facts.units.get(f"{name}.timer")
    if (timer is None or timer.active == "absent") and not any(str(path) in facts.files for path in files):
        return None
    remove = Run(Script("remove_watchdog", (name, paths.watchdog(fleet)), fleet.name))
    return op("units", machine, "stop, disable and remove the watchdog", remove)
