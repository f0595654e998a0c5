"""The watchdog's script, run by dash on a machine of plain files, with systemctl, docker and curl that obey the test."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fleetctl.commands import paths, units
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.load import load

ROOT = Path(__file__).parents[2]
SHELL = shutil.which("dash") or "/bin/sh"
SYSTEMCTL = """\
#!/bin/sh
echo "systemctl $*" >>"$BED/did"
case "$1 $2 $3" in
"show -p InvocationID") cat "$BED/units/${5%.service}.run" ;;
"show -p "*)
	shift 3
	for unit; do
		name=${unit%.service}
		printf 'Id=%s\\nActiveState=%s\\nInvocationID=%s\\n\\n' "$unit" "$(cat "$BED/units/$name")" "$(cat "$BED/units/$name.run")"
	done ;;
esac
"""
DOCKER = """\
#!/bin/sh
echo "docker $*" >>"$BED/did"
case $1 in inspect) cat "$BED/left" ;; esac
"""
CURL = """\
#!/bin/sh
echo "curl $*" >>"$BED/did"
while IFS= read -r line; do
	case $line in
	'url = "http://'*/metrics'"') address=${line#*//} address=${address%%/*} ;;
	'url = '*) asked=yes ;;
	'output = "/dev/null"') ;;
	'output = '*)
		output=${line#*\\"} output=${output%\\"} name=${output##*/} name=${name%.metrics}
		if [ -e "$BED/metrics/$address" ]; then
			cp "$BED/metrics/$address" "$output"
			echo "$name 200"
		else
			echo "$name 000"
		fi ;;
	'header = "Authorization'*) echo "$line" >>"$BED/asked" ;;
	esac
