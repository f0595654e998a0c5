"""`add-machine`, `rollout` and `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fleetctl.cli.change import Options, around, carry_out, with_session
from fleetctl.cli.output import dump
from fleetctl.errors import CommandError, UsageError
from fleetctl.fleet import targets
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan import expand, playbook, release
from fleetctl.plan.session import Session
from fleetctl.plan.steps import STEPS


def add_machine(options: Options, words: Sequence[str]) -> int:
    """Machines join with the release in force."""
    if not words:
        raise UsageError("no machine named", next_command="fleetctl add-machine 67")
    command = " ".join(["add-machine", *words])

    def act(session: Session) -> int:
        return _deploy(options, session, "add-machine", command, targets.machines(session.fleet, words), None)

    return with_session(options, lambda fleet: around(fleet, targets.machines(fleet, words)), act)


def rollout(
    options: Options, words: Sequence[str], *, mtp: int | None, image: str | None, settings: Sequence[str]
) -> int:
    """The inventory plus the overrides given here become the desired state of every machine named."""
    overrides = Overrides(mtp, image, parse_settings(settings))
    parts = ["rollout"] + ([f"--mtp {mtp}"] if mtp is not None else []) + ([f"--image {image}"] if image else [])
    command = " ".join(
        [
            *parts,
            *(f"--set {item}" for item in settings),
            *([f"--machines {','.join(words)}"] if words else []),
        ]
    )

    def chosen(fleet: Fleet) -> tuple[int, ...]:
        if mtp is not None and fleet.inventory.speculative is None:
            raise UsageError("--mtp: this fleet does not speculate (the inventory has no `speculative:`)")
        return targets.machines(fleet, words) if words else tuple(fleet.machines)

    def act(session: Session) -> int:
        return _deploy(options, session, "rollout", command, chosen(session.fleet), overrides)

    return with_session(options, lambda fleet: around(fleet, chosen(fleet)), act)


def parse_settings(settings: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """`engine.max-num-seqs=16` -> (("max-num-seqs", 16),). Raises UsageError for anything else."""
    import yaml

    from fleetctl.fleet.flags import check_overrides

    found = {}
    for item in settings:
        key, equals, value = item.partition("=")
        section, dot, name = key.partition(".")
        if not equals or not dot or section != "engine" or not name:
            raise UsageError(f"--set {item}: it has to be engine.KEY=VALUE")
        found[name] = yaml.safe_load(value)
    check_overrides(found)
    return tuple(sorted(found.items()))


def _deploy(
    options: Options,
    session: Session,
    book: str,
    command: str,
    machines: Sequence[int],
    overrides: Overrides | None,
) -> int:
    steps = playbook.load(book, set(STEPS), session.fleet.path.parent)
    _ = session.key  # a missing secret is said before any connection is used
    everybody = around(session.fleet, machines)
    before = session.release
    session.full(everybody, overrides)
    session.require(everybody)
    context = session.context(machines, command, new_release=True)
    problems = expand.problems(context)
    flag_problems = session.lint_engine(context)
    if flag_problems:
        problems.setdefault(context.source, []).extend(flag_problems)
    if problems:
        _refuse(options, problems, command)
    plan = expand.expand(steps, context, command)
    del before
    if session.release is not None and context.release is not None and session.release.number != context.release.number:
        old, new = session.release.overrides, context.release.overrides
        options.voice.line(f"release {context.release.number}: {release.words(new)} (before: {release.words(old)})")
    return carry_out(options, session, plan)


def _refuse(options: Options, problems: dict[int, list[str]], command: str) -> None:
    """Everything that is wrong at once; nothing was changed."""
    lines = [f"{machine}: {problem}" for machine, listed in problems.items() for problem in listed]
    if options.json:
        print(
            dump(
                {
                    "schema": 1,
                    "command": command,
                    "exit": 1,
                    "problems": [{"machine": m, "problem": p} for m, found in problems.items() for p in found],
                }
            )
        )
        raise SystemExit(_tell(lines, command))
    raise CommandError(
        "not ready:\n" + "\n".join(f"  {line}" for line in lines),
        state="nothing was changed",
        next_command=f"mend these, then fleetctl {command}",
    )


def _tell(lines: Sequence[str], command: str) -> int:
    import sys

    print("\n".join(lines), file=sys.stderr)
    print(f"  next:  mend these, then fleetctl {command}", file=sys.stderr)
    return 1
