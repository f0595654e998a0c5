"""The step kinds that bring image and model from the source: jobs on the receiver, with a key made for each. Pure."""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.commands import paths
from fleetctl.commands.script import Script, words
from fleetctl.plan.build import op
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Job, Operation, OutputOf, Run, sequence

COPY_SECONDS = 6 * 3600
TRANSFER_HOURS = 24


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
    return sequence("pull", op("pull", source, f"pull {fleet.image}", job))


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
        op(
            "model",
            context.source,
            "read the manifest",
            Run(Script("read_file", (manifest,))),
            id=f"manifest-{machine}",
        ),
        op(
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
        found.append(op("manifest", context.source, f"revoke the key of an ended transfer to {number}", run))
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
    return op("manifest", context.source, "make the manifest (sha256 of every file)", job)


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
    job = op(what, machine, summary, Job(unit, script(where), paths.job_progress(unit), COPY_SECONDS))
    tag = f"{fleet.name}-{machine}-{what}"
    revoke = op(
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
        op(
            what,
            machine,
            f"make a key for this transfer, pin the host keys of {context.source}",
            Run(Script("transfer_key", (_folder(context, what),), fleet.name), pinned.encode()),
            id=made,
        ),
        op(
            what,
            context.source,
            f"let {machine} run `{command}` and nothing else",
            Run(allow, OutputOf(made)),
        ),
        job,
        revoke,
    )
