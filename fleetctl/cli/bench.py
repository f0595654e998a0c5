"""`fleetctl bench NAME`: load on the fleet, its samples on disk, tables and verdicts from them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.bench_fleet import about, eyes_of, in_use, target_of
from fleetctl.cli.change import Options, with_session
from fleetctl.cli.options import WaitLock
from fleetctl.cli.output import Voice, dump, table
from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet
from fleetctl.plan.session import Session

if TYPE_CHECKING:
    from fleetctl.bench.compare import Comparison
    from fleetctl.bench.load import Load
    from fleetctl.bench.samples import Run
    from fleetctl.bench.scenarios import Rival, Scenario
    from fleetctl.bench.tables import Column, Result
    from fleetctl.bench.target import Target

PROGRESS_SECONDS = 10.0  # between lines where standard error is no terminal
SCALE = {"k": 1000, "m": 1_000_000}


@dataclass(frozen=True)
class Choice:
    """What the command line says about the run itself. `given`: options of the scenario, by field name."""

    name: str
    files: tuple[Path, ...]
    given: dict[str, Any]
    url: str | None
    seed: int
    out: Path | None
    max_errors: int | None
    max_seconds: float


def bench(
    name: Annotated[
        str, typer.Argument(help="A scenario (docs/bench.md), ab, cross-check, compare A B, or show FILE.")
    ] = "",
    files: Annotated[list[Path] | None, typer.Argument(help="Of compare and show.", show_default=False)] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", help="instance, mixed, failover: such as 67/2. ab: several times.", show_default=False
        ),
    ] = None,
    arms: Annotated[str | None, typer.Option("--arms", help="ab: speculative tokens, such as 3,4,5.")] = None,
    restore: Annotated[bool, typer.Option("--restore", help="ab: put back what one that died left behind.")] = False,
    cross_check: Annotated[
        bool, typer.Option("--cross-check", help="The image's own `vllm bench serve` beside ours, on an instance.")
    ] = False,
    users: Annotated[str | None, typer.Option("--users", help="Concurrent users, such as 1,2,4,8.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="Output tokens of a request.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", min=1, help="Of a cell; of a soak.")] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.01, help="Requests per second.")] = None,
    keys: Annotated[int | None, typer.Option("--keys", min=1, help="distribution: sessions.")] = None,
    sessions: Annotated[int | None, typer.Option("--sessions", min=1, help="affinity, failover.")] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", min=1, help="sequential, cross-check: how many.")
    ] = None,
    lengths: Annotated[str | None, typer.Option("--lengths", help="longctx, ab: tokens, such as 10K,240K.")] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", help="mixed: tokens of the long prompt.")] = None,
    times: Annotated[
        int | None, typer.Option("--times", min=1, help="mixed, longctx, ab, cross-check: how often.")
    ] = None,
    passes: Annotated[
        int | None, typer.Option("--passes", min=1, help="scaling: over all levels. ab: over all arms.")
    ] = None,
    window: Annotated[float | None, typer.Option("--window", min=1, help="soak: seconds.")] = None,
    apart: Annotated[float | None, typer.Option("--apart", min=1, help="mixed: seconds between prompts.")] = None,
    after: Annotated[float | None, typer.Option("--after", min=1, help="failover: seconds at most.")] = None,
    whole: Annotated[bool, typer.Option("--no-stream", help="scaling: answers in one piece.")] = False,
    url: Annotated[str | None, typer.Option("--url", help="Instead of public_url or the balancer's.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of prompts, sessions and arrivals.")] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="File for the samples.", show_default=False)] = None,
    max_errors: Annotated[int | None, typer.Option("--max-errors", min=0, help="Failed requests; 20.")] = None,
    max_seconds: Annotated[float, typer.Option("--max-seconds", min=1, help="The run ends then.")] = 7200,
    inventory: Annotated[Path | None, typer.Option("-i", "--inventory", show_default=False)] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="table or json.")] = "table",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="ab: print who would run which arm when.")] = False,
    wait_lock: WaitLock = 0,
) -> None:
    """Measure the fleet under load, honestly: distribution, affinity, scaling, soak ... (docs/bench.md)."""
    if output not in ("table", "json"):
        raise UsageError(f"-o {output}: there are table and json")
    if cross_check and name not in ("", "instance", "cross-check"):
        raise UsageError(f"bench {name} --cross-check: it has a cell of its own; fleetctl bench --cross-check")
    given = {
        "backend": ",".join(backend) if backend else None,
        "arms": arms,
        "users": users,
        "tokens": tokens,
        "seconds": seconds,
        "rate": rate,
        "keys": keys,
        "sessions": sessions,
        "requests": requests,
        "lengths": lengths,
        "prompt": prompt,
        "times": times,
        "passes": passes,
        "window": window,
        "apart": apart,
        "after": after,
        "stream": False if whole else None,
    }
    said = {key: value for key, value in given.items() if value is not None}
    options = Options(
        inventory=inventory, json=output == "json", yes=yes, quiet=quiet, dry_run=dry_run, wait_lock=wait_lock
    )
    chosen = "cross-check" if cross_check else name
    choice = Choice(chosen, tuple(files or ()), said, url, seed, out, max_errors, max_seconds)
    if (restore or dry_run) and chosen != "ab":
        raise UsageError("--restore and --dry-run are for `bench ab`")
    raise typer.Exit(_restore(options, choice) if restore else _dispatch(options, choice))


def _restore(options: Options, choice: Choice) -> int:
    """Needs no load engine: whoever has to put a fleet right has what deploys."""
    from fleetctl.cli import bench_ab

    if choice.given or choice.files:
        raise UsageError("bench ab --restore takes nothing else: it puts back all that was left behind")
    return bench_ab.restore(options)


def _dispatch(options: Options, choice: Choice) -> int:
    """Raises UsageError for a scenario that does not exist and for options that it does not have."""
    _require_engine()
    from fleetctl.bench import scenarios

    if choice.name == "compare":
        return _compare(options, choice)
    if choice.name == "show":
        return _show(options, choice)
    special = {"ab": _ab, "cross-check": _cross_check}
    if choice.name not in (*scenarios.ALL, *special):
        names = ", ".join((*scenarios.ALL, *special))
        raise UsageError(f"bench {choice.name or 'needs a name'}: there are {names}, compare and show")
    if choice.files:
        raise UsageError(f"bench {choice.name} takes no files")
    if choice.name in special:
        return special[choice.name](options, choice)
    scenario = scenario_of(scenarios.ALL[choice.name], choice)
    return with_session(options, lambda fleet: fleet.machines, lambda session: _run(options, choice, session, scenario))


def _ab(options: Options, choice: Choice) -> int:
    from fleetctl.bench.ab import Ab
    from fleetctl.cli import bench_ab

    settings: Any = scenario_of(Ab, choice)
    return bench_ab.run(options, choice, settings)


def _cross_check(options: Options, choice: Choice) -> int:
    from fleetctl.bench.rounds import CrossCheck
    from fleetctl.cli import bench_cross

    scenario = scenario_of(CrossCheck, choice)
    return with_session(
        options,
        lambda fleet: fleet.machines,
        lambda session: _run(options, choice, session, scenario, bench_cross.rival_of),
    )


def _require_engine() -> None:
    """The load engine is an extra: who only deploys does not need it (docs/decisions/load-engine.md)."""
    try:
        import aiohttp  # noqa: F401
        import orjson  # noqa: F401
        import uvloop  # noqa: F401
    except ImportError as error:
        raise UsageError(
            f"bench needs {error.name}, which is not installed", next_command="pip install 'fleetctl[bench]'"
        ) from None


def scenario_of(kind: type[Any], choice: Choice) -> Scenario:
    """The scenario with what was given on the command line. Raises UsageError for an option that it does not have."""
    known = {one.name: one for one in fields(kind)}
    values: dict[str, Any] = {}
    for name, value in choice.given.items():
        if name not in known:
            option = "--no-stream" if name == "stream" else f"--{name}"
            listed = ", ".join(f"--{one}" for one in known if one in OPTIONS)
            raise UsageError(f"bench {choice.name} has no {option}; it has {listed}")
        values[name] = _value(name, value, known[name].default)
    scenario: Scenario = kind(**values)
    return scenario


OPTIONS = (
    *("backend", "users", "tokens", "seconds", "rate", "keys", "sessions", "requests", "lengths", "prompt"),
    *("times", "passes", "window", "apart", "after", "arms"),
)


def _value(name: str, text: Any, default: Any) -> Any:
    """`1,2,4` for lists, `10K` for numbers of tokens."""
    if not isinstance(text, str) or isinstance(default, str):
        return text
    numbers = tuple(_number(name, part) for part in text.split(","))
    if isinstance(default, tuple):
        return numbers
    if len(numbers) != 1:
        raise UsageError(f"--{name} {text}: one number")
    return numbers[0]


def _number(name: str, text: str) -> int:
    digits, unit = (text[:-1], text[-1].lower()) if text[-1:].lower() in SCALE else (text, "")
    if not digits.isdigit() or (int(digits) == 0 and name != "arms"):
        raise UsageError(f"--{name} {text}: a whole number above zero, such as 8 or 10K")
    return int(digits) * SCALE.get(unit, 1)


def _run(
    options: Options,
    choice: Choice,
    session: Session,
    scenario: Scenario,
    rival_of: Callable[[Session, Any, int], Rival] | None = None,
) -> int:
    """`rival_of`: gives another client of the same instance, or raises CommandError where there is none."""
    from fleetctl.bench import scenarios
    from fleetctl.bench.load import Limits
    from fleetctl.bench.perform import perform
    from fleetctl.bench.samples import Header

    _ = session.key
    session.status(session.fleet.machines)
    session.require([session.fleet.inventory.balancer.machine])
    target = target_of(session, choice.url)
    settled = scenario.settled(target)
    eyes = eyes_of(session, target)
    if rival_of is not None:
        eyes = replace(eyes, rival=rival_of(session, settled, choice.seed))
    busy = in_use(eyes)
    _confirm(options, session, settled, target, busy)
    header = Header(
        scenario=choice.name,
        seed=choice.seed,
        parameters=scenarios.parameters(settled),
        model=target.model,
        url=target.url,
        foreign_before=busy,
        **about(session, target),
    )
    path = choice.out or default_path(session.fleet, choice.name)
    if path.exists():
        raise UsageError(f"{path} is there already: samples are never overwritten")
    errors = choice.max_errors if choice.max_errors is not None else 10_000 if choice.name == "failover" else 20
    limits = Limits(errors=errors, seconds=choice.max_seconds)
    progress = Progress(options.voice)
    run = perform(settled, target, header, path, eyes=eyes, limits=limits, tick=progress)
    progress.end()
    code = _print(options, run, path)
    return 130 if run.partial == "interrupted" else code


def _confirm(options: Options, session: Session, scenario: Scenario, target: Target, busy: int | None) -> None:
    """Raises UsageError on a fleet in use without --yes and without a terminal, or when the person says no."""
    words = {None: "it cannot be seen whether it is in use", 0: "nobody else is using it now"}
    use = words.get(busy, f"it is in use: {busy} foreign requests within a second")
    voice = options.voice
    voice.line(f"bench {scenario.name} on fleet {session.fleet.name}, {len(target.backends)} backends: {use}")
    kills = scenario.name == "failover"
    if kills:
        voice.line("this KILLS an instance that serves; its requests in flight are lost")
    if options.yes or (busy == 0 and not kills):
        return
    if not sys.stdin.isatty():
        again = f"fleetctl bench {scenario.name} --yes"
        raise UsageError(f"{use}, and there is no terminal to ask", next_command=again)
    sys.stderr.write(f"Load fleet {session.fleet.name} now? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was asked of the fleet")


def default_path(fleet: Fleet, name: str) -> Path:
    stamp = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return Path("bench") / f"{fleet.name}-{name}-{stamp}.jsonl"


class Progress:
    """One line on standard error: rewritten on a terminal, a new one every ten seconds elsewhere."""

    def __init__(self, voice: Voice) -> None:
        self.voice = voice
        self.live = not voice.quiet and sys.stderr.isatty()
        self._last = 0.0
        self._longest = 0

    def __call__(self, load: Load) -> None:
        now = load.now()
        done = len(load.samples)
        text = f"{now:6.0f} s  {load.cell:<16} {done} done, {load.in_flight} in flight, {load.errors} failed"
        if self.live:
            self._longest = max(self._longest, len(text))
            sys.stderr.write(f"\r{text:<{self._longest}}")
            sys.stderr.flush()
        elif now - self._last >= PROGRESS_SECONDS:
            self._last = now
            self.voice.line(text)

    def end(self) -> None:
        if self.live and self._longest:
            sys.stderr.write("\r" + " " * self._longest + "\r")


def _print(options: Options, run: Run, path: Path) -> int:
    """The tables or the document; plots beside the samples. 0 when nothing failed, 1 otherwise."""
    from fleetctl.bench.plot import plots
    from fleetctl.bench.results import result

    found = result(run)
    drawn = []
    for name, text in plots(run).items():
        file = path.with_name(f"{path.stem}-{name}.svg")
        file.write_text(text, encoding="utf-8")
        drawn.append(str(file))
    if options.json:
        about = {"samples": str(path), "plots": drawn, "header": {**run.header.encode(), "kind": None}}
        print(dump({"schema": 1, **found.document(), **about}))
    else:
        print(result_text(found))
        options.voice.line("\n".join([f"samples: {path}", *(f"plot: {file}" for file in drawn)]))
    return 0 if found.verdict in ("ok", "partial") else 1


def result_text(found: Result) -> str:
    """Verdict, checks, tables, notes."""
    lines = [f"{found.scenario}: {found.verdict.upper()}"]
    lines += [f"  ! INVALID, the client was the bottleneck: {reason}" for reason in found.invalid]
    lines += [f"  ! partial: {found.partial}"] if found.partial else []
    head = ("CHECK", "VERDICT", "EXPECTED", "SEEN", "N", "PROVES")
    rows = [(c.what, c.verdict, c.expected, c.seen, str(c.n), c.bound) for c in found.checks]
    lines += ["", table(head, rows, state_column=1)]
    for one in found.tables:
        shown = [[_cell(column, value) for column, value in zip(one.columns, row, strict=True)] for row in one.rows]
        names = [_title(column) for column in one.columns]
        lines += ["", one.title, table(names, shown)]
    lines += ["", *found.notes] if found.notes else []
    return "\n".join(lines)


def _title(column: Column) -> str:
    return f"{column.name}{column.suffix}"


def _cell(column: Column, value: Any) -> str:
    """A dash for what was not measured, or not often enough."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else column.text(value)


