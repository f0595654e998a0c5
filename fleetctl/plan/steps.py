"""The step kinds of playbooks: each says, for one machine, which operations bring it to the desired state. Pure.

A step that finds everything as it should be says nothing: that is what makes a second run change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from fleetctl.balancer import routing
from fleetctl.balancer.peers import Peer, PeerState
from fleetctl.commands import paths
from fleetctl.commands.script import Inline, Script, words
from fleetctl.fleet.fleet import Instance
from fleetctl.plan import checks, desired, gate
from fleetctl.plan.context import Context, archive, set_state
from fleetctl.plan.desired import State
from fleetctl.plan.operation import ApiKey, Group, Job, Operation, OutputOf, Run, Wait, sequence, side_by_side

Step = Callable[[Context, int], Group]
COPY_SECONDS = 6 * 3600
TRANSFER_HOURS = 24
HELD = 120.0
VERIFY_SECONDS = 60.0  # the balancer takes a peer that was away back after two good looks, seconds apart


def _op(
    step: str, machine: int, summary: str, action: Run | Job | Wait, target: str | None = None, id: str = ""
) -> Operation:
    return Operation(step, machine, target or str(machine), summary, action, id)


def _write(context: Context, step: str, machine: int, path: object, text: str, mode: str = "0644") -> Operation:
    script = Script("write_file", (str(path), mode), context.fleet.name)
    return _op(step, machine, f"write {path}", Run(script, text.encode()))


def release(context: Context, machine: int) -> Group:
    """Record what is being rolled out before anything is changed, so that every command after a kill wants the same."""
    if context.release is None:
        return sequence("release")
    path = paths.release(context.fleet)
    return sequence("release", _write(context, "release", machine, path, context.release.text()))


def record(context: Context, machine: int) -> Group:
    """The release proved good on this machine."""
    if context.release is None:
        return sequence("record")
    good = replace(context.release, outcome="good")
    return sequence("record", _write(context, "record", machine, paths.release(context.fleet), good.text()))


def key(context: Context, machine: int) -> Group:
    """The API key as a 0600 file; it travels on standard input only."""
    path = paths.api_key(context.fleet)
    if context.facts[machine].files.get(str(path)) == context.key_hash:
        return sequence("key")
    script = Script("write_file", (path, "0600"), context.fleet.name)
    unit = context.fleet.inventory.balancer.unit
    probes_with_it = machine == context.balancer and _is_unit_active(context, machine, unit)
    reload = Run(Script("unit_reload", (f"{unit}.service",), context.fleet.name))
    return sequence(
        "key",
        _op("key", machine, f"write {path} (0600)", Run(script, ApiKey())),
        _op("key", machine, f"reload {unit}.service, which probes with it", reload) if probes_with_it else None,
    )


def image(context: Context, machine: int) -> Group:
    """The image as the source has it, compared by content; the source itself may pull it."""
    fleet = context.fleet
    if not context.new_image(machine):
        return sequence("image")
    if machine == context.source:
        return sequence("image")
    size = context.facts[context.source].image
    words_ = f"copy {fleet.image} from {context.source}" + (f" ({size.size >> 20} MiB)" if size else "")
    command = words(["docker", "save", fleet.image])
    return _transfer(
        context,
        machine,
        "image",
        words_,
        command,
        lambda where: Script("job_image", (where, _folder(context, "image"))),
    )


def pull(context: Context, machine: int) -> Group:
    """The source has the image before anybody copies it from there, and before the release is recorded."""
    fleet, source = context.fleet, context.source
    if machine != context.machines[0] or context.facts[source].image is not None:
        return sequence("pull")
    unit = paths.job(fleet, "image")
    job = Job(unit, Script("job_pull", (fleet.image,)), paths.job_progress(unit), COPY_SECONDS)
    return sequence("pull", _op("pull", source, f"pull {fleet.image}", job))


def model(context: Context, machine: int) -> Group:
    """The model as the source has it: every byte checked against a manifest made there, then renamed into place."""
    fleet = context.fleet
    source, seen = context.facts[context.source].model, context.facts[machine].model
    manifest = paths.manifest(fleet)
    if source is None or seen is None or fleet.inventory.model.shared:
        return sequence("model")
    if machine == context.source:
        return sequence("model")
    if source.verified is not None and seen.verified == source.verified:
        return sequence("model")
    path = fleet.inventory.model.path
    size = f" ({source.size >> 20} MiB)" if source.size else ""
    return sequence(
        "model",
        _op(
            "model",
            context.source,
            "read the manifest",
            Run(Script("read_file", (manifest,))),
            id=f"manifest-{machine}",
        ),
        _op(
            "model",
            machine,
            f"write {manifest}",
            Run(Script("write_file", (manifest, "0644"), fleet.name), OutputOf(f"manifest-{machine}")),
        ),
        _transfer(
            context,
            machine,
            "model",
            f"copy {path.name} from {context.source}{size}",
            _rrsync(context),
            lambda where: Script("job_model", (where, path.name, path, manifest, _folder(context, "model"))),
        ),
    )


def manifest(context: Context, machine: int) -> Group:
    """The manifest of the source's model, made once for all receivers and kept until the files change."""
    source = context.facts[context.source].model
    if machine != context.machines[0]:
        return sequence("manifest")
    due = source is not None and source.present and not source.verified and not context.fleet.inventory.model.shared
    return sequence("manifest", *_sweep(context), _manifest(context) if due else None)


