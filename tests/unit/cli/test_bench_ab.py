"""`bench ab` and `bench cross-check` on the command line: what is refused before any connection, what is shown."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleetctl.bench.ab import Ab
from fleetctl.bench.samples import Run, Writer, encode, read
from fleetctl.cli import app, bench_ab, bench_choice, deploy
from fleetctl.cli.options import Options
from fleetctl.errors import LockedError, UnreachableError, UsageError
from fleetctl.fleet.fleet import Fleet
from tests.unit.bench import test_ab as made


def settings(**given: Any) -> Any:
    return bench_choice.scenario_of(Ab, bench_choice.Choice("ab", (), given, None, 1, None, None, 60.0))


def test_arms_lengths_and_instances_are_read_from_the_command_line() -> None:
    assert settings() == Ab((3, 4, 5), "", 5000, (10_000, 240_000), 4, 0)
    found = settings(arms="0,4", lengths="2K", tokens=50, times=2, passes=3, backend="67,68/1")
    assert found == Ab((0, 4), "67,68/1", 50, (2000,), 2, 3)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ab", "--arms", "4"], "two different numbers"),
        (["ab", "--arms", "4,4"], "two different numbers"),
        (["ab", "--arms", "3,16"], "from 0 to 15"),
        (["ab", "--arms", "3,x"], "a whole number"),
        (["ab", "--rate", "3"], "bench ab has no --rate"),
        (["ab", "--backend", "70/1"], 'no machine or instance "70/1"'),
        (["ab", "--restore", "--tokens", "5"], "takes nothing else"),
        (["soak", "--restore"], "are for `bench ab`"),
        (["soak", "--dry-run"], "are for `bench ab`"),
        (["soak", "--cross-check"], "a cell of its own"),
        (["cross-check", "--lengths", "10K"], "bench cross-check has no --lengths"),
        ([], "bench needs a name"),
    ],
)
def test_what_cannot_be_is_refused_before_any_connection(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    assert app.run(["bench", *words, "-i", str(fleet.path)]) == 2
    assert said in capsys.readouterr().err


def test_a_fleet_that_does_not_speculate_has_no_arms(fleet: Fleet) -> None:
    plain = Fleet(fleet.inventory.model_copy(update={"speculative": None}), fleet.path)
    with pytest.raises(UsageError, match="does not speculate"):
        bench_ab._named(plain, "")


def test_who_runs_which_arm_when_is_shown_before_anybody_is_asked(fleet: Fleet, tmp_path: Path) -> None:
    chosen = fleet.on(67)[:2]
    rounds = ({"67/0": 3, "67/1": 4}, {"67/0": 4, "67/1": 3})
    study = bench_ab.Study(Ab((3, 4)), "bench ab", chosen, rounds, tmp_path / "run", 4, "0123abcd")
    assert bench_ab.shown(study).splitlines()[1:] == [
        "67/0      mtp 3    mtp 4",
        "67/1      mtp 4    mtp 3",
        "4 starts of engines, each drained before; afterwards mtp 4 again, as released",
    ]
    assert study.path(2) == tmp_path / "run-round2.jsonl"


def written(folder: Path, **changes: Any) -> list[Path]:
    paths = []
    for run in made.all_rounds(**changes):
        path = folder / f"ab-round{run.header.parameters['number']}.jsonl"
        writer = Writer(path, run.header)
        for sample in run.samples:
            writer.sample(sample)
        writer.end(run.end or {})
        paths.append(path)
    return paths


def test_all_rounds_are_shown_together_and_one_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = written(tmp_path, slower=5)
    assert app.run(["bench", "show", *map(str, paths)]) == 0
    said = capsys.readouterr().out
    assert "mtp 3 faster by 10." in said
    assert "ab: OK" in said
    assert app.run(["bench", "show", str(paths[0])]) == 0
    assert "round 1 of 3" in capsys.readouterr().out


def test_files_that_are_not_the_rounds_of_one_experiment_are_not_shown_together(tmp_path: Path) -> None:
    paths = written(tmp_path)
    runs = [read(path) for path in paths]
    with pytest.raises(UsageError, match="one file a round"):
        bench_ab.show(Options(), [runs[0], runs[0]], [paths[0], paths[0]])
    runs[1].header.parameters["experiment"] = "another"
    with pytest.raises(UsageError, match="the rounds of one bench ab"):
        bench_ab.show(Options(), runs, paths)
    assert encode(runs[0].samples[0])["cell"] == "S0"


class Flow:
    """`bench ab` with a fleet that does as it is told: what was done, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fleet: Fleet, folder: Path) -> None:
        self.done: list[str] = []
        self.change: Any = lambda number: 0
        self.partial: str | None = None
        self.back: Any = lambda: 0
        self.silent: dict[int, UnreachableError] = {}
        rounds = tuple(made.ab.rounds(made.IDS, made.ARMS, 1, seed=1))
        self.study = bench_ab.Study(Ab(), "bench ab", fleet.instances[:8], rounds, folder / "run", 4, "0123abcd")
        self.session: Any = SimpleNamespace(
            fleet=fleet,
            observe=lambda machines: self.session.errors.update(self.silent),
            require=lambda machines: None,
            lock=None,
            errors={},
            facts={machine: SimpleNamespace(experiment={}) for machine in fleet.machines},
        )
        for machine in {66, 67, 68, 69} - {one.machine for one in self.study.chosen}:
            self.session.facts[machine].experiment = None
        monkeypatch.setattr(bench_ab, "_change", self._change)
        monkeypatch.setattr(bench_ab, "_measure", self._measure)
        monkeypatch.setattr(deploy, "as_released", self._back)

    def _change(self, options: Options, session: object, study: object, number: int, machines: object) -> int:
        self.done.append(f"change {number}")
        code: int = self.change(number)
        return code

    def _measure(self, options: Options, choice: object, session: object, study: object, number: int) -> Run:
        self.done.append(f"measure {number}")
        run = made.a_round(number, dict(self.study.rounds[number - 1]))
        if self.partial is not None and run.end is not None:
            run.end |= {"partial": True, "reason": self.partial}
        return run

    def _back(self, options: Options, session: object, machines: tuple[int, ...], command: str) -> int:
        assert (options.yes, options.json) == (True, False)
        assert set(machines) == {one.machine for one in self.study.chosen} - set(self.silent)
        print("what a rollout prints")
        self.done.append("back")
        code: int = self.back()
        return code

    def run(self, **options: Any) -> int:
        return bench_ab._carry_out(Options(**options), settings_choice(), self.session, self.study)


