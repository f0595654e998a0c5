"""`bench ab`: a crossover of engine settings over the fleet's instances, and the way back from it.

One command under the fleet's lock: mark, change, measure, change, measure ..., back to the release in force. Killed in
between, `bench ab --restore` (or `rollout --resume`) does the last part (docs/decisions/bench-ab.md).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleetctl.cli import deploy
from fleetctl.cli.bench_choice import Choice, default_path
from fleetctl.cli.bench_fleet import about, eyes_of, in_use, target_of
from fleetctl.cli.bench_text import Progress, result_text
from fleetctl.cli.change import around, ask, exit_code, with_session
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump, table
from fleetctl.errors import CommandError, FleetctlError, UsageError
from fleetctl.fleet import lint, overrides, targets
from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.plan import arms as changes
from fleetctl.plan import expand, instances, playbook
from fleetctl.plan.context import Context
from fleetctl.plan.experiment import Experiment
from fleetctl.plan.session import Session, now, who
from fleetctl.plan.steps import STEPS

if TYPE_CHECKING:
    from fleetctl.bench.ab import Ab
    from fleetctl.bench.load import Load
    from fleetctl.bench.rounds import Round
    from fleetctl.bench.samples import Run

RESTORE = "bench ab --restore"


@dataclass(frozen=True)
class Study:
    """One experiment: who runs which arm when, where the samples of each round go, and what the release has."""

    settings: Ab
    command: str
    chosen: tuple[Instance, ...]
    rounds: tuple[Mapping[str, int], ...]
    stem: Path
    in_force: int
    experiment: str

    @property
    def machines(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(one.machine for one in self.chosen))

    def path(self, number: int) -> Path:
        return self.stem.with_name(f"{self.stem.name}-round{number}.jsonl")


def run(options: Options, choice: Choice, settings: Ab) -> int:
    """0: measured and all is back; 1: a check or a step failed; 130: interrupted. Raises UsageError, CommandError."""
    _check_arms(settings.arms)
    command = f"bench ab --arms {','.join(map(str, settings.arms))}"
    command += f" --backend {settings.backend}" if settings.backend else ""
    return with_session(
        options,
        lambda fleet: around(fleet, {one.machine for one in _named(fleet, settings.backend)}),
        lambda session: _study(options, choice, session, settings, command),
        changes=command,
    )


def restore(options: Options) -> int:
    """Everything that a `bench ab` changed and did not put back is as the release in force has it."""
    return with_session(
        options,
        lambda fleet: fleet.machines,
        lambda session: _back(options, session, tuple(session.fleet.machines)),
        RESTORE,
    )


def _back(options: Options, session: Session, machines: Sequence[int]) -> int:
    """Those of these machines that have a mark, as released. 4 when one could not be asked: the others are put back."""
    session.errors.clear()
    session.observe(machines)
    silent = dict(session.errors)
    marked = [m for m in machines if m not in silent and session.facts[m].experiment is not None]
    code = deploy.as_released(options, session, marked, RESTORE) if marked else 0
    if not marked and not silent:
        options.voice.line("nothing to restore: no bench ab left anything behind")
    for error in silent.values():
        error.next_command = f"fleetctl {RESTORE}, once it answers"
        print(f"error: {error}", file=sys.stderr)
    return code or exit_code((), silent.values())


def _check_arms(arms: Sequence[int]) -> None:
    if len(set(arms)) != len(arms) or len(arms) < 2:
        raise UsageError(f"--arms {','.join(map(str, arms))}: two different numbers of speculative tokens or more")
    for arm in arms:
        overrides.overrides(arm, None, [])


def _named(fleet: Fleet, backend: str) -> tuple[Instance, ...]:
    if fleet.inventory.speculative is None:
        raise UsageError("bench ab: this fleet does not speculate (the inventory has no `speculative:`)")
    words = [word for word in backend.split(",") if word]
    return targets.resolve(fleet, words).instances if words else fleet.instances


def _study(options: Options, choice: Choice, session: Session, settings: Ab, command: str) -> int:
    _ = session.key
    everybody = around(session.fleet, {one.machine for one in _named(session.fleet, settings.backend)})
    session.observe(everybody)
    session.require(everybody)
    context = session.context(everybody, command, new_release=False)
    _refuse_what_is_half_done(session, context)
    study = _design(choice, session, context, settings, command)
    _refuse_what_cannot_be(session, context, study)
    _aimed(session, choice, study)
    options.voice.line(shown(study))
    if options.dry_run:
        return _dry(options, study)
    _confirm(options, session, choice, study)
    return _carry_out(options, choice, session, study)


def _refuse_what_is_half_done(session: Session, context: Context) -> None:
    """The state before has to be the release in force, whole: it is what is gone back to."""
    left = [machine for machine, facts in context.facts.items() if facts.experiment is not None]
    if left:
        raise UsageError(
            f"a bench ab was left half way on {', '.join(map(str, left))}",
            state="nothing was changed",
            next_command=f"fleetctl {RESTORE}",
        )
    current = session.release
    steps = playbook.load("rollout", set(STEPS), session.fleet.path.parent)
    open_work = expand.expand(steps, context, "rollout").operations
    if current is None or current.outcome != "good" or current.whole is None or open_work:
        what = f": {open_work[0].target}: {open_work[0].summary}" if open_work else ""
        raise UsageError(
            f"the fleet is not as its release wants it{what}",
            state="nothing was changed; what ran before could not be put back",
            next_command="fleetctl rollout --resume, then this again",
        )


def _design(choice: Choice, session: Session, context: Context, settings: Ab, command: str) -> Study:
    from fleetctl.bench import ab

    chosen = changes.candidates(context, _named(context.fleet, settings.backend))
    if not chosen:
        raise UsageError("no instance of these takes requests", next_command="fleetctl status")
    rounds = ab.rounds([one.id for one in chosen], settings.arms, settings.passes, choice.seed)
    path = choice.out or default_path(context.fleet, "ab")
    run = session.lock.run if session.lock is not None else ""
    study = Study(settings, command, chosen, tuple(rounds), path.with_suffix(""), context.fleet.tokens or 0, run)
    for number in range(1, len(rounds) + 1):
        if study.path(number).exists():
            raise UsageError(f"{study.path(number)} is there already: samples are never overwritten")
    return study


def _refuse_what_cannot_be(session: Session, context: Context, study: Study) -> None:
    """What would stop it half way is said before anything is changed: arms that no engine takes, load, machines."""
    session.inspect(context.machines)
    session.require(context.machines)
    found = [f"{machine}: {problem}" for machine, own in expand.problems(context).items() for problem in own]
    for arm in study.settings.arms:
        fleet = context.fleet.with_overrides(replace(context.fleet.overrides, tokens=arm))
        found += [f"mtp {arm}: {one}" for one in lint.lint(fleet) if one.severity is lint.Severity.ERROR]
    found += [busy] if (busy := instances.no_room(context)) is not None else []
    if found:
        raise CommandError(
            "not ready:\n" + "\n".join(f"  {line}" for line in dict.fromkeys(found)),
            state="nothing was changed",
            next_command=f"mend these, then fleetctl {study.command}",
        )


def _aimed(session: Session, choice: Choice, study: Study) -> None:
    """Raises CommandError or UsageError where no load can be aimed, or a prompt does not fit: before any change."""
    from fleetctl.bench.target import Sessions

    target = target_of(session, choice.url)
    _round(study, 1).settled(target)
    sessions = Sessions(target, choice.seed)
    wanted = {one.id for one in study.chosen}
    for backend in target.backends:
        if backend.id in wanted:
            sessions.on(backend)


def _round(study: Study, number: int) -> Round:
    from fleetctl.bench.rounds import Round

    own, arms, count = study.settings, study.rounds[number - 1], len(study.rounds)
    return Round(arms, own.arms, number, count, own.tokens, own.lengths, own.times, study.in_force, study.experiment)


def shown(study: Study) -> str:
    """The order, for people: a row an instance."""
    head = ("INSTANCE", *(f"ROUND {number}" for number in range(1, len(study.rounds) + 1)))
    rows = [[one.id, *(f"mtp {arms[one.id]}" for arms in study.rounds)] for one in study.chosen]
    starts = len(study.chosen) * len(study.rounds)
    words = f"{starts} starts of engines, each drained before; afterwards mtp {study.in_force} again, as released"
    return "\n".join([table(head, rows), words])


def _dry(options: Options, study: Study) -> int:
    if options.json:
        rounds = [dict(arms) for arms in study.rounds]
        print(dump({"schema": 1, "command": study.command, "arms": list(study.settings.arms), "rounds": rounds}))
    return 0


def _confirm(options: Options, session: Session, choice: Choice, study: Study) -> None:
    busy = in_use(eyes_of(session, target_of(session, choice.url)))
    words = {None: "it cannot be seen whether it is in use", 0: "nobody else is using it now"}
    use = words.get(busy, f"IT IS IN USE: {busy} foreign requests within a second")
    options.voice.line(f"bench ab restarts instances of fleet {session.fleet.name}; {use}")
    ask(options, f"Restart and load fleet {session.fleet.name}?", study.command)


def _carry_out(options: Options, choice: Choice, session: Session, study: Study) -> int:
    """The rounds, then the way back whatever happened; then what was measured is said."""
    runs: list[Run] = []
    code, interrupted = 0, False
    try:
        code = _rounds(options, choice, session, study, runs)
    except KeyboardInterrupt:
        interrupted = True
        options.voice.line(f"interrupted: putting all back; interrupt again to leave it (fleetctl {RESTORE})")
    except FleetctlError as error:
        code = error.exit_code
        print(f"error: {error}", file=sys.stderr)
    except Exception as error:  # a full disk, a fault of our own: the fleet is put back all the same
        code = 1
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
    back = _put_back(options, session, study)
    interrupted = interrupted or any(run.partial == "interrupted" for run in runs)
    said = _say(options, runs, [study.path(number) for number in range(1, len(runs) + 1)])
    return 130 if interrupted else back or code or said


def _rounds(options: Options, choice: Choice, session: Session, study: Study, runs: list[Run]) -> int:
    everybody = around(session.fleet, study.machines)
    for number, arms in enumerate(study.rounds, 1):
        if code := _change(options, session, study, number, everybody):
            return code
        options.voice.line(f"round {number} of {len(study.rounds)}: measuring {len(arms)} instances")
        session.observe(everybody)
        session.require(everybody)
        runs.append(_measure(options, choice, session, study, number))
        if runs[-1].partial is not None:
            options.voice.line(f"round {number}: {runs[-1].partial}")
            return 1
    return 0


def _change(options: Options, session: Session, study: Study, number: int, everybody: Sequence[int]) -> int:
    """Every instance to its arm of this round. Returns the exit code."""
    from fleetctl.cli.progress import shown as bars

    context = session.context(everybody, study.command, new_release=False)
    mark = _mark(session, study) if number == 1 else None
    words = f"{study.command} (round {number} of {len(study.rounds)})"
    plan = changes.change(context, study.rounds[number - 1], words, mark)
    with bars(options.voice, as_json=options.json) as session.progress:
        results = session.execute(plan)
    for result in results:
        if result.error is not None:
            result.error.next_command = result.error.next_command or f"fleetctl {study.command}"
            print(f"error: {result.error}", file=sys.stderr)
    return exit_code(results)


def _mark(session: Session, study: Study) -> Experiment:
    current, ids = session.release, tuple(one.id for one in study.chosen)
    number = current.number if current is not None else 0
    return Experiment(study.experiment, now(), who(), study.settings.arms, ids, number)


def _measure(options: Options, choice: Choice, session: Session, study: Study, number: int) -> Run:
    from fleetctl.bench import scenarios
    from fleetctl.bench.load import Limits
    from fleetctl.bench.perform import perform
    from fleetctl.bench.samples import Header

    target = target_of(session, choice.url)
    settled = _round(study, number).settled(target)
    # No one number of speculative tokens is that of a round: they are in its parameters.
    known: dict[str, Any] = {**about(session, target), "tokens": None}
    parameters = scenarios.parameters(settled)
    header = Header("ab", choice.seed, parameters, target.model, target.url, **known)
    progress = Progress(options.voice, settled)

    def tick(load: Load) -> None:
        progress(load)
        if session.lock is not None and session.lock.lost.is_set():
            load.stop("the fleet's lock is no longer ours")

    errors = 20 if choice.max_errors is None else choice.max_errors
    limits = Limits(errors=errors, seconds=choice.max_seconds, foreign=choice.max_foreign)
    eyes = eyes_of(session, target)
    try:
        return perform(settled, target, header, study.path(number), eyes=eyes, limits=limits, tick=tick)
    finally:
        progress.end()


def _put_back(options: Options, session: Session, study: Study) -> int:
    """The release in force again; what it prints belongs to the chatter. Returns the exit code."""
    chatter = replace(options, json=False, yes=True)
    try:
        if session.lock is not None:
            session.lock.check()  # whoever holds it now must not find us at work
        with contextlib.redirect_stdout(sys.stderr):
            return _back(chatter, session, around(session.fleet, study.machines))
    except FleetctlError as error:
        error.state = error.state or "instances still run with other speculative tokens than the release"
        error.next_command = f"fleetctl {RESTORE}"
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _say(options: Options, runs: Sequence[Run], files: Sequence[Path]) -> int:
    """Tables and verdicts of all rounds. 0 when nothing failed, 1 otherwise."""
    from fleetctl.bench.ab_result import analysis

    if not runs:
        if options.json:
            print(dump({"schema": 1, "scenario": "ab", "verdict": "failed", "partial": "no round was measured"}))
        return 1
    found, names = analysis(runs), [str(file) for file in files]
    print(dump({"schema": 1, **found.document(), "samples": names}) if options.json else result_text(found))
    options.voice.line("\n".join(f"samples: {name}" for name in names))
    return 0 if found.verdict in ("ok", "partial") else 1


def show(options: Options, runs: Sequence[Run], files: Sequence[Path]) -> int:
    """`bench show` of all rounds of one experiment. Raises UsageError for files of different ones."""
    if len({run.header.parameters.get("experiment") for run in runs}) > 1 or runs[0].header.scenario != "ab":
        raise UsageError("several files are shown together only when they are the rounds of one bench ab")
    numbers = [run.header.parameters["number"] for run in runs]
    if len(set(numbers)) != len(numbers):
        raise UsageError(f"one file a round: these are of rounds {', '.join(map(str, numbers))}")
    return _say(options, runs, files)
