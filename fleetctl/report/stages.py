"""How the fleet grew: stages and releases with their dates, of the audit logs and releases of its machines. Pure."""

from __future__ import annotations

from fleetctl.plan.history import Command
from fleetctl.plan.release import words as overrides_words
from fleetctl.report.document import Block, Cell, Mark, Marked, Section, Table, Text
from fleetctl.report.material import Material
from fleetctl.report.words import Words

UNKNOWN = "-"
JOINING = ("add-machine", "rollout")


def stages(material: Material, words: Words) -> Section:
    parts = (
        _joined(material, words),
        *_machines(material, words),
        _releases(material, words),
        _points(material, words),
    )
    order = " → ".join(str(machine) for machine in material.fleet.machines)
    blocks: list[Block] = [Text(words("stages.lead", order=order))]
    if not material.history:
        blocks.append(Text(words("stages.no_history"), Mark.ODD))
    return Section("stages", words("section.stages"), tuple(blocks), parts)


def first_joined(material: Material, machine: int) -> Command | None:
    """The first command that ended well on a machine and brings machines into the fleet."""
    for command in material.history:
        one = command.machines.get(machine)
        if command.command.split(" ")[0] in JOINING and one is not None and one.outcome == "done" and one.operations:
            named = [word for word in command.command.split(" ")[1:] if word.isdigit()]
            if command.command.startswith("add-machine") and str(machine) not in named:
                continue  # the balancer's machine and the source are touched too
            return command
    return None


def _joined(material: Material, words: Words) -> Section:
    rows: list[tuple[Cell, ...]] = []
    total = 0
    for machine in material.fleet.machines:
        own = len(material.fleet.on(machine))
        found = first_joined(material, machine)
        after = f"{total} → {total + own}"
        total += own
        rows.append(
            (
                words("machine", id=machine),
                after,
                found.when if found else words("stages.not_recorded"),
                f"fleetctl {found.command}" if found else UNKNOWN,
                found.who if found else UNKNOWN,
                UNKNOWN if found is None or found.seconds is None else f"{found.seconds:.0f} s",
            )
        )
    columns = tuple(words(f"stages.{name}") for name in ("machine", "backends", "when", "command", "who", "time"))
    about = words("about.history", when=material.when, n=len(material.history))
    return Section("stage-table", words("section.stage-table"), (Table(columns, tuple(rows), about),))


def _machines(material: Material, words: Words) -> list[Section]:
    """What was done on each machine, as the inventory and the logs have it."""
    found = []
    inventory = material.fleet.inventory
    for machine, settings in material.fleet.machines.items():
        lines = [
            words("stage.source") if machine == inventory.source else words("stage.copied", source=inventory.source)
        ]
        if machine == inventory.balancer.machine:
            lines.append(words("stage.balancer", port=inventory.balancer.listen))
        clean = settings.clean
        gave = [*clean.units, *clean.containers, *(f"{one.executable} :{one.port}" for one in clean.processes)]
        lines.append(
            words("stage.cleaned", what=", ".join(dict.fromkeys(gave))) if gave else words("stage.nothing_cleaned")
        )
        lines.append(words("stage.instances", n=len(material.fleet.on(machine))))
        own = [command for command in material.history if machine in command.machines]
        head = tuple(words(f"stages.{name}") for name in ("when", "command", "outcome", "operations", "time"))
        rows = tuple(_command_row(words, command, machine) for command in own[-ROWS:])
        blocks: list[Block] = [Text(words("sentence").join(lines))]
        if rows:
            about = words("about.machine_history", when=material.when, n=len(own), shown=len(rows))
            blocks.append(Table(head, rows, about))
        else:
            blocks.append(Text(words("stages.not_recorded_here"), Mark.ODD))
        found.append(Section(f"stage-{machine}", words("section.stage", id=machine), tuple(blocks)))
    return found


ROWS = 12  # commands that one machine's table shows, the newest


def _command_row(words: Words, command: Command, machine: int) -> tuple[Cell, ...]:
    one = command.machines[machine]
    outcome = one.outcome or command.outcome
    mark = Mark.GOOD if outcome == "done" else Mark.ODD if outcome in ("running", "not reached") else Mark.BAD
    done = UNKNOWN if one.done is None else f"{one.done}/{one.operations}"
    time = UNKNOWN if command.seconds is None else f"{command.seconds:.0f} s"
    return (command.when, f"fleetctl {command.command}", Marked(words(f"outcome.{outcome}"), mark), done, time)


def _releases(material: Material, words: Words) -> Section:
    known = dict(material.proved)
    current = material.release
    if current is not None:
        known[current.number] = current
    if not known:
        return Section("releases", words("section.releases"), (Text(words("releases.none"), Mark.ODD),))
    rows: list[tuple[Cell, ...]] = []
    for number, release in sorted(known.items()):
        whole = release.whole
        good = release.outcome == "good"
        force = f" ({words('releases.in_force')})" if current is not None and number == current.number else ""
        rows.append(
            (
                f"{number}{force}",
                release.when,
                release.who,
                f"fleetctl {release.command}",
                Marked(words(f"outcome.{release.outcome}"), Mark.GOOD if good else Mark.ODD),
                overrides_words(release.overrides) if release.overrides else words("releases.inventory"),
                UNKNOWN if whole is None or whole.tokens is None else str(whole.tokens),
                UNKNOWN if whole is None else str(whole.image),
            )
        )
    names = ("number", "when", "who", "command", "outcome", "overrides", "mtp", "image")
    columns = tuple(words(f"releases.{name}") for name in names)
    about = words("about.releases", when=material.when, n=len(rows))
    return Section("releases", words("section.releases"), (Table(columns, tuple(rows), about),))


def _points(material: Material, words: Words) -> Section:
    inventory = material.fleet.inventory
    shared = inventory.model.shared
    rows: list[tuple[Cell, ...]] = [
        (words("points.image"), words("points.image.value", source=inventory.source)),
        (
            words("points.model"),
            words("points.model.shared" if shared else "points.model.value", path=inventory.model.path),
        ),
        (words("points.config"), words("points.config.value", steps=" → ".join(_steps(material)))),
        (words("points.ports"), words("points.ports.value", port=inventory.instances.port)),
        (words("points.units"), words("points.units.value")),
    ]
    return Section(
        "stage-points", words("section.stage-points"), (Table((words("points.point"), words("meaning")), tuple(rows)),)
    )


def _steps(material: Material) -> list[str]:
    total, found = 0, []
    for machine in material.fleet.machines:
        total += len(material.fleet.on(machine))
        found.append(str(total))
    return found