done
[ -z "${asked:-}" ] || cat "$BED/answer"
"""


@pytest.fixture
def fleet() -> Fleet:
    return load(ROOT / "inventory.yaml")


def metrics(work: int = 0, steps: int = 0, drafts: int = 0, accepted: int = 0) -> str:
    """As vLLM 0.32 writes them (facts/vllm-0.32)."""
    engine = '{engine="0",model_name="Qwen3.8-27B-W8A8"}'
    return (
        f"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine} {float(work)}\n"
        f"vllm:num_requests_waiting{engine} 0.0\n"
        f'vllm:iteration_tokens_total_bucket{{engine="0",le="1.0"}} 7.0\n'
        f"vllm:iteration_tokens_total_count{engine} {float(steps)}\n"
        f"vllm:iteration_tokens_total_sum{engine} {float(steps)}\n"
        f"vllm:spec_decode_num_drafts_total{engine} {float(drafts)}\n"
        f"vllm:spec_decode_num_draft_tokens_total{engine} {4.0 * drafts}\n"
        f"vllm:spec_decode_num_accepted_tokens_total{engine} {float(accepted)}\n"
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="0"}} 3.0\n'
    )


@dataclass
class Machine:
    """Two instances of fleet `f`, `a` (67/0) and `b` (67/1); looks 20 s apart, T is 120 s, 600 s to load."""

    folder: Path
    now: int = 50_000
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("bin", "units", "metrics", "run/fleetctl", "proc", "etc/fleetctl/f", "var/lib/fleetctl/f"):
            (self.folder / name).mkdir(parents=True)
        for name, text in (("systemctl", SYSTEMCTL), ("docker", DOCKER), ("curl", CURL)):
            (self.folder / "bin" / name).write_text(text)
            (self.folder / "bin" / name).chmod(0o755)
        (self.folder / "etc/fleetctl/f/api-key").write_text("sk-watch\n")
        self.answer("200")
        (self.folder / "left").write_text("false\n")
        path = f"{self.folder}/bin:{os.environ['PATH']}"
        self.environment = {"PATH": path, "BED": str(self.folder), "WATCHDOG_ROOT": str(self.folder)}
        for name in ("a", "b"):
            self.unit(name, "active", f"{name}1")

    def unit(self, name: str, state: str, run: str) -> None:
        (self.folder / "units" / name).write_text(f"{state}\n")
        (self.folder / "units" / f"{name}.run").write_text(f"{run}\n")

    def shows(self, name: str, text: str | None) -> None:
        """What its /metrics answers, None for nothing."""
        path = self.folder / "metrics" / {"a": "10.0.0.1:8000", "b": "10.0.0.1:8001"}[name]
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.write_text(text)

    def answer(self, code: str) -> None:
        """To a question of one token; 000 for none within the time."""
        (self.folder / "answer").write_text(code)

    def look(self, *, per_hour: int = 2, later: int = 20) -> list[str]:
        """One look, `later` seconds after the last; what it did to units and containers."""
        self.now += later
        (self.folder / "proc/uptime").write_text(f"{self.now}.55 1.00\n")
        (self.folder / "did").write_text("")
        words = [SHELL, str(ROOT / "units/watchdog.sh"), "f", "120", "600", str(per_hour), "500", "M"]
        words += ["67/0=a=10.0.0.1:8000", "67/1=b=10.0.0.1:8001"]
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False, timeout=30)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        self.said = done.stdout
        did = (self.folder / "did").read_text().splitlines()
        return [line for line in did if not line.startswith(("systemctl show", "docker inspect", "curl"))]

    def looks(self, seconds: int) -> list[str]:
        return [line for _ in range(seconds // 20) for line in self.look()]

    @property
    def asked(self) -> int:
        path = self.folder / "asked"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def mark(self, kind: str, name: str) -> Path:
        return self.folder / "var/lib/fleetctl/f" / kind / name

    @property
    def audit(self) -> list[dict[str, object]]:
        path = self.folder / "var/lib/fleetctl/f/audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def hang(self, name: str, *, per_hour: int = 2) -> list[str]:
        """Looks until it is acted on, at the latest after five minutes."""
        steps = 1000 + self.now
        self.shows(name, metrics(3, steps))
        for _ in range(15):
            if did := self.look(per_hour=per_hour):
                return did
        return []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.shows("a", metrics())
    found.shows("b", metrics())
    return found


def test_an_engine_with_work_and_no_progress_is_killed_after_its_time_and_not_before(machine: Machine) -> None:
    machine.shows("b", metrics(4, 900))
    assert machine.looks(140) == []
    assert machine.look() == ["docker kill b"]
    assert "67/1: no progress with requests in flight for 120 s: restart" in machine.said


def test_a_busy_engine_that_makes_steps_is_left_alone(machine: Machine) -> None:
    for step in range(30):
        machine.shows("b", metrics(32, 900 + step))
        assert machine.look() == []


def test_slow_steps_shorter_than_its_time_are_progress(machine: Machine) -> None:
    for step in range(4):
        machine.shows("b", metrics(1, 900 + step))
        assert machine.looks(100) == []


def test_an_idle_engine_is_asked_for_one_token_once_in_a_while_and_left_alone(machine: Machine) -> None:
    assert machine.looks(600) == []
    assert 6 <= machine.asked <= 10


def test_an_engine_whose_gauges_read_nothing_hangs_when_it_leaves_a_question_unanswered(machine: Machine) -> None:
    machine.look()
    machine.answer("000")
    assert machine.looks(220) == []
    assert machine.look() == ["docker kill a"]
    assert "a question of one token has no answer" in machine.said


def test_the_key_is_in_no_argument(machine: Machine) -> None:
    machine.looks(160)
    assert machine.asked
    assert "sk-watch" in (machine.folder / "asked").read_text()
    assert "sk-watch" not in (machine.folder / "did").read_text()


def test_one_that_loads_is_left_alone_until_its_time_to_load_is_over(machine: Machine) -> None:
    machine.shows("b", None)
    assert machine.looks(720) == []
    assert machine.look() == ["docker kill b"]


def test_one_that_answered_and_whose_server_falls_silent_hangs(machine: Machine) -> None:
    machine.look()
    machine.shows("b", None)
    assert machine.looks(120) == []
    assert machine.look() == ["docker kill b"]


def test_one_without_counters_is_never_judged(machine: Machine) -> None:
    machine.shows("b", "python_info 1.0\n")
    machine.answer("000")
    for step in range(30):
        machine.shows("a", metrics(1, step))
        assert machine.look() == []


def test_what_was_stopped_on_purpose_is_left_alone(machine: Machine) -> None:
    machine.mark("stopped", "b").parent.mkdir()
    machine.mark("stopped", "b").write_text("{}")
    assert machine.hang("b") == []


def test_what_is_not_running_is_left_alone(machine: Machine) -> None:
    machine.shows("b", metrics(3, 5))
    machine.looks(100)
    for state in ("inactive", "failed", "activating", "deactivating"):
        machine.unit("b", state, "b1")
        assert machine.looks(200) == []


def test_nothing_is_done_while_a_step_of_fleetctl_holds_the_machine(machine: Machine) -> None:
    with (machine.folder / "run/fleetctl/f.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert machine.hang("b") == []
        assert "fleetctl is at work" in machine.said
        assert machine.audit == []
    assert machine.look() == ["docker kill b"]


def test_a_kill_that_did_not_work_is_followed_by_a_restart_of_the_unit(machine: Machine) -> None:
    (machine.folder / "left").write_text("true\n")
    assert machine.hang("b") == ["docker kill b", "systemctl restart --no-block b.service"]


def test_docker_is_asked_nothing_without_a_limit_while_the_machines_lock_is_held(machine: Machine) -> None:
    """A Docker that hangs would keep every command from the machine for as long as systemd lets the watchdog run."""
    limit = machine.folder / "bin/timeout"
    limit.write_text('#!/bin/sh\necho "timeout $*" >>"$BED/did"\nshift\nexec "$@"\n')
    limit.chmod(0o755)
    did = []
    machine.shows("b", metrics(4, 900))
    while not any(line.startswith("docker kill") for line in did):
        machine.look()
        did = (machine.folder / "did").read_text().splitlines()
    asked = [line for line in did if line.startswith("docker ")]
    assert [line.split(maxsplit=2)[2] for line in did if line.startswith("timeout ")] == asked
    assert len(asked) == 2


def test_its_line_in_the_audit_log_stands_alone_after_one_that_a_full_disk_cut(machine: Machine) -> None:
    log = machine.folder / "var/lib/fleetctl/f/audit.log"
    log.write_text('{"schema": 1, "run": "c", "ev')
    machine.hang("b")
    assert [line[:12] for line in log.read_text().splitlines()[1:]] == ['{"schema":1,', '{"schema":1,']


def test_it_is_parked_after_two_restarts_in_an_hour_and_says_why(machine: Machine) -> None:
    for run in ("b2", "b3"):
        assert machine.hang("b") == ["docker kill b"]
        machine.unit("b", "active", run)
    assert machine.hang("b") == ["docker kill b", "systemctl stop b.service"]
    mark = json.loads(machine.mark("parked", "b").read_text())
    assert mark["who"] == "watchdog"
    assert "no progress with requests in flight" in mark["reason"]
    assert "after 2 restarts within an hour" in mark["reason"]
    machine.unit("b", "inactive", "")
    assert machine.looks(400) == []
    assert machine.mark("parked", "b").exists()


def test_restarts_longer_ago_than_an_hour_are_forgotten(machine: Machine) -> None:
    for run in ("b2", "b3", "b4", "b5"):
        assert machine.hang("b") == ["docker kill b"]
        machine.unit("b", "active", run)
        machine.shows("b", metrics(1, machine.now))
        machine.look(later=1800)


def test_a_parked_one_that_somebody_starts_is_no_longer_parked_and_counts_anew(machine: Machine) -> None:
    assert machine.hang("b", per_hour=0) == ["docker kill b", "systemctl stop b.service"]
    machine.unit("b", "active", "b2")
    assert machine.look() == []
    assert not machine.mark("parked", "b").exists()
    assert machine.hang("b") == ["docker kill b"]


def test_never_two_at_a_time_on_a_machine(machine: Machine) -> None:
    machine.shows("a", metrics(1, 7))
    machine.shows("b", metrics(1, 7))
    did = machine.looks(160)
    assert did == ["docker kill a"]
    machine.unit("a", "activating", "a1")
    assert machine.looks(60) == []
    machine.unit("a", "active", "a2")
    machine.shows("a", None)
    assert machine.looks(60) == []
    assert "it waits until 67/0 is back" in machine.said
    machine.shows("a", metrics(0, 1))
    assert machine.look() == ["docker kill b"]


def test_one_that_drafts_for_nothing_is_restarted_when_it_is_idle_and_shown_until_then(machine: Machine) -> None:
    machine.shows("b", metrics(2, 1, drafts=100, accepted=50))
    machine.look()
    machine.shows("b", metrics(2, 2, drafts=700, accepted=50))
    assert machine.look() == []
    assert "none of its last 600 drafts was accepted" in machine.mark("doubtful", "b").read_text()
    machine.shows("b", metrics(0, 3, drafts=710, accepted=50))
    assert machine.look() == ["systemctl restart --no-block b.service"]


def test_drafts_that_are_accepted_again_end_the_doubt(machine: Machine) -> None:
    machine.shows("b", metrics(2, 1, drafts=100, accepted=50))
    machine.look()
    machine.shows("b", metrics(2, 2, drafts=700, accepted=50))
    machine.look()
    machine.shows("b", metrics(2, 3, drafts=720, accepted=90))
    assert machine.look() == []
    assert not machine.mark("doubtful", "b").exists()


def test_an_engine_without_speculation_is_not_in_doubt(machine: Machine) -> None:
    for step in range(20):
        machine.shows("b", metrics(2, step))
        assert machine.look() == []
    assert not machine.mark("doubtful", "b").exists()


def test_what_it_does_is_in_the_audit_log_like_any_command(machine: Machine) -> None:
    machine.hang("b")
    begin, end = machine.audit
    assert (begin["event"], begin["who"], begin["operations"]) == ("begin", "watchdog", 1)
    assert str(begin["command"]).startswith("watchdog restart 67/1 (no progress")
    assert (end["event"], end["outcome"], end["run"]) == ("end", "done", begin["run"])


def test_a_broken_memory_is_a_new_beginning(machine: Machine) -> None:
    machine.look()
    (machine.folder / "run/fleetctl/watchdog/f/b").write_text("")
    assert machine.look() == []


def test_the_unit_runs_it_for_the_instances_of_the_machine(fleet: Fleet) -> None:
    script, service, timer = units.watchdog(fleet, 67).values()
    assert script == (ROOT / "units/watchdog.sh").read_text()
    flat = " ".join(service.replace("\\\n", " ").split())
    assert f"ExecStart=/bin/sh {paths.watchdog(fleet)} qwen38 120 1800 2 500 Qwen3.8-27B-W8A8" in flat
    assert "67/3=qwen38-tp2-3=10.255.254.67:8003" in flat
    assert "68/" not in service
    assert "OnUnitInactiveSec=20\n" in timer


def test_looks_that_follow_each_other_closely_are_no_restart_loop_for_systemd(fleet: Fleet) -> None:
    _, service, _ = units.watchdog(fleet, 67).values()
    assert "StartLimitIntervalSec=0\n" in service.partition("[Service]")[0]
