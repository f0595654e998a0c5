"""The step kinds of playbooks: each says, for one machine, which operations bring it to the desired state. Pure.

A step that finds everything as it should be says nothing: that is what makes a second run change nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from fleetctl.plan import balancer_steps, cleaning, copies, files, instances, removal, rotation, tidy
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group

Step = Callable[[Context, int], Group]

STEPS: dict[str, Step] = {
    "release": files.release,
    "key": files.key,
    "image": copies.image,
    "pull": copies.pull,
    "manifest": copies.manifest,
    "model": copies.model,
    "make-room": cleaning.make_room,
    "clean": cleaning.clean,
    "units": files.units,
    "start": instances.start,
    "balancer": balancer_steps.balancer,
    "roll": instances.roll,
    "join": rotation.join,
    "verify": rotation.verify,
    "orphans": removal.orphans,
    "old-key": files.old_key,
    "record": files.record,
    "tidy": tidy.tidy,
    "drain": removal.drain,
    "leave": removal.leave,
    "dismiss": removal.dismiss,
    "purge": removal.purge,
    "forget": removal.forget,
}
