"""`add-machine`, `rollout` and `plan`."""

from __future__ import annotations

from collections.abc import Sequence

from fleetctl.cli.change import Options, around, carry_out, with_session
from fleetctl.cli.output import dump
from fleetctl.errors import CommandError, UsageError
from fleetctl.fleet import lint, overrides, targets
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.plan import expand, playbook, release
from fleetctl.plan.context import Context
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
    wanted = overrides.overrides(mtp, image, settings)
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
        return _deploy(options, session, "rollout", command, chosen(session.fleet), wanted)

    return with_session(options, lambda fleet: around(fleet, chosen(fleet)), act)


def _deploy(
    options: Options,
    session: Session,
    book: str,
    command: str,
    machines: Sequence[int],
    wanted: Overrides | None,
) -> int:
    steps = playbook.load(book, set(STEPS), session.fleet.path.parent)
    _ = session.key  # a missing secret is said before any connection is used
    everybody = around(session.fleet, machines)
    session.observe(everybody, wanted)
    session.require(everybody)
    context = session.context(machines, command, new_release=True)
    plan = expand.expand(steps, context, command)
    if plan.operations:
        session.inspect(everybody)
        session.require(everybody)
        context = session.context(machines, command, new_release=True)
        if problems := _problems(session, context):
            _refuse(options, problems, command)
        plan = expand.expand(steps, context, command)
    if session.release is not None and context.release is not None and session.release.number != context.release.number:
        old, new = session.release.overrides, context.release.overrides
        options.voice.line(f"release {context.release.number}: {release.words(new)} (before: {release.words(old)})")
    return carry_out(options, session, plan)


def _problems(session: Session, context: Context) -> dict[int, list[str]]:
    """What is wrong with the machines, the inventory and the flags, by machine; the fleet's own under its source."""
    problems = expand.problems(context)
    found = [str(f) for f in [*lint.lint(session.fleet), *session.lint_model()] if f.severity is lint.Severity.ERROR]
    found += session.lint_engine(context)
    if found:
        problems.setdefault(context.source, []).extend(found)
    return problems


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
