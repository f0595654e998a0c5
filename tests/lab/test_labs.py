"""Labs beside each other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from tests.lab.conftest import FLEETCTL, take_down, write_inventory


def test_two_labs_that_start_at_once_and_want_the_same_ports_get_their_own(tmp_path: Path) -> None:
    inventories = []
    for name, net in (("one", "10.255.222"), ("two", "10.255.223")):
        (tmp_path / name).mkdir()
        path = write_inventory(tmp_path / name, name, net, [69])
        document = yaml.safe_load(path.read_text())
        document["balancer"]["listen"] = 3446
        path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
        inventories.append(path)
    try:
        ups = [
            subprocess.Popen(
                [*FLEETCTL, "lab", "up", "--fresh", "--bare", "-i", str(path)],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for path in inventories
        ]
        ended = [(up.communicate(timeout=600)[1], up.returncode) for up in ups]
        assert [code for _, code in ended] == [0, 0], ended
    finally:
        for path in inventories:
            take_down(path)
