"""`fleetctl` whose rollout is a copy and nothing else: copies.py model|image rollout ...

Everything is the program's own but the playbook. One beside the inventory could not say this: it has to end with
machines that serve, and what is measured here is the way of the bytes.
"""

from __future__ import annotations

import sys

from fleetctl.__main__ import main
from fleetctl.plan import playbook
from fleetctl.plan.playbook import Playbook, Stage

BEFORE = {"model": "manifest", "image": "pull"}

if __name__ == "__main__":
    what = sys.argv.pop(1)
    stages = (Stage("source", False, (BEFORE[what],)), Stage("prepare", True, (what,)))
    playbook.load = lambda *_: Playbook("rollout", stages)
    main()
