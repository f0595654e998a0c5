"""The step kinds that bring image and model to the machines: jobs on the receivers, with a key made for each. Pure.

Any machine that has what a receiver lacks can serve it; the inventory's source is only the first of them.
"""

from __future__ import annotations

from functools import cache

from fleetctl.commands import paths, programs
from fleetctl.commands.script import Script, body, words
from fleetctl.observe.facts import Facts
from fleetctl.plan.build import op
from fleetctl.plan.context import Context, archive
from fleetctl.plan.desired import sha256
from fleetctl.plan.fanout import Pair, pairs
from fleetctl.plan.meter import duration, size
from fleetctl.plan.operation import Copy, Group, Job, Operation, OutputOf, Run, Way, sequence

COPY_SECONDS = 24 * 3600
TRANSFER_HOURS = 24
SSH_CEILING = 490e6  # bytes a second that rsync over ssh does at best (facts/feasibility 3)


def image(context: Context, machine: int) -> Group:
    """The image as the source has it, compared by content; the source itself may pull it."""
    fleet = context.fleet
    if machine == context.source or not context.new_image(machine):
        return sequence("image")
    unit, folder = paths.job(fleet, "image"), _folder(context, "image")
    limit = fleet.inventory.distribution.bytes_per_second
    script = Script("job_image", (folder, fleet.image, limit, paths.images(fleet)), uses=("brought",))
    seen = context.facts[context.source].image
    job = Job(unit, script, paths.job_progress(unit), COPY_SECONDS, folder)
    copied = _copy(context, machine, "image", fleet.image, seen.size if seen else None, job)
    return sequence("image", *copied.children, _note(context, "image", machine))


def pull(context: Context, machine: int) -> Group:
    """The source has the image before anybody copies it from there, and before the release is recorded."""
    fleet, source = context.fleet, context.source
    if machine != context.machines[0] or context.facts[source].image is not None:
        return sequence("pull")
    unit, pinned = paths.job(fleet, "image"), fleet.pinned
    script = Script("job_pull", (fleet.image, paths.images(fleet), pinned or ""), uses=("brought",))
    job = Job(unit, script, paths.job_progress(unit), COPY_SECONDS)
    words = f"pull {fleet.image}" + (f" as {pinned[:19]}" if pinned else "")
    return sequence(
        "pull",
        _end_other(context, "pull", source, job),
        op("pull", source, words, job),
        _note(context, "pull", source),
    )


def _note(context: Context, step: str, machine: int) -> Operation:
    words = (paths.images(context.fleet), context.fleet.image)
    note = Script("note_image", words, context.fleet.name, uses=("brought",))
    return op(step, machine, "note that fleetctl brought it", Run(note))