def _sweep(context: Context) -> list[Operation]:
    """Keys of transfers that ended while nobody watched."""
    user = context.users.get(context.source, "root")
    found = []
    for tag in context.facts[context.source].transfer_tags:
        number, _, what = tag.removeprefix(f"{context.fleet.name}-").partition("-")
        receiver = context.facts.get(int(number)) if number.isdigit() else None
        if receiver is None or receiver.jobs.get(paths.job(context.fleet, what)) == "running":
            continue
        run = Run(Script("transfer_revoke", (user, tag), context.fleet.name))
        found.append(_op("manifest", context.source, f"revoke the key of an ended transfer to {number}", run))
    return found


def _manifest(context: Context) -> Operation:
    fleet = context.fleet
    unit = paths.job(fleet, "manifest")
    job = Job(
        unit,
        Script("job_manifest", (fleet.inventory.model.path, paths.manifest(fleet))),
        paths.job_progress(unit),
        COPY_SECONDS,
    )
    return _op("manifest", context.source, "make the manifest (sha256 of every file)", job)


def _sudo(context: Context) -> str:
    return "" if context.users.get(context.source, "root") == "root" else "sudo -n "


def _rrsync(context: Context) -> str:
    """Read-only rsync of the model's parent folder. sudo clears the variable that says what was asked for."""
    command = words(["/usr/bin/rrsync", "-ro", context.fleet.inventory.model.path.parent])
    if not _sudo(context):
        return command
    return f'sudo -n /usr/bin/env "SSH_ORIGINAL_COMMAND=$SSH_ORIGINAL_COMMAND" {command}'


def _folder(context: Context, what: str) -> str:
    return str(paths.transfer(context.fleet, what))


def _transfer(
    context: Context, machine: int, what: str, summary: str, command: str, script: Callable[[str], Script]
) -> Group:
    """A job on the receiver with a key made for it there, which may run one command on the source, from one address."""
    fleet = context.fleet
    unit = paths.job(fleet, what)
    user = context.users.get(context.source, "root")
    source = fleet.machines[context.source]
    where = f"{user}@[{source.address}]" if ":" in source.address else f"{user}@{source.address}"
    job = _op(what, machine, summary, Job(unit, script(where), paths.job_progress(unit), COPY_SECONDS))
    tag = f"{fleet.name}-{machine}-{what}"
    revoke = _op(
        what,
        context.source,
        f"revoke the transfer key of {machine}",
        Run(Script("transfer_revoke", (user, tag), fleet.name)),
    )
    if context.facts[machine].jobs.get(unit) == "running":
        return sequence(what, job, revoke)
    if what == "image" and _sudo(context):
        command = f"{_sudo(context)}{command}"
    pinned = "".join(f"fleetctl-source {line}\n" for line in context.facts[context.source].host_keys)
    made = f"transfer-{machine}-{what}"
    allow = Script("transfer_allow", (user, tag, fleet.machines[machine].address, command, TRANSFER_HOURS), fleet.name)
    return sequence(
        what,
        _op(
            what,
            machine,
            f"make a key for this transfer, pin the host keys of {context.source}",
            Run(Script("transfer_key", (_folder(context, what),), fleet.name), pinned.encode()),
            id=made,
        ),
        _op(
            what,
            context.source,
            f"let {machine} run `{command}` and nothing else",
            Run(allow, OutputOf(made)),
        ),
        job,
        revoke,
    )


def make_room(context: Context, machine: int) -> Group:
    """Clean before copying, on machines whose inventory says `clean: first` because their disk demands it."""
    return _clean(context, machine) if context.fleet.machines[machine].clean.first else sequence("make-room")


