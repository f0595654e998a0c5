"""`restart balancer` and `start balancer`: the real scripts, with a systemctl that knows one unit."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from fleetctl.errors import FleetctlError
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan import actions
from fleetctl.plan.executor import Executor
from fleetctl.remote.connection import Result

from .test_expand import context, whole

SYSTEMCTL = """#!/bin/sh
cd {folder}
echo "$1" >>asked
case "$*" in
is-active*) [ -e active ] ;;
*ExecStartPre*)
	echo "{{ path={folder}/nginx ; argv[]={folder}/nginx -t -q -c {folder}/nginx.conf ; ignore_errors=no ; pid=1 ; status=0 }}"
	;;
*Result*) echo success ;;
restart*|start*)
	rm -f active
	./nginx -t >journal 2>&1 || {{ echo "Job for it failed. See systemctl status" >&2; exit 1; }}
	touch active
	;;
esac
"""
NGINX = """#!/bin/sh
if grep -q garbage {folder}/nginx.conf; then echo '[emerg] unknown directive "garbage"' >&2; exit 1; fi
"""


class Machine:
    """The balancer's, with a unit that `nginx.conf` decides about."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.has("systemctl", SYSTEMCTL)
        self.has("nginx", NGINX)
        self.has("journalctl", "#!/bin/sh\ncase $* in --sync) ;; *) cat {folder}/journal ;; esac\n")
        (folder / "nginx.conf").write_text("good\n")
        (folder / "active").touch()

    def has(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text.format(folder=self.folder))
        (self.folder / name).chmod(0o755)

    def __getitem__(self, machine: int) -> Machine:
        return self

    def run(self, script: str, *, timeout: float, stdin: bytes = b"") -> Result:
        text = script.replace("/run/fleetctl", str(self.folder)).replace("/var/lib/fleetctl", str(self.folder))
        environment = {**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", text], input=stdin, capture_output=True, check=False, env=environment)
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode(), 0)

    @property
    def active(self) -> bool:
        return (self.folder / "active").exists()

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().split()

    def applied(self, fleet: Fleet) -> Path:
        """Its files were applied; the path of a Lua file."""
        (self.folder / "keys.lua").write_text("good\n")
        files = [self.folder / "keys.lua", self.folder / "nginx.conf"]
        listed = subprocess.run(["sha256sum", *files], capture_output=True, check=True).stdout
        (self.folder / fleet.name).mkdir()
        (self.folder / fleet.name / "balancer.sha256").write_bytes(listed)
        return files[0]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def done(fleet: Fleet, machine: Machine, verb: str, *, active: bool = True) -> FleetctlError | None:
    facts, unit = whole(fleet), fleet.inventory.balancer.unit
    if not active:
        known = {**facts[69].units, unit: replace(facts[69].units[unit], active="inactive")}
        facts[69] = replace(facts[69], units=known)
    plan = actions.balancer(context(fleet, facts, (69,)), verb, f"{verb} balancer")
    executor = Executor("f", machine, lambda: None, lambda target, words: None)  # type: ignore[arg-type, return-value]
    return next((result.error for result in executor.execute(plan) if result.error), None)


def test_a_balancer_that_serves_is_not_stopped_for_files_that_nginx_refuses(fleet: Fleet, machine: Machine) -> None:
    (machine.folder / "nginx.conf").write_text("garbage\n")
    error = done(fleet, machine, "restart")
    assert machine.active
    assert "restart" not in (machine.folder / "asked").read_text().split()
    assert error is not None
    assert 'unknown directive "garbage"' in error.cause
    assert error.state == "the balancer runs on"
    assert error.next_command is not None
    assert error.next_command.startswith("fleetctl rollout --resume")


@pytest.mark.parametrize("verb", ["restart", "start"])
def test_one_that_does_not_start_says_why_in_the_words_of_nginx(fleet: Fleet, machine: Machine, verb: str) -> None:
    (machine.folder / "nginx.conf").write_text("garbage\n")
    (machine.folder / "active").unlink()
    error = done(fleet, machine, verb)
    assert error is not None
    assert 'is down: [emerg] unknown directive "garbage"' in error.cause
    assert error.next_command is not None
    assert error.next_command.startswith("fleetctl rollout --resume")


@pytest.mark.parametrize("verb", ["restart", "start"])
def test_a_good_one_starts(fleet: Fleet, machine: Machine, verb: str) -> None:
    assert done(fleet, machine, verb) is None
    assert machine.active
    assert verb in (machine.folder / "asked").read_text().split()


@pytest.mark.parametrize("text", ["this is not lua\n", None])
@pytest.mark.parametrize(("verb", "active"), [("restart", True), ("restart", False), ("start", False)])
def test_a_lua_file_that_is_not_as_it_was_applied_is_not_started(
    fleet: Fleet, machine: Machine, verb: str, active: bool, text: str | None
) -> None:
    """`nginx -t` compiles no Lua: a restart would end what serves for something that does not start."""
    lua = machine.applied(fleet)
    lua.unlink() if text is None else lua.write_text(text)
    if not active:
        (machine.folder / "active").unlink()
    error = done(fleet, machine, verb, active=active)
    assert machine.active == active
    assert verb not in machine.asked
    assert error is not None
    assert f"{lua} is not as it was applied" in error.cause
    assert error.state == ("the balancer runs on" if active else "nothing was changed")
    assert error.next_command is not None
    assert error.next_command.startswith("fleetctl rollout --resume")


def test_a_good_configuration_that_was_changed_by_hand_is_for_nginx_to_judge(fleet: Fleet, machine: Machine) -> None:
    machine.applied(fleet)
    (machine.folder / "nginx.conf").write_text("good too\n")
    assert done(fleet, machine, "restart") is None
    assert "restart" in machine.asked


def test_start_leaves_one_that_serves_alone_whatever_its_files_are(fleet: Fleet, machine: Machine) -> None:
    machine.applied(fleet).write_text("this is not lua\n")
    assert done(fleet, machine, "start") is None
