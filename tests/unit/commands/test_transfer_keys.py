"""Lines of transfers in a user's authorized_keys."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from fleetctl.commands.script import Script

OWN = "ssh-ed25519 AAAAown me@laptop"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of root, as getent says."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/getent").write_text(f"#!/bin/sh\necho root:x:0:0::{tmp_path}/home:/bin/sh\n")
    (tmp_path / "bin/getent").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    (tmp_path / "home/.ssh").mkdir(parents=True)
    return tmp_path / "home"


def run(name: str, *args: str | int, stdin: str = "") -> None:
    subprocess.run(["sh", "-c", Script(name, args).text], input=stdin, text=True, check=True)


def allow(tag: str, hours: int = 24) -> None:
    run("transfer_allow", "root", tag, "10.0.0.7", 'x "y"', hours, stdin="ssh-ed25519 AAAAkey comment\n")


def test_a_key_gets_one_line_until_it_is_revoked_and_expired_ones_are_swept(home: Path) -> None:
    keys = home / ".ssh/authorized_keys"
    keys.write_text(OWN)  # no end of line
    allow("f-66-model", -1)
    allow("f-67-model")
    allow("f-67-model")
    own, line = keys.read_text().splitlines()
    assert own == OWN
    assert line.startswith('restrict,from="10.0.0.7",expiry-time="')
    assert line.endswith('",command="x \\"y\\"" ssh-ed25519 AAAAkey fleetctl-transfer:f-67-model')
    assert keys.stat().st_mode & 0o777 == 0o600
    run("transfer_revoke", "root", "f-67-model")
    assert keys.read_text() == f"{OWN}\n"


def test_keys_that_are_a_link_to_another_file_stay_one(home: Path) -> None:
    theirs = home.parent / "managed"
    theirs.write_text(f"{OWN}\n")
    (home / ".ssh/authorized_keys").symlink_to(theirs)
    allow("f-67-model")
    assert (home / ".ssh/authorized_keys").is_symlink()
    assert len(theirs.read_text().splitlines()) == 2
    run("transfer_revoke", "root", "f-67-model")
    assert (home / ".ssh/authorized_keys").is_symlink()
    assert theirs.read_text() == f"{OWN}\n"