def clean(context: Context, machine: int) -> Group:
    """Only what the inventory lists, its definitions saved first; what ran before runs on while things are copied."""
    return sequence("clean") if context.fleet.machines[machine].clean.first else _clean(context, machine)


def _clean(context: Context, machine: int) -> Group:
    fleet, facts = context.fleet, context.facts[machine]
    units, containers = checks.to_clean(fleet.machines[machine], facts, fleet)
    folder = paths.saved(fleet, context.stamp)
    operations = [
        _op(
            "clean",
            machine,
            f"stop, disable and remove {unit} (saved in {folder})",
            Run(Script("clean_unit", (folder, unit), fleet.name), timeout=HELD),
        )
        for unit in units
    ]
    operations += [
        _op(
            "clean",
            machine,
            f"remove container {c.name} (saved in {folder})",
            Run(Script("clean_container", (folder, c.name), fleet.name), timeout=HELD),
        )
        for c in containers
    ]
    balancer = fleet.inventory.balancer
    for process in fleet.machines[machine].clean.processes:
        if not checks.cleanable_process(fleet.machines[machine], facts, process.port, process.executable):
            continue
        if process.port == balancer.listen and _is_unit_active(context, machine, balancer.unit):
            continue
        script = Script("clean_process", (folder, process.port, process.executable), fleet.name)
        operations.append(
            _op(
                "clean",
                machine,
                f"stop {process.executable} on port {process.port} by pid",
                Run(script, timeout=HELD),
            )
        )
    return sequence("clean", *operations)


def _is_unit_active(context: Context, machine: int, unit: str) -> bool:
    seen = context.facts[machine].units.get(unit)
    return seen is not None and seen.active in ("active", "activating", "reloading")


def units(context: Context, machine: int) -> Group:
    """Unit files and the folders that containers mount; daemon-reload when a file changed."""
    fleet = context.fleet
    changed = [c for c in _comparisons(context, machine) if c.write_unit]
    if not changed:
        return sequence("units")
    caches = tuple(paths.cache(fleet, c.desired.instance) for c in changed)
    return sequence(
        "units",
        _op(
            "units",
            machine,
            f"make cache folders of {len(changed)} instances",
            Run(Script("make_folders", caches, fleet.name)),
        ),
        *(_write(context, "units", machine, paths.unit(c.desired.instance.name), c.desired.unit_text) for c in changed),
        _op("units", machine, "daemon-reload", Run(Script("daemon_reload", (), fleet.name))),
    )


def _comparisons(context: Context, machine: int) -> list[desired.Comparison]:
    return [context.comparisons[instance.id] for instance in context.fleet.on(machine)]


def _in_rotation(context: Context, instance: Instance) -> bool:
    return any(peer.id == instance.id and peer.state is PeerState.UP for peer in context.peers)


def _serves(context: Context, comparison: desired.Comparison) -> bool:
    """It takes requests now, so that it has to be drained before it is touched."""
    which = comparison.desired.instance
    health = context.facts[which.machine].health.get(which.index)
    # A peer that is draining may have requests in flight: an earlier run was cut short there.
    in_table = any(peer.id == which.id and peer.state is not PeerState.OFF for peer in context.peers)
    return in_table and health is not None and health.http == 200


def start(context: Context, machine: int) -> Group:
    """Start what does not serve: the first instance alone (it warms the page cache), then the rest side by side."""
    due = [
        c
        for c in _comparisons(context, machine)
        if c.state in (State.CREATE, State.START, State.RECREATE, State.LOADING) and not _serves(context, c)
    ]
    first, rest = due[:1], due[1:]
    return sequence(
        "start",
        *(bring_up(context, "start", c) for c in first),
        side_by_side("start the rest", *(bring_up(context, "start", c) for c in rest)),
    )


def bring_up(context: Context, step: str, comparison: desired.Comparison) -> Group:
    """Start or restart one instance that takes no requests, and wait until it answers a real completion."""
    fleet, which = context.fleet, comparison.desired.instance
    running = context.facts[which.machine].container(which.name)
    replace_it = running is not None and running.state == "running"
    unit = f"{which.name}.service"
    wait_free = Wait(Script("npu_info"), gate.devices_free(which), 120, 20)
    verb = "restart" if replace_it else "start"
    reason = f" ({comparison.reason})" if comparison.reason else ""
    if comparison.state is State.LOADING:
        return sequence(which.id, gate_operation(context, "gate", which))
    operations = []
    if replace_it:
        operations.append(
            _op(
                step,
                which.machine,
                f"stop {unit}{reason}",
                Run(Script("unit_stop", (unit,), fleet.name), timeout=240),
                which.id,
            )
        )
    operations += [
        _op(step, which.machine, f"wait for free NPUs {_devices(which)}", wait_free, which.id),
        _op(
            step,
            which.machine,
            f"{verb} {unit}{reason if not replace_it else ''}",
            Run(Script("unit_start", (unit, paths.stopped(fleet, which)), fleet.name), timeout=HELD),
            which.id,
        ),
        gate_operation(context, "gate", which),
    ]
    return sequence(which.id, *operations)


