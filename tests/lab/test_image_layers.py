"""Over real SSH and through the whole command: of a changed image only the new layer travels."""

from __future__ import annotations

import pytest
import yaml

from tests.lab.conftest import Lab

pytestmark = pytest.mark.matrix


def received(lab: Lab, machine: int) -> int:
    return int(lab.on(machine, "cat /sys/class/net/eth0/statistics/rx_bytes"))


def test_of_an_image_that_grew_by_a_layer_only_that_layer_travels(pair: Lab) -> None:
    pair.run("rollout", "--yes")
    document = yaml.safe_load(pair.inventory.read_text())
    image, fleet = document["image"]["reference"], document["fleet"]
    size = 30_000_000
    pair.on(
        69,
        f"head -c {size} /dev/urandom >/tmp/grown && docker create --name grown {image} serve && "
        f"docker cp /tmp/grown grown:/opt/grown && docker commit --change 'CMD []' grown {image} && docker rm grown && rm /tmp/grown",
    )
    before = received(pair, 67)
    pair.run("rollout", "--yes")
    wire = received(pair, 67) - before
    assert size < wire < 1.2 * size
    identity = f"docker image inspect -f '{{{{.Id}}}}' {image}"
    assert pair.on(67, identity) == pair.on(69, identity)
    assert "fleetctl-partial" not in pair.on(67, "docker images -a; ls /var/lib/docker")
    assert pair.on(67, "ls -A /var/lib/docker/tmp /run/fleetctl/transfer | grep -v :", check=False).strip() == ""
    assert f"fleetctl-transfer:{fleet}" not in pair.on(69, "cat /root/.ssh/authorized_keys")
