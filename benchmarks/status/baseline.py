"""The yardstick: four Fabric connections opened in parallel, one `true` on each.

python benchmarks/status/baseline.py INVENTORY
"""

import sys
from pathlib import Path
from threading import Thread

from fabric import Connection
from yaml import safe_load


def main() -> None:
    path = Path(sys.argv[1])
    document = safe_load(path.read_text())
    known = path.parent / ".fleetctl" / f"{document['fleet']}.known_hosts"

    def visit(machine: dict) -> None:
        ssh = machine["ssh"]
        key = str(path.parent / ssh["key"])
        connection = Connection(
            ssh["host"], user=ssh["user"], port=ssh["port"],
            connect_kwargs={"key_filename": key, "look_for_keys": False, "allow_agent": False},
        )  # fmt: skip
        connection.client.load_host_keys(str(known))
        connection.run("true", hide=True)
        connection.close()

    threads = [Thread(target=visit, args=(machine,)) for machine in document["machines"]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