def _devices(which: Instance) -> str:
    return ",".join(map(str, which.devices))


def gate_operation(context: Context, step: str, which: Instance) -> Operation:
    """Unit, container, own NPUs, /health, name, 401 without the key, one real completion with it."""
    fleet = context.fleet
    unit, model_name = f"{which.name}.service", fleet.inventory.model.name
    script = Script("gate", (unit, which.name, f"http://{which.address}", paths.api_key(fleet), model_name))
    wait = Wait(
        script,
        gate.serving(which, model_name),
        fleet.inventory.rollout.start_timeout,
        on_failure=Script("gate_log", (unit, 30)),
    )
    return _op(step, which.machine, "wait until it answers a completion", wait, which.id)


def roll(context: Context, machine: int) -> Group:
    """Change what serves: drain, restart, gate, back in rotation, at most `max_unavailable` at a time."""
    due = [
        c for c in _comparisons(context, machine) if c.state in (State.RECREATE, State.START) and _serves(context, c)
    ]
    size = batch_size(context)
    batches = [due[i : i + size] for i in range(0, len(due), size)]
    return sequence(
        "roll",
        *(side_by_side("batch", *(replace_serving(context, "roll", c) for c in batch)) for batch in batches),
    )


def batch_size(context: Context) -> int:
    """How many instances may be out of rotation at once; at least one."""
    text, total = context.fleet.inventory.rollout.max_unavailable, len(context.peers)
    return max(1, total * int(text[:-1]) // 100 if text.endswith("%") else int(text))


def replace_serving(context: Context, step: str, comparison: desired.Comparison) -> Group:
    which = comparison.desired.instance
    return sequence(
        which.id,
        drain(context, step, which),
        bring_up(context, step, comparison),
        undrain(context, step, which),
    )


def drain(context: Context, step: str, which: Instance) -> Group:
    """Out of rotation, then wait for what is in flight."""
    edit = context.edit(set_state(context.fleet, (which,), PeerState.DRAIN))
    cap = context.fleet.inventory.rollout.drain_timeout
    wait = Wait(Script("state_ask", (context.state_url,)), gate.drained(which), cap, 15, late_is_fine=context.plain)
    return sequence(
        "drain",
        Operation(step, context.balancer, which.id, "drain: no new requests", edit),
        Operation(step, context.balancer, which.id, "wait for requests in flight", wait),
    )


def undrain(context: Context, step: str, which: Instance) -> Group:
    """Back in the table, and the balancer has seen for itself that it is well."""
    edit = context.edit(set_state(context.fleet, (which,), PeerState.UP))
    wait = Wait(Script("state_ask", (context.state_url,)), gate.in_use((which,)), VERIFY_SECONDS, 15)
    return sequence(
        "undrain",
        Operation(step, context.balancer, which.id, "back in rotation", edit),
        Operation(step, context.balancer, which.id, "wait until the balancer sends to it", wait),
    )


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
    unit = fleet.inventory.balancer.unit
    changed = [name for name, text in wanted.beside.items() if facts.files.get(name) != desired.sha256(text)]
    stale = {n: t for n, t in wanted.files.items() if facts.files.get(f"{wanted.folder}/{n}") != desired.sha256(t)}
    seen, active = facts.units.get(unit), _is_unit_active(context, where, unit)
    loaded = facts.balancer is not None and facts.balancer.config == wanted.hash
    if not stale and not changed and loaded and active and seen is not None and seen.enabled == "enabled":
        return sequence("balancer")
    unit_changed = str(paths.unit(unit)) in changed
    # One that systemd is about to start again cannot be reloaded.
    anew = unit_changed or (seen is not None and seen.active == "activating")
    verb = "start" if not active else "restart" if anew else "reload"
    return sequence(
        "balancer",
        None if where in context.machines else _clean(context, where),
        None if where in context.machines else key(context, where),
        *_shadow(context, wanted) if stale and not context.plain else (),
        *(_write(context, "balancer", where, name, wanted.beside[name]) for name in changed),
        *_swap(context, wanted, stale, verb),
    )


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
    apply = Run(Script("balancer_apply", (folder, unit, verb), fleet.name), archive(stale), HELD)
    wait = Wait(
        Script("state_ask", (context.state_url,)),
        gate.config_loaded(wanted.hash),
        30,
        15,
        on_failure=Script("balancer_restore", (folder, unit), fleet.name),
    )
    what = f"write {names} of {folder}, {verb} {unit}" if stale else f"{verb} {unit}"
    return (
        Operation("balancer", where, "balancer", what, apply),
        Operation("balancer", where, "balancer", f"wait until configuration {wanted.hash[:12]} is loaded", wait),
    )


def after_join(context: Context, machine: int) -> tuple[Peer, ...]:
    """The peers table once this machine has joined; an instance stopped on purpose is off."""
    table = context.peers
    for comparison in _comparisons(context, machine):
        state = PeerState.OFF if comparison.state is State.STOPPED else PeerState.UP
        table = set_state(context.fleet, (comparison.desired.instance,), state)(table)
    return table


def join(context: Context, machine: int) -> Group:
    """All instances of a machine take their places in the table at once."""
    table = after_join(context, machine)
    loaded = context.facts[context.balancer].balancer
    if table == context.peers and loaded is not None and not context.peers_broken:
        return sequence("join")
    wanted = {peer.id: peer for peer in table if peer.id.startswith(f"{machine}/")}
    fleet = context.fleet

    def edit(peers: tuple[Peer, ...]) -> tuple[Peer, ...]:
        for instance in fleet.on(machine):
            peers = set_state(fleet, (instance,), wanted[instance.id].state)(peers)
        return peers

    moved = routing.moved(context.peers, table, fleet.inventory.balancer.affinity) if context.peers else 0.0
    summary = f"join: {len(context.peers)} -> {len(table)} backends, {moved:.0%} of sessions move"
    # What serves but is not in rotation was not gated by this plan: an earlier run may have died in its gate.
    unproved = [
        c.desired.instance
        for c in _comparisons(context, machine)
        if c.state is State.UP_TO_DATE and not _in_rotation(context, c.desired.instance)
    ]
    gates = side_by_side("gate", *(gate_operation(context, "gate", which) for which in unproved))
    return sequence("join", gates, Operation("join", context.balancer, str(machine), summary, context.edit(edit)))


def verify(context: Context, machine: int) -> Group:
    """Every backend of this stage is hit, each by a session whose key computes to it."""
    table = after_join(context, machine)
    half_done = context.current is not None and not context.settled
    if table == context.peers and context.facts[context.balancer].balancer is not None and not half_done:
        return sequence("verify")
    up = [peer.address for peer in table if peer.state is PeerState.UP]
    if context.plain:
        # nginx's own hash is not computed here: enough sessions that each backend is hit, but for one in a million.
        sessions, judge = [f"verify-{n}" for n in range(30 * len(up))], gate.all_hit(set(up))
    else:
        homes = sessions_for(context, table)
        sessions, judge = list(homes), gate.answered_by(list(homes.values()))
    script = Script("balancer_verify", (context.listen_url, paths.api_key(context.fleet), *sessions))
    summary = f"{len(up)} backends answer{'' if context.plain else ' as computed'}"
    wait = Wait(script, judge, VERIFY_SECONDS, 120, 1.0)
    return sequence("verify", _op("verify", context.balancer, summary, wait, str(machine)))


def sessions_for(context: Context, table: tuple[Peer, ...]) -> dict[str, str]:
    """One session id for each peer in rotation, with the address that has to answer it."""
    affinity = context.fleet.inventory.balancer.affinity
    wanted = {peer.address for peer in table if peer.state is PeerState.UP}
    found: dict[str, str] = {}
    for number in range(100_000):
        if len(found) == len(wanted):
            break
        home = routing.order(f"verify-{number}", table, affinity)[0]
        if home.address in wanted and home.address not in found.values():
            found[f"verify-{number}"] = home.address
    return found


STEPS: dict[str, Step] = {
    "release": release,
    "key": key,
    "image": image,
    "pull": pull,
    "manifest": manifest,
    "model": model,
    "make-room": make_room,
    "clean": clean,
    "units": units,
    "start": start,
    "balancer": balancer,
    "roll": roll,
    "join": join,
    "verify": verify,
    "record": record,
}
