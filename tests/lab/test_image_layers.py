"""Over real SSH and through the whole command: of a changed image only the new layer travels."""

from __future__ import annotations

import pytest
import yaml

from tests.lab.conftest import Lab, kill

pytestmark = pytest.mark.matrix


def received(lab: Lab, machine: int) -> int:
    return int(lab.on(machine, "cat /sys/class/net/eth0/statistics/rx_bytes"))


def grow(lab: Lab, size: int) -> tuple[str, str]:
    """The source's image gets one more layer of `size` random bytes, under its old name. Its name, and its fleet's."""
    document = yaml.safe_load(lab.inventory.read_text())
    image, fleet = document["image"]["reference"], document["fleet"]
    lab.on(
        69,
        f"head -c {size} /dev/urandom >/tmp/grown && docker create --name grown {image} serve && "
        f"docker cp /tmp/grown grown:/opt/grown && docker commit --change 'CMD []' grown {image} && docker rm grown && rm /tmp/grown",
    )
    return image, fleet


def test_of_an_image_that_grew_by_a_layer_only_that_layer_travels(pair: Lab) -> None:
    pair.run("rollout", "--yes")
    size = 30_000_000
    image, fleet = grow(pair, size)
    before = received(pair, 67)
    pair.run("rollout", "--yes")
    wire = received(pair, 67) - before
    assert size < wire < 1.2 * size
    identity = f"docker image inspect -f '{{{{.Id}}}}' {image}"
    assert pair.on(67, identity) == pair.on(69, identity)
    assert "fleetctl-partial" not in pair.on(67, "docker images -a; ls /var/lib/docker")
    assert pair.on(67, "ls -A /var/lib/docker/tmp /run/fleetctl/transfer | grep -v :", check=False).strip() == ""
    assert f"fleetctl-transfer:{fleet}" not in pair.on(69, "cat /root/.ssh/authorized_keys")


def test_a_copy_that_ends_while_nobody_watches_is_noted_as_ours_and_cleared(pair: Lab) -> None:
    """fleetctl was killed: nobody is there to write down whose image that is, or to clear the unit."""
    pair.run("rollout", "--yes")
    image, fleet = grow(pair, 30_000_000)
    unit = f"fleetctl-{fleet}-image.service"
    state = f"systemctl show -p SubState --value {unit}"
    pair.run("lab", "fault", "slow", "69", "60mbit")
    try:
        process = pair.start("rollout", "--yes")
        pair.wait("the image is on its way", lambda: pair.on(67, state).strip() == "running", 60)
        kill(process)
        pair.wait("the image has arrived", lambda: pair.on(67, state).strip() == "exited", 60)
    finally:
        pair.run("lab", "fault", "slow", "69", "off")
    identity = pair.on(69, f"docker image inspect -f '{{{{.Id}}}}' {image}").strip()
    assert pair.on(67, f"tail -n 1 /var/lib/fleetctl/{fleet}/images") == f"{identity} {image}\n"
    assert f"clear {unit.removesuffix('.service')}" in pair.run("rollout", "--yes").err
    assert pair.on(67, f"systemctl list-units --all --no-legend '{unit}'") == ""
    assert all(machine["jobs"] == {} for machine in pair.status()["machines"])
    assert "nothing to do" in pair.run("rollout", "--yes").out
