"""From the names people have at hand to the instances they mean (design, section 2).

Pure: an unknown name is a usage error before any connection is made, with the nearest name offered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance

BALANCER = "balancer"


@dataclass(frozen=True)
class Targets:
    """What a command acts on: instances in fleet order, each once.

    `machines` are those named whole (`67`) or through `--all`, in joining order.
    """

    instances: tuple[Instance, ...] = ()
    machines: tuple[int, ...] = ()
    balancer: bool = False


def names(instance: Instance) -> tuple[str, ...]:
    """Every name of one instance, the shortest first."""
    return (
        instance.id,
        f"{instance.machine}:{instance.port}",
        instance.address,
        f"{instance.machine}/{instance.name}",
        f"{instance.machine}/{instance.name}.service",
    )


def resolve(fleet: Fleet, words: Sequence[str], all: bool = False) -> Targets:
    """The targets that `words` name; `all` is every instance of every machine, without the balancer.

    Raises UsageError for no word at all, for a word that names nothing, and for words together with `all`.
    """
    if all:
        if words:
            raise UsageError(f"--all and {' '.join(words)} together: name targets or say --all")
        return Targets(fleet.instances, tuple(fleet.machines))
    if not words:
        raise UsageError("no target named", next_command="name an instance such as 67/2, a machine, or --all")
    instances, machines, balancer = _lookup(fleet), _machines(fleet), False
    chosen: set[str] = set()
    whole: set[int] = set()
    wrong: list[str] = []
    for word in words:
        if word == BALANCER:
            balancer = True
        elif word in machines:
            whole.add(machines[word])
        elif word in instances:
            chosen.add(instances[word].id)
        else:
            wrong.append(word)
    if wrong:
        raise UsageError("\n".join(_unknown(fleet, word) for word in wrong))
    return Targets(
        tuple(one for one in fleet.instances if one.id in chosen or one.machine in whole),
        tuple(machine for machine in fleet.machines if machine in whole),
        balancer,
    )


def machines(fleet: Fleet, words: Sequence[str]) -> tuple[int, ...]:
    """The machines that `words` name (id or address), in joining order; raises UsageError like `resolve`."""
    known = _machines(fleet)
    wrong = [word for word in words if word not in known]
    if wrong:
        raise UsageError("\n".join(_unknown(fleet, word, tuple(known)) for word in wrong))
    named = {known[word] for word in words}
    return tuple(machine for machine in fleet.machines if machine in named)


def words(fleet: Fleet) -> Iterator[str]:
    """What shell completion offers: machines, instances, the balancer."""
    yield from map(str, fleet.machines)
    yield from (instance.id for instance in fleet.instances)
    yield BALANCER


def _machines(fleet: Fleet) -> dict[str, int]:
    by_address = {machine.address: machine.id for machine in fleet.machines.values()}
    return {**by_address, **{str(machine): machine for machine in fleet.machines}}


def _lookup(fleet: Fleet) -> dict[str, Instance]:
    known = {name: instance for instance in fleet.instances for name in names(instance)}
    return {**_unique_names(fleet), **known}


def _unique_names(fleet: Fleet) -> dict[str, Instance]:
    """Instance names without their machine, where only one machine has that name."""
    counted: dict[str, list[Instance]] = {}
    for instance in fleet.instances:
        counted.setdefault(instance.name, []).append(instance)
    return {name: found[0] for name, found in counted.items() if len(found) == 1}


def _unknown(fleet: Fleet, word: str, candidates: Sequence[str] | None = None) -> str:
    same_name = [f"{one.machine}/{one.name}" for one in fleet.instances if one.name == word]
    if same_name:
        return f'"{word}" is on several machines; say which: {", ".join(same_name)}'
    known = candidates or [
        *words(fleet),
        *(name for instance in fleet.instances for name in names(instance)),
        *_machines(fleet),
    ]
    from fleetctl.fleet.nearest import nearest

    near = nearest(word, known)
    machines_known = ", ".join(map(str, fleet.machines))
    hint = f'; did you mean "{near}"?' if near else f"; its machines are {machines_known}"
    what = "machine" if candidates else "machine or instance"
    return f'no {what} "{word}" in fleet {fleet.name}{hint}'
