"""`fleetctl bench NAME`: load on the fleet, its samples on disk, tables and verdicts from them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleetctl.cli.bench_choice import Choice, default_path, scenario_of
from fleetctl.cli.bench_fleet import about, eyes_of, in_use, target_of
from fleetctl.cli.bench_text import Progress, comparison_text, result_text
from fleetctl.cli.change import with_session
from fleetctl.cli.options import READS, Options, taking
from fleetctl.cli.output import dump
from fleetctl.errors import UsageError
from fleetctl.plan.session import Session

if TYPE_CHECKING:
    from fleetctl.bench.samples import Run
    from fleetctl.bench.scenarios import Scenario
    from fleetctl.bench.target import Target
    from fleetctl.cli.bench_cross import Serve


@taking(*READS, "yes", "dry_run", "quiet", "wait_lock")
def bench(
    options: Options,
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
    max_foreign: Annotated[
        int | None,
        typer.Option("--max-foreign", min=0, help="The run ends when others have more in flight.", show_default=False),
    ] = None,
) -> int:
    """Measure the fleet under load, honestly: distribution, affinity, scaling, soak ... (docs/bench.md)."""
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
    chosen = "cross-check" if cross_check else name
    choice = Choice(chosen, tuple(files or ()), said, url, seed, out, max_errors, max_seconds, max_foreign)
    if (restore or options.dry_run) and chosen != "ab":
        raise UsageError("--restore and --dry-run are for `bench ab`")
    return _restore(options, choice) if restore else _dispatch(options, choice)


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


def _run(
    options: Options,
    choice: Choice,
    session: Session,
    scenario: Scenario,
    rival_of: Callable[[Session, Any, int], Serve] | None = None,
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
    rival = rival_of(session, settled, choice.seed) if rival_of is not None else None
    eyes = replace(eyes, rival=rival)
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
    limits = Limits(errors=errors, seconds=choice.max_seconds, foreign=choice.max_foreign)
    progress = Progress(options.voice, settled)
    try:
        run = perform(settled, target, header, path, eyes=eyes, limits=limits, tick=progress)
    finally:
        progress.end()
        if rival is not None:
            rival.stop()
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


def _print(options: Options, run: Run, path: Path) -> int:
    """The tables or the document; plots beside the samples. 0 when nothing failed, 1 otherwise."""
    from fleetctl.bench.plot import plots
    from fleetctl.bench.results import result

    found = result(run)
    drawn = []
    for name, text in plots(run).items():
        file = path.with_name(f"{path.stem}-{name}.svg")
        try:
            file.write_text(text, encoding="utf-8")
            drawn.append(str(file))
        except OSError as error:  # somebody else's folder: the tables are what was asked for
            options.voice.line(f"no plot: {error}")
    if options.json:
        about = {"samples": str(path), "plots": drawn, "header": {**run.header.encode(), "kind": None}}
        print(dump({"schema": 1, **found.document(), **about}))
    else:
        print(result_text(found))
        options.voice.line("\n".join([f"samples: {path}", *(f"plot: {file}" for file in drawn)]))
    return 0 if found.verdict in ("ok", "partial") else 1


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