def settings_choice() -> bench_choice.Choice:
    return bench_choice.Choice("ab", (), {}, None, 1, None, None, 60.0)


@pytest.fixture
def flow(monkeypatch: pytest.MonkeyPatch, fleet: Fleet, tmp_path: Path) -> Flow:
    return Flow(monkeypatch, fleet, tmp_path)


def test_after_the_last_round_all_is_put_back_and_the_document_is_alone_on_stdout(
    flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flow.run(json=True) == 0
    assert flow.done == ["change 1", "measure 1", "change 2", "measure 2", "change 3", "measure 3", "back"]
    document = json.loads(capsys.readouterr().out)
    assert document["scenario"] == "ab"
    assert len(document["samples"]) == 3


def test_a_step_that_fails_ends_it_and_all_is_put_back(flow: Flow) -> None:
    flow.change = lambda number: 1 if number == 2 else 0
    assert flow.run() == 1
    assert flow.done == ["change 1", "measure 1", "change 2", "back"]


def test_a_run_that_was_cut_short_ends_it_and_all_is_put_back(flow: Flow) -> None:
    flow.partial = "more than 20 requests failed (--max-errors)"
    assert flow.run() == 1
    assert flow.done == ["change 1", "measure 1", "back"]


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyError("a fault of our own")])
def test_a_full_disk_or_a_fault_of_our_own_ends_it_and_all_is_put_back(
    flow: Flow, fault: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(number: int) -> int:
        raise fault

    flow.change = fails
    assert flow.run() == 1
    assert flow.done == ["change 1", "back"]
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("where", ["change", "measure"])
def test_ctrl_c_puts_all_back_before_it_ends(flow: Flow, where: str) -> None:
    def interrupt(number: int) -> int:
        raise KeyboardInterrupt

    if where == "change":
        flow.change = interrupt
    else:
        flow.partial = "interrupted"
    assert flow.run() == 130
    assert flow.done[-1] == "back"


def test_who_has_lost_the_lock_touches_nothing_more(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    def lost() -> None:
        raise LockedError("the lock is no longer ours")

    flow.session.lock = SimpleNamespace(check=lost)
    flow.change = lambda number: 3
    assert flow.run() == 3
    assert flow.done == ["change 1"]
    assert "fleetctl bench ab --restore" in capsys.readouterr().err


def test_a_machine_that_died_does_not_keep_the_others_as_they_are(
    flow: Flow, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = flow.study.chosen[0].machine
    flow.silent = {gone: UnreachableError("no answer", machine=gone)}
    flow.change = lambda number: 4
    assert flow.run() == 4
    assert flow.done == ["change 1", "back"]
    assert "once it answers" in capsys.readouterr().err


def test_where_no_mark_was_written_nothing_is_put_back(flow: Flow) -> None:
    for facts in flow.session.facts.values():
        facts.experiment = None
    flow.change = lambda number: 1
    assert flow.run() == 1
    assert flow.done == ["change 1"]


def test_when_it_cannot_be_put_back_the_next_command_is_said(flow: Flow, capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise UnreachableError("no answer", machine=67)

    flow.back = fails
    assert flow.run() == 4
    said = capsys.readouterr()
    assert "fleetctl bench ab --restore" in said.err
    assert "mtp 3" in said.out, "what was measured is said all the same"
