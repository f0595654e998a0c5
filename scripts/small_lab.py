"""The shipped inventory as another fleet of two machines, with a network and ports of its own.

python scripts/small_lab.py inventory.yaml TARGET FLEET NET PORT
"""

from __future__ import annotations

import sys
from pathlib import Path

import yaml


def main() -> None:
    source, target, fleet, net, port = sys.argv[1:]
    text = Path(source).read_text(encoding="utf-8")
    text = text.replace("10.255.254.", f"{net}.").replace("2219", port).replace("2220", str(int(port) + 1))
    document = yaml.safe_load(text)
    document["fleet"] = fleet
    document["machines"] = [machine for machine in document["machines"] if machine["id"] in (69, 67)]
    document["balancer"]["public_url"] = f"http://{net}.69:{port}"
    document["rollout"] |= {"drain_timeout": 30, "start_timeout": 60}
    Path(target).write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


main()
