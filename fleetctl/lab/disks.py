"""Size-limited disks of lab machines: a sparse file with ext4 in it, mounted on this box and bound into the machine.

A full disk is then one machine's. The loop device goes when its mount goes (autoclear).
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from fleetctl.errors import FleetctlError
from fleetctl.lab.docker import run

LETTING_GO = 60.0  # seconds: the kernel lets go of a file system after the last process of a machine has ended
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True)
class Disk:
    """`name` is also the folder it is mounted at, `inside` the path that the machine sees; `size` in bytes."""

    name: str
    inside: str
    size: int

    def image(self, folder: Path) -> Path:
        return folder / f"{self.name}.img"

    def mountpoint(self, folder: Path) -> Path:
        return folder / self.name


def attach(disk: Disk, folder: Path) -> Path:
    """Makes and mounts the disk; returns where. Raises FleetctlError."""
    image, point = disk.image(folder), disk.mountpoint(folder)
    point.mkdir(parents=True, exist_ok=True)
    with image.open("wb") as file:
        file.truncate(disk.size)
    # Nobody pulls the plug of this box to see what the journal is good for.
    run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(image)], step=f"disk {disk.name}")
    run(["mount", "-o", "loop,noatime", str(image), str(point)], step=f"disk {disk.name}")
    return point


def mounted(folder: Path) -> list[Path]:
    """What is mounted below a folder, innermost first."""
    below = str(folder.absolute()) + os.sep
    points = []
    with MOUNTS.open(encoding="utf-8") as table:
        for line in table:
            point = line.split()[1].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "replace")
            if point.startswith(below):
                points.append(Path(point))
    return sorted(points, key=lambda point: len(point.parts), reverse=True)


def detach(folder: Path) -> None:
    """Unmounts everything below a folder and lets its loop devices go. Raises FleetctlError naming what is stuck."""
    for point in mounted(folder):
        if run(["umount", str(point)], check=False).returncode != 0:
            run(["umount", "--lazy", str(point)], step="unmount")
    deadline = time.monotonic() + LETTING_GO
    while left := loops(folder):
        for device in left:
            run(["losetup", "--detach", device], check=False)
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    if left:
        raise FleetctlError(f"loop devices are still in use: {', '.join(left)}", step="lab down")


def loops(folder: Path) -> list[str]:
    """Loop devices whose file lies, or lay, below a folder."""
    below = str(folder.absolute()) + os.sep
    found = []
    for line in run(["losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE"]).stdout.decode().splitlines():
        name, _, file = line.strip().partition(" ")
        if file.strip().startswith(below):
            found.append(name)
    return found