def _show(options: Options, choice: Choice) -> int:
    from fleetctl.bench.samples import read

    if len(choice.files) > 1:
        from fleetctl.cli import bench_ab

        return bench_ab.show(options, [read(file) for file in choice.files], choice.files)
    if not choice.files:
        raise UsageError("bench show takes a file of samples, or all rounds of one bench ab")
    return _print(options, read(choice.files[0]), choice.files[0])


def _compare(options: Options, choice: Choice) -> int:
    """0: compared, whatever came out; 1: refused."""
    from fleetctl.bench.compare import compare
    from fleetctl.bench.samples import read

    if len(choice.files) != 2:
        raise UsageError("bench compare takes two files of samples")
    found = compare(*(read(file) for file in choice.files))
    if options.json:
        rows = [{**row.__dict__, "difference": row.difference.__dict__} for row in found.rows]
        print(dump({"schema": 1, **found.__dict__, "rows": rows}))
    else:
        print(comparison_text(found))
    return 1 if found.refused else 0


def comparison_text(found: Comparison) -> str:
    lines = [f"differs: {what}" for what in found.subject]
    if found.refused:
        return "\n".join(["these runs cannot be compared:", *(f"  {why}" for why in found.refused), *lines])
    head = ("CELL", "MEASURE", "A", "B", "B-A %", "95 % FROM", "TO", "DETECTABLE %", "PAIRS", "VERDICT")
    rows = []
    for row in found.rows:
        difference = row.difference
        figures = (difference.percent, difference.low, difference.high, difference.detectable)
        shown = ["-" if figure is None else f"{figure:+.1f}" for figure in figures]
        unit = 1.0 if row.measure.startswith("tok") else 1000.0
        means = [f"{row.first * unit:.1f}", f"{row.second * unit:.1f}"]
        rows.append([row.cell, row.measure, *means, *shown, str(difference.n), row.verdict])
    return "\n".join([*lines, "", table(head, rows), "", "times in ms", *found.notes])
