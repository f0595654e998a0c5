"""The fleet as the rest of the program sees it: machines, instances, and the overrides of a release.

Pure: built from a validated inventory, never from a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fleetctl.fleet.allocation import allocate
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import FlagValue, Inventory, Machine


def canonical(name: str) -> str:
    """An engine flag's name without dashes in front and with `-` for `_`; what follows a dot is a JSON key, kept."""
    head, dot, tail = name.lstrip("-").partition(".")
    return head.replace("_", "-") + dot + tail


@dataclass(frozen=True)
class Overrides:
    """What a release changes over the inventory (design, promise 3); empty: the inventory as it stands.

    `env`: variables of the containers, None leaves one out; `settings`: those of `Fleet.settings`.
    """

    tokens: int | None = None
    image: str | None = None
    engine: tuple[tuple[str, FlagValue], ...] = ()
    env: tuple[tuple[str, str | None], ...] = ()
    settings: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return self != Overrides()


@dataclass(frozen=True)
class Fleet:
    """The desired fleet: a validated inventory plus the overrides of the current release."""

    inventory: Inventory
    path: Path
    overrides: Overrides = field(default_factory=Overrides)

    @property
    def name(self) -> str:
        return self.inventory.fleet

    @cached_property
    def machines(self) -> dict[int, Machine]:
        """Machines by id, in joining order."""
        return {machine.id: machine for machine in self.inventory.machines}

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """Every instance in the order of the affinity table: machines as they join, indexes as they count."""
        return allocate(self.inventory)

    def on(self, machine: int) -> tuple[Instance, ...]:
        """The instances of one machine, by index."""
        return tuple(instance for instance in self.instances if instance.machine == machine)

    def with_overrides(self, overrides: Overrides) -> Fleet:
        return replace(self, overrides=overrides)

    @property
    def image(self) -> str:
        return self.overrides.image or self.inventory.image.reference

    @property
    def pinned(self) -> str | None:
        """The content that the image has to have: the inventory's digest, when it is the inventory's image."""
        own = self.inventory.image
        return own.digest if self.image == own.reference else None

    @property
    def tokens(self) -> int | None:
        """num_speculative_tokens in force, None when the fleet does not speculate."""
        if self.inventory.speculative is None:
            return None
        return self.inventory.speculative.tokens if self.overrides.tokens is None else self.overrides.tokens

    @property
    def engine(self) -> dict[str, FlagValue]:
        """Engine flags in force by canonical name, without those the program computes (model, port, speculation)."""
        inventory = {canonical(name): value for name, value in self.inventory.engine.items()}
        return {**inventory, **{canonical(name): value for name, value in self.overrides.engine}}

    @property
    def env(self) -> dict[str, str]:
        """The containers' environment in force."""
        merged = {**self.inventory.instances.env, **dict(self.overrides.env)}
        return {name: value for name, value in merged.items() if value is not None}

    @property
    def settings(self) -> dict[str, str]:
        """What else of the inventory decides how an engine runs, in force.

        Names, ports, devices, mounts and drivers are no part of it: they say where an engine is, not how it runs.
        """
        own, speculative = self.inventory.instances, self.inventory.speculative
        found = {"shm_size": own.shm_size, "cpuset": own.cpuset, "log_max_size": own.log_max_size}
        if speculative is not None:
            found["method"] = speculative.method
        return {**found, **{name: value for name, value in self.overrides.settings if name in found}}
