"""Pieces of the probe, run here: what they print is what is there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleetctl.commands import probe
from fleetctl.fleet.fleet import Fleet


def sh(script: str, folder: Path, **environment: str) -> None:
    subprocess.run(["sh", "-c", script], cwd=folder, env={**os.environ, **environment}, check=True)


def mount_of(folder: Path) -> str:
    return (folder / "disk-docker").read_text().split()[5]


def test_room_for_images_is_looked_for_where_docker_keeps_them(tmp_path: Path) -> None:
    """Its folder is on a disk of its own, and need not be there yet."""
    (tmp_path / "docker-info").write_text('{"ID":"x","DockerRootDir":"/dev/shm/docker/root","Name":"m"}\n')
    sh(probe._docker_disk(), tmp_path)
    wanted = subprocess.run(["df", "-P", "/dev/shm"], capture_output=True, text=True, check=True).stdout.split()[-1]
    assert mount_of(tmp_path) == wanted
    (tmp_path / "docker-info").unlink()
    sh(probe._docker_disk(), tmp_path)
    assert mount_of(tmp_path) != wanted


@pytest.mark.parametrize(
    ("machine", "expected"), [(67, ["10.255.254.69:22 Failed to connect: Couldn't connect to server"]), (69, [])]
)
def test_a_refused_port_is_reached_but_the_source_needs_its_sshd(
    fleet: Fleet, tmp_path: Path, machine: int, expected: list[str]
) -> None:
    """On another port than 22 no receiver would get in."""
    curl = tmp_path / "curl"
    curl.write_text('#!/bin/sh\necho "7 Failed to connect: Couldn\'t connect to server"\n')
    curl.chmod(0o755)
    sh(probe._reach(fleet, fleet.machines[machine]), tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert (tmp_path / "reach").read_text().splitlines() == expected
