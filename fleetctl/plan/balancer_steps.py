"""The step kind that gives the balancer its configuration: tried beside the running one, swapped, proved. Pure."""

from __future__ import annotations

from fleetctl.commands import paths
from fleetctl.commands.script import Inline, Script
from fleetctl.plan import adopt, desired, drift, gate
from fleetctl.plan.build import HELD, unit_active, write
from fleetctl.plan.cleaning import clean_now
from fleetctl.plan.context import Context, archive
from fleetctl.plan.operation import Group, Operation, Run, Wait, sequence


def balancer(context: Context, machine: int) -> Group:
    """The balancer runs the desired configuration; compared with what it has loaded, not with what its files say."""
    return apply_balancer(context) if machine == context.machines[0] else sequence("balancer")


def apply_balancer(context: Context) -> Group:
    """Tried beside the running one first, then swapped in; when it is not loaded, the old one is back."""
    fleet, where = context.fleet, context.balancer
    facts = context.facts[where]
    wanted = desired.balancer(fleet, facts, context.peers)
    if wanted is None:
        return sequence("balancer")
    if adopt.foreign_balancer(context):
        return adopt.balancer(context, wanted, _shadow(context, wanted))
    unit = fleet.inventory.balancer.unit
    changed = [name for name, text in wanted.beside.items() if facts.files.get(name) != desired.sha256(text)]
    stale = {n: t for n, t in wanted.files.items() if facts.files.get(f"{wanted.folder}/{n}") != desired.sha256(t)}
    seen, active = facts.units.get(unit), unit_active(context, where, unit)
    loaded = facts.balancer is not None and facts.balancer.config == wanted.hash
    if not stale and not changed and loaded and active and seen is not None and seen.enabled == "enabled":
        path, text = paths.applied(fleet), desired.applied(wanted.folder, wanted.files)
        listed = facts.files.get(str(path)) == desired.sha256(text)
        return sequence("balancer", None if listed else write(context, "balancer", where, path, text))
    unit_changed = str(paths.unit(unit)) in changed
    # One that systemd is about to start again cannot be reloaded.
    anew = unit_changed or (seen is not None and seen.active == "activating")
    verb = "start" if not active else "restart" if anew else "reload"
    return sequence(
        "balancer",
        None if where in context.machines else clean_now(context, where),
        *_shadow(context, wanted) if stale and not context.plain else (),
        *(write(context, "balancer", where, name, wanted.beside[name]) for name in changed),
        None if context.plain or facts.balancer is not None else _since(context),
        *_swap(context, wanted, stale, verb),
    )


def _since(context: Context) -> Operation:
    """Whoever was made the balancer later is the balancer: others do not start beside it (units/alone.sh)."""
    release = context.release or context.current
    text = f"{context.fleet.name} {release.number if release else 0:05d}-{context.stamp}\n"
    return write(context, "balancer", context.balancer, paths.since(context.fleet), text)


def _shadow(context: Context, wanted: desired.DesiredBalancer) -> tuple[Operation, ...]:
    """`nginx -t` runs no Lua and opens no port: the new configuration has to answer, on loopback, before it is used."""
    from fleetctl.balancer import peers, shadow

    fleet, where = context.fleet, context.balancer
    tried = shadow.shadow(fleet, wanted.flavour, peers.render(context.peers))
    write = Run(Script("write_tree", (tried.folder,), fleet.name), archive(tried.files))
    run = Run(Inline("shadow", (tried.folder,), source=tried.script), timeout=shadow.SECONDS)
    return (
        Operation("balancer", where, "balancer", f"write the new configuration to {tried.folder}", write),
        Operation("balancer", where, "balancer", "start it beside the running one on loopback and check it", run),
    )


def _swap(
    context: Context, wanted: desired.DesiredBalancer, stale: dict[str, str], verb: str
) -> tuple[Operation, Operation]:
    fleet, where = context.fleet, context.balancer
    folder, unit = wanted.folder, f"{fleet.inventory.balancer.unit}.service"
    names = next(iter(stale)) if len(stale) == 1 else f"{len(stale)} files"
    listed = paths.applied(fleet)
    tar = archive({**stale, desired.APPLIED: desired.applied(folder, wanted.files)})
    apply = Run(Script("balancer_apply", (folder, unit, verb, listed), fleet.name), tar, HELD)
    wait = Wait(
        Script("state_ask", (context.state_url,)),
        gate.config_loaded(wanted.hash),
        30,
        15,
        on_failure=Script("balancer_restore", (folder, unit, listed), fleet.name),
    )
    what = f"write {names} of {folder}, {verb} {unit}" if stale else f"{verb} {unit}"
    if (by_hand := drift.files(fleet, context.facts[where])) is not None:
        what += f" ({by_hand})"
    return (
        Operation("balancer", where, "balancer", what, apply),
        Operation("balancer", where, "balancer", f"wait until configuration {wanted.hash[:12]} is loaded", wait),
    )
