"""What is noted of the balancer's files when they are applied: the real scripts and probe, with dash and sha256sum."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

from fleetctl.commands import probe
from fleetctl.commands.script import Script, Word
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load
from fleetctl.observe import observe
from fleetctl.plan import desired
from fleetctl.plan.context import archive

ROOT = Path(__file__).parents[2]
SHELL = shutil.which("dash") or "/bin/sh"
UNIT = "lb.service"
SYSTEMCTL = """#!/bin/sh
case $1 in
start | reload | restart) [ ! -e "$BED/refuses" ] ;;
show) echo success ;;
esac
"""
OLD = {"nginx.conf": "old\n", "lua/keys.lua": "old keys\n", "settings.lua": "return {}\n"}
NEW = {"nginx.conf": "new\n", "lua/keys.lua": "new keys\n", "lua/more.lua": "more\n", "settings.lua": "return {}\n"}


@dataclass
class Bed:
    root: Path

    @property
    def folder(self) -> Path:
        return self.root / "etc/fleetctl/qwen38/balancer"

    @property
    def list(self) -> Path:
        return self.root / "var/lib/fleetctl/qwen38/balancer.sha256"

    def sh(self, text: str, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
        known = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}", "BED": str(self.root), **environment}
        return subprocess.run([SHELL, "-c", text], input=stdin, capture_output=True, env=known, check=False)

    def script(self, name: str, *args: Word, stdin: bytes = b"") -> int:
        return self.sh(Script(name, args).text, stdin).returncode

    def tar(self, files: dict[str, str], stale: dict[str, str] | None = None) -> bytes:
        """`stale`: those of the files that are sent."""
        listed = desired.applied(PurePosixPath(self.folder), files)
        return archive({**(files if stale is None else stale), desired.APPLIED: listed})

    def apply(self, files: dict[str, str], stale: dict[str, str] | None = None, *, refused: bool = False) -> None:
        mark = self.root / "refuses"
        mark.touch() if refused else mark.unlink(missing_ok=True)
        tar = self.tar(files, stale)
        assert self.script("balancer_apply", str(self.folder), UNIT, "reload", str(self.list), stdin=tar) == refused

    def restore(self) -> None:
        assert self.script("balancer_restore", str(self.folder), UNIT, str(self.list)) == 0

    def holds(self, files: dict[str, str]) -> bool:
        """The list says what these files are, and they are so."""
        listed = self.list.read_text().splitlines()
        names = {line[66:] for line in listed}
        checked = subprocess.run(["sha256sum", "-c", "--quiet", self.list], capture_output=True, check=False)
        return checked.returncode == 0 and names == {f"{self.folder}/{name}" for name in files}

    def seen(self, fleet: Fleet, **environment: str) -> dict[str, str] | None:
        """As the probe of `status` says it, by name."""
        text = probe.status(fleet, fleet.machines[69]).replace("/var/lib/fleetctl", f"{self.root}/var/lib/fleetctl")
        text = text.replace("/run/fleetctl", f"{self.root}/run/fleetctl")
        found = observe.parse(69, self.sh(text, **environment).stdout.decode()).balancer_files
        return None if found is None else {path.removeprefix(f"{self.folder}/"): how for path, how in found.items()}

    @property
    def left(self) -> set[str]:
        """Names of what is there, but for the folder's own files and those of the apply before."""
        found = {path.name for path in self.list.parent.iterdir()}
        found |= {path.name for path in self.folder.iterdir()} | {path.name for path in self.folder.parent.iterdir()}
        return found - {"balancer", "balancer.previous", "nginx.conf", "lua", "settings.lua"}


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    (tmp_path / "run").mkdir()
    (tmp_path / "bin").mkdir()
    for name, text in (
        ("systemctl", SYSTEMCTL),
        ("journalctl", "#!/bin/sh\n"),
        ("curl", "#!/bin/sh\ncat >/dev/null\n"),
    ):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return Bed(tmp_path)


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return load(ROOT / "inventory.yaml")


def test_all_files_are_listed_whichever_were_sent(bed: Bed) -> None:
    bed.apply(OLD)
    assert bed.holds(OLD)
    (bed.folder / "peers").write_text("whoever joins\n")
    bed.apply({**OLD, "lua/keys.lua": "other keys\n"}, {"lua/keys.lua": "other keys\n"})
    assert bed.holds(OLD)
    bed.apply(OLD, {})
    assert not bed.holds(OLD), "what was meant is listed, not what is there"
    assert bed.left == {"peers", "balancer.sha256", "balancer.sha256.previous"}


def test_an_apply_that_is_refused_leaves_the_list_of_the_files_that_are_back(bed: Bed) -> None:
    bed.apply(OLD, refused=True)
    assert not bed.list.exists()
    bed.apply(OLD)
    bed.apply(NEW, refused=True)
    assert bed.holds(OLD)
    bed.apply(NEW)
    assert bed.holds(NEW)


def test_an_apply_that_does_not_load_is_taken_back_with_its_list(bed: Bed) -> None:
    bed.apply(OLD)
    bed.apply(NEW)
    bed.restore()
    assert bed.holds(OLD)


def test_files_of_an_older_fleetctl_that_come_back_have_no_list(bed: Bed) -> None:
    bed.apply(OLD)
    bed.list.unlink()
    bed.apply(NEW)
    bed.restore()
    assert (bed.folder / "nginx.conf").read_text() == "old\n"
    assert not bed.list.exists()


def test_what_was_changed_by_hand_before_an_apply_that_failed_is_still_said(bed: Bed, fleet: Fleet) -> None:
    bed.apply(OLD)
    (bed.folder / "nginx.conf").write_text("by hand\n")
    bed.apply(NEW, refused=True)
    assert bed.seen(fleet) == {"nginx.conf": "changed"}


def test_a_tar_that_does_not_arrive_changes_nothing(bed: Bed) -> None:
    bed.apply(OLD)
    done = bed.script("balancer_apply", str(bed.folder), UNIT, "reload", str(bed.list), stdin=b"no tar" * 1000)
    assert done != 0
    assert bed.holds(OLD)


def test_a_list_that_cannot_be_written_changes_nothing(bed: Bed) -> None:
    bed.apply(OLD)
    tar = bed.tar(NEW)
    nowhere = bed.root / "bin/systemctl/list"
    assert bed.script("balancer_apply", str(bed.folder), UNIT, "reload", str(nowhere), stdin=tar) != 0
    assert bed.holds(OLD)


def test_the_probe_says_what_differs_and_what_is_gone(bed: Bed, fleet: Fleet) -> None:
    assert bed.seen(fleet) is None, "an older fleetctl left no list"
    bed.apply(NEW)
    assert bed.seen(fleet) == {}
    with (bed.folder / "nginx.conf").open("a") as file:
        file.write("# by hand\n")
    (bed.folder / "lua/more.lua").unlink()
    expected = {"nginx.conf": "changed", "lua/more.lua": "missing"}
    assert bed.seen(fleet) == expected
    assert bed.seen(fleet, LC_ALL="de_DE.UTF-8", LANGUAGE="de") == expected
    bed.list.write_text("no list any more\n")
    assert bed.seen(fleet) is None


def test_the_other_probes_ask_it_too_and_other_machines_do_not(fleet: Fleet) -> None:
    for ask in (probe.status, probe.state, probe.full):
        assert ask(fleet, fleet.machines[69]).count("sha256sum -c") == 1
        assert "sha256sum -c" not in ask(fleet, fleet.machines[67])
