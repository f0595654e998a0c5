"""Which orders of steps make sense, and which steps may be left out of a playbook. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fleetctl.fleet.document import Location

# These change who takes requests, or restart what serves: never on two machines at once.
ONE_BY_ONE = ("balancer", "roll", "join", "verify", "orphans", "drain", "leave")

# What has to be there, earlier.
NEEDS: dict[str, tuple[str, ...]] = {
    "model": ("manifest",),
    "start": ("key", "units"),
    "roll": ("key", "units"),
    "join": ("balancer", "start"),
    "verify": ("join",),
    "record": ("release", "join"),
    "tidy": ("record",),
    "leave": ("drain",),
    "dismiss": ("leave",),
    "purge": ("dismiss",),
    "forget": ("dismiss",),
}

# What has to be earlier if it is there at all.
AFTER: dict[str, tuple[str, ...]] = {
    "image": ("release", "make-room", "pull"),
    "model": ("release", "make-room"),
    "units": ("release",),
    "start": ("release", "clean", "image", "model"),
    "roll": ("release", "clean", "image", "model", "balancer"),
    "join": ("roll",),
    "record": ("start", "roll", "verify"),
    "old-key": ("key", "roll"),
    "forget": ("purge",),
}

# What has to be in an earlier stage: it is work of another machine, or of all of them.
STAGE_BEFORE: dict[str, tuple[str, ...]] = {
    "image": ("pull",),
    "model": ("manifest",),
    "record": ("start", "roll", "join", "verify"),
    "old-key": ("key", "roll", "join"),
}

KEPT: dict[str, str] = {
    "release": "after a kill nobody would know what had been asked for",
    "key": "instances and the balancer read it",
    "units": "the instances are started by them",
    "start": "nothing would serve",
    "balancer": "the balancer would not run what the inventory says",
    "roll": "what serves would stay as it was, and the release would be called good",
    "join": "nothing would take requests",
    "record": "no release would ever be proved, and nothing could be rolled back to",
    "drain": "requests would be cut off",
    "leave": "the balancer would go on sending to instances that are gone",
    "dismiss": "the instances would stay",
}

LEFT_OUT: dict[str, str] = {
    "pull": "an image that the source lacks is a failure",
    "manifest": "nothing says what a whole copy of the model is",
    "image": "each machine has to have it already; one that differs from the source's is never up to date",
    "model": "each machine has to have it already; its files are not verified",
    "make-room": "machines with `clean: first` are cleaned after the copies, if they fit",
    "clean": "what ran before stays and keeps its ports and NPUs",
    "verify": "nobody asks every backend through the balancer before the release is called good",
    "tidy": "images and models that no release uses stay on the disks",
    "orphans": "instances that the inventory no longer lists stay, and stay in rotation",
    "old-key": "the key that was replaced stays good at the balancer",
    "purge": "--purge removes nothing",
    "forget": "the key's file and the fleet's state stay on the machine",
}


@dataclass(frozen=True)
class Placed:
    """A step kind where it stands: `stage` counts from 0."""

    step: str
    stage: int
    parallel: bool
    location: Location


def order(placed: Sequence[Placed]) -> Iterator[tuple[Location, str]]:
    """What is wrong with the order of these steps, each with its place."""
    position = {one.step: number for number, one in enumerate(placed)}
    stage = {one.step: one.stage for one in placed}
    for number, one in enumerate(placed):
        step = one.step
        if one.parallel and step in ONE_BY_ONE:
            yield one.location, f"{step} is for a stage whose machines go `one by one`: it changes who takes requests"
        missing = [other for other in NEEDS.get(step, ()) if other not in position]
        if missing:
            yield one.location, f"{step} needs {' and '.join(missing)} before it, which this playbook lacks"
        late = [o for o in (*NEEDS.get(step, ()), *AFTER.get(step, ())) if position.get(o, -1) > number]
        if late:
            yield one.location, f"{step} stands before {' and '.join(dict.fromkeys(late))}, which it needs done"
        same = [o for o in STAGE_BEFORE.get(step, ()) if stage.get(o) == one.stage and o not in late]
        if same:
            yield one.location, f"{step} needs {' and '.join(same)} in an earlier stage: done on all machines by then"


def missing(shipped: Sequence[str], given: set[str], dropped: Sequence[str]) -> Iterator[str]:
    """What a copy leaves out though it must not, or without saying so: an old copy, or a slip."""
    for step in shipped:
        if step in dropped and step in KEPT:
            yield f"{step} cannot be left out: {KEPT[step]}"
        elif step not in given and step not in dropped:
            way = "it cannot be left out" if step in KEPT else f"put it back, or say `drop: [{step}]`: {left_out(step)}"
            yield f"step {step} of the shipped playbook is missing; {way}"


def left_out(step: str) -> str:
    """What it means that a step is dropped."""
    return LEFT_OUT.get(step, "its work is not done")