def model(context: Context, machine: int) -> Group:
    """The model as the source has it: every byte checked against a manifest made there, then put in its place."""
    fleet, source = context.fleet, context.facts[context.source].model
    if source is None or not context.new_model(machine):
        return sequence("model")
    manifest, path, unit = paths.manifest(fleet), fleet.inventory.model.path, paths.job(fleet, "model")
    folder, policy = _folder(context, "model"), fleet.inventory.distribution
    script = Script(
        "job_model",
        (folder, path, manifest, policy.streams, policy.bytes_per_second // 1024),
        uses=("model_files",),
    )
    job = Job(unit, script, paths.job_progress(unit), COPY_SECONDS, folder)
    read = f"manifest-{machine}"
    return sequence(
        "model",
        op("model", context.source, "read the manifest", Run(Script("read_file", (manifest,))), id=read),
        op(
            "model",
            machine,
            f"write {manifest}",
            Run(Script("write_file", (manifest, "0644"), fleet.name), OutputOf(read)),
        ),
        _copy(context, machine, "model", path.name, source.size, job),
    )


def manifest(context: Context, machine: int) -> Group:
    """The manifest of the source's model, made once for all receivers and kept until the files change."""
    source = context.facts[context.source].model
    if machine != context.machines[0]:
        return sequence("manifest")
    due = source is not None and source.present and not source.verified
    return sequence("manifest", *_sweep(context), *(_manifest(context) if due else ()))


def _manifest(context: Context) -> tuple[Operation | None, Operation]:
    fleet = context.fleet
    unit = paths.job(fleet, "manifest")
    script = Script("job_manifest", (fleet.inventory.model.path, paths.manifest(fleet)), uses=("model_files",))
    job = Job(unit, script, paths.job_progress(unit), COPY_SECONDS)
    made = op("manifest", context.source, "make the manifest (sha256 of every file that changed)", job)
    return _end_other(context, "manifest", context.source, job), made


def _runs(context: Context, machine: int, job: Job) -> bool:
    """The unit runs there and does this very work, and not that of an earlier command for another image or model."""
    facts = context.facts[machine]
    seen = facts.files.get(str(paths.job_script(job.unit)))
    return facts.jobs.get(job.unit) == "running" and seen == sha256(job.script.text)


def _end_other(context: Context, step: str, machine: int, job: Job) -> Operation | None:
    """A unit of that name that is busy with something else makes room; what it has brought stays."""
    if context.facts[machine].jobs.get(job.unit) != "running" or _runs(context, machine, job):
        return None
    words = f"end {job.unit}, which an earlier command started for something else"
    return op(step, machine, words, Run(Script("job_stop", (job.unit,), context.fleet.name), timeout=100))


def _sweep(context: Context) -> list[Operation]:
    """Keys of transfers that ended while nobody watched, wherever they may log in."""
    found = []
    for source, facts in context.facts.items():
        for tag in facts.transfer_tags:
            number, _, what = tag.removeprefix(f"{context.fleet.name}-").partition("-")
            receiver = context.facts.get(int(number)) if number.isdigit() else None
            if receiver is None and number.isdigit() and int(number) in context.fleet.machines:
                continue  # not looked at: its copy may go on
            if receiver is not None and receiver.jobs.get(paths.job(context.fleet, what)) == "running":
                continue
            revoke = _revoke(context, source, tag)
            found.append(op("manifest", source, f"revoke the key of an ended transfer to {number}", revoke))
    return found


def planned(context: Context, what: str) -> dict[int, Pair]:
    """Who copies `what` from whom: the same for every machine that asks, because it is made of the same facts."""
    lacks = context.new_image if what == "image" else context.new_model
    receivers = [m for m in context.machines if m != context.source and lacks(m)]
    able = {m for m in receivers if _can_serve(context, m)}
    return pairs(receivers, _holders(context, what), context.fleet.inventory.distribution.serves, able)


def _holders(context: Context, what: str) -> list[int]:
    """Machines that have it now, or will before anybody copies; the source first."""
    lacks = context.new_image if what == "image" else context.new_model
    others = [m for m in context.facts if m != context.source and m in context.users and not lacks(m)]
    shared = context.fleet.inventory.model.shared and what == "model"
    return [context.source, *(m for m in others if not shared and _can_serve(context, m))]


def _can_serve(context: Context, machine: int) -> bool:
    return bool(context.facts[machine].host_keys)


def _copy(context: Context, machine: int, what: str, name: str, weight: int | None, job: Job) -> Group:
    """One transfer: from the planned source, or from any other machine that comes to have it."""
    fleet, facts = context.fleet, context.facts[machine]
    follow = _runs(context, machine, job)
    pair = planned(context, what)[machine]
    holders = frozenset(_holders(context, what))
    able = [m for m in context.facts if m != machine and (m in holders or m in planned(context, what))]
    ways = {m: _way(context, m, machine, what) for m in able if _can_serve(context, m) or m == context.source}
    serves = fleet.inventory.distribution.serves
    copy = Copy(what, job, pair.source, ways, holders, pair.after, serves, follow, context.source)
    if follow:
        summary = f"follow the copy of {name} that goes on there"
    else:
        turn = f", turn {pair.turn}" if len(planned(context, what)) > 1 else ""
        summary = f"copy {name} from {pair.source} ({_cost(context, facts, weight)}{turn})"
    return sequence(what, _end_other(context, what, machine, job), op(what, machine, summary, copy))


def _cost(context: Context, receiver: Facts, weight: int | None) -> str:
    """Size and the time it takes at best: the wire of the receiver, the limit, what ssh does."""
    if not weight:
        return "size unknown"
    limit = context.fleet.inventory.distribution.bytes_per_second
    rates = [SSH_CEILING, *([limit] if limit else []), *([receiver.link * 125_000] if receiver.link else [])]
    return f"{size(weight)}, {duration(max(1.0, weight / min(rates)))} at best"


def _way(context: Context, source: int, receiver: int, what: str) -> Way:
    """A key that may log in from one address, run one program, and for a day at most."""
    fleet = context.fleet
    user, address = context.users.get(source, "root"), fleet.machines[source].address
    tag, folder, store = f"{fleet.name}-{receiver}-{what}", _folder(context, what), paths.serve(fleet)
    pinned = "".join(f"fleetctl-source {line}\n" for line in context.facts[source].host_keys)
    serve = words(["/bin/sh", store / "serve", user, tag, store, fleet.inventory.model.path, fleet.image])
    if user != "root":
        # sudo clears the variable that says what was asked for.
        serve = f'sudo -n /usr/bin/env "SSH_ORIGINAL_COMMAND=$SSH_ORIGINAL_COMMAND" {serve}'
    allow = Script("transfer_allow", (user, tag, fleet.machines[receiver].address, serve, TRANSFER_HOURS), fleet.name)
    return Way(
        key=Run(Script("transfer_key", (folder, f"{user}@{address}"), fleet.name), pinned.encode()),
        programs=Run(Script("write_tree", (store,), fleet.name), _programs(fleet.name)),
        allow=allow,
        revoke=_revoke(context, source, tag),
    )


def _revoke(context: Context, source: int, tag: str) -> Run:
    return Run(Script("transfer_revoke", (context.users.get(source, "root"), tag), context.fleet.name))


@cache
def _programs(fleet: str) -> bytes:
    """What a source runs for a receiver: serve, its way to forget the key, and the reader of image layers."""
    head = "set -eu\n"
    revoke = Script("transfer_revoke", fleet=fleet, patience=20).text.replace("set -- \n", "", 1)
    return archive({"serve": head + body("serve"), "revoke": revoke, "layers.py": programs.text("layers")})


def _folder(context: Context, what: str) -> str:
    return str(paths.transfer(context.fleet, what))
