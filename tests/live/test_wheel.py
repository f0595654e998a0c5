"""What is installed is whole."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_playbooks_units_and_scripts_travel_in_the_wheel(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", tmp_path, ROOT], check=True, capture_output=True
    )
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    for name in (
        "playbooks/rollout.yaml",
        "units/instance.service.j2",
        "units/lua/routing.lua",
        "commands/scripts/gate.sh",
    ):
        assert f"fleetctl/{name}" in names
