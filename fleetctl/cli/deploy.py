"""`add-machine`, `rollout` and `plan`."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fleetctl.cli import hint
from fleetctl.cli.change import around, carry_out, with_session
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump
from fleetctl.errors import CommandError, FleetctlError, UsageError
from fleetctl.fleet import lint, overrides, targets
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.fleet.schema import SHARE
from fleetctl.plan import adopt as adopting
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
        return _deploy(options, session, "add-machine", command, targets.machines(session.fleet, words), Asked())

    return with_session(options, lambda fleet: around(fleet, targets.machines(fleet, words)), act, changes=command)


def rollout(
    options: Options,
    words: Sequence[str],
    *,
    mtp: int | None,
    image: str | None,
    settings: Sequence[str],
    forward: bool = False,
    resume: bool = False,
    on_failure: str = "stop",
    plan_id: str | None = None,
    canary: str | None = None,
    max_unavailable: str | None = None,
    adopt: bool = False,
) -> int:
    """The inventory plus the overrides given here become the desired state of every machine named.

    `forward`: also over a rollback. `resume`: the release in force instead. `on_failure`: stop, or rollback
    of what this command changed. `plan_id`: only if the plan is still the one that was shown. `canary`: the instance
    that is changed first; `max_unavailable`: a number or a share, in place of the inventory's.
    `adopt`: what was built by hand under the fleet's names is taken over.
    """
    if max_unavailable is not None and not re.fullmatch(SHARE, max_unavailable):
        raise UsageError(
            f"--max-unavailable {max_unavailable}: a number of instances such as 2, or a share such as 25%"
        )
    if resume and (mtp is not None or image or settings):
        raise UsageError("--resume finishes the release in force: it takes no --mtp, --image or --set")
    wanted = overrides.overrides(mtp, image, settings)
    parts = ["rollout"] + ([f"--mtp {mtp}"] if mtp is not None else []) + ([f"--image {image}"] if image else [])
    command = " ".join(
        [
            *parts,
            *(f"--set {shlex.quote(item)}" for item in settings),
            *(["--resume"] if resume else []),
            *([f"--machines {','.join(words)}"] if words else []),
            *(["--adopt"] if adopt else []),
        ]
    )

    def chosen(fleet: Fleet) -> tuple[int, ...]:
        if mtp is not None and fleet.inventory.speculative is None:
            raise UsageError("--mtp: this fleet does not speculate (the inventory has no `speculative:`)")
        return targets.machines(fleet, words) if words else tuple(fleet.machines)

    def act(session: Session) -> int:
        machines = chosen(session.fleet)
        first = _canary(session.fleet, canary) if canary else None
        asked = Asked(
            None if resume else wanted,
            forward=forward,
            plan_id=plan_id,
            canary=first,
            max_unavailable=max_unavailable,
            adopt=adopt,
            typed=" ".join(
                [
                    command,
                    *([f"--canary {canary}"] if canary else []),
                    *([f"--max-unavailable {max_unavailable}"] if max_unavailable else []),
                    *([f"--on-failure {on_failure}"] if on_failure != "stop" else []),
                    *([f"--plan {plan_id}"] if plan_id else []),
                ]
            ),
        )
        if on_failure != "rollback":
            return _deploy(options, session, "rollout", command, machines, asked)
        documents: list[dict[str, Any]] = []
        code = _deploy(options, session, "rollout", command, machines, asked, documents.append)
        if code in (1, 4):
            code = _undo(options, session, machines, code, documents.append)
        if options.json and documents:  # what was rolled back is part of the answer, not another one
            print(dump({**documents[0], "exit": code, "rollback": documents[1] if len(documents) > 1 else None}))
        return code

    return with_session(options, lambda fleet: around(fleet, chosen(fleet)), act, changes=command)


def rotate_key(options: Options) -> int:
    """Every instance changes to the key that `secrets.api_key` gives; until the last has, the old one is good too."""
    command = "key rotate"

    def act(session: Session) -> int:
        if session.fleet.inventory.balancer.mode == "plain":
            raise UsageError(
                "a balancer without Lua passes on whatever key it is sent: it cannot hold two",
                state="nothing was changed",
                next_command="fleetctl rollout --resume changes the key; requests are refused while it does",
            )
        return _deploy(options, session, "rollout", command, tuple(session.fleet.machines), Asked())

    return with_session(options, lambda fleet: fleet.machines, act, changes=command)


def rollback(options: Options, number: int | None, words: Sequence[str] = ()) -> int:
    """Back to a release that proved good; without a number to the last one that asked for something else.

    `words`: only these machines, because others are dead.
    """
    only = f" --machines {','.join(words)}" if words else ""
    command = f"rollback{'' if number is None else f' {number}'}{only}"

    def chosen(fleet: Fleet) -> tuple[int, ...]:
        return targets.machines(fleet, words) if words else tuple(fleet.machines)

    def act(session: Session) -> int:
        machines = chosen(session.fleet)
        everybody = around(session.fleet, machines)
        session.observe(everybody)
        session.require(everybody)
        target = _target(session, number, machines, options.voice.line)
        asked = Asked(release.going_back(session.fleet, target.whole or release.Whole()), back_to=target.number)
        return _deploy(options, session, "rollout", f"rollback {target.number}{only}", machines, asked)

    return with_session(options, lambda fleet: around(fleet, chosen(fleet)), act, changes=command)


def as_released(options: Options, session: Session, machines: Sequence[int], command: str) -> int:
    """Every instance of these machines as the release in force had it, also when the inventory has moved on."""
    everybody = around(session.fleet, machines)
    session.observe(everybody)
    session.require(everybody)
    current, asked = session.release, Asked(as_it_was=True)
    if current is not None and current.whole is not None and not current.whole.alike(release.whole(session.fleet)):
        asked = Asked(release.going_back(session.fleet, current.whole), back_to=current.number)
    return _deploy(options, session, "rollout", command, machines, asked)


@dataclass(frozen=True)
class Asked:
    """What a command wants the desired state to be. `overrides` None: that of the release in force.

    `as_it_was`: that release stays what it is, with its date and its command. `typed`: the command with every flag.
    """

    overrides: Overrides | None = None
    forward: bool = True
    back_to: int | None = None
    plan_id: str | None = None
    canary: str | None = None
    max_unavailable: str | None = None
    as_it_was: bool = False
    adopt: bool = False
    typed: str = ""


def _canary(fleet: Fleet, word: str) -> str:
    """The instance that a word names. Raises UsageError when it names none, or several."""
    found = targets.resolve(fleet, [word]).instances
    if len(found) != 1:
        raise UsageError(f"--canary {word}: name one instance, such as {fleet.instances[0].id}")
    return found[0].id


def _target(
    session: Session, number: int | None, machines: Sequence[int], say: Callable[[str], None]
) -> release.Release:
    """The release that these machines go back to. Raises UsageError when there is none that proved good on all."""
    everywhere, good = session.proved, release.proved_on(session.proved, machines)
    if number is not None:
        if number in good:
            return good[number]
        if number in everywhere:
            raise _on_some(session.fleet, everywhere[number], machines)
        known = ", ".join(map(str, good)) or "none"
        raise UsageError(f"release {number} did not prove good on all its instances; those that did: {known}")
    current = session.release
    if current is not None and current.outcome == "good" and current.back_to is not None:
        # Typed twice, by two people who were woken, it would lead forward again.
        known = ", ".join(f"{one.number} ({one.command})" for one in good.values())
        raise UsageError(
            f"release {current.number} is a way back already, to release {current.back_to}: where to from there?",
            state="nothing was changed",
            next_command=f"fleetctl rollback NUMBER; proved good: {known}",
        )
    found, partial = release.last_good(good, current), release.last_good(everywhere, current)
    if found is None and partial is not None:
        raise _on_some(session.fleet, partial, machines)
    if found is None:
        raise UsageError(
            "there is no earlier release that proved good and asked for something else",
            next_command="fleetctl history",
        )
    if partial is not None and partial.number > found.number and (parts := release.partly(partial, machines)):
        say(f"release {partial.number} is passed over: it did not prove good on {parts[1]}")
    return found


def _on_some(fleet: Fleet, target: release.Release, machines: Sequence[int]) -> UsageError:
    """A release that proved good on other machines than these, or on some of them only."""
    own, out = release.partly(target, fleet.machines) or ("", "")
    where = f"on {own}, and not on {out}" if own else f"not on {out}"
    able = [machine for machine in machines if machine not in target.left_out]
    back = f"fleetctl {release.back_command(target.number, able, fleet.machines)}" if able else "fleetctl history"
    return UsageError(
        f"release {target.number} ({target.command}) proved good {where}",
        state="nothing was changed",
        next_command=back,
    )


def _undo(
    options: Options, session: Session, machines: Sequence[int], code: int, tell: Callable[[dict[str, Any]], None]
) -> int:
    """After a failure: what this command changed goes back to the last good release. 5 when that worked, else 1.

    Machines that have died meanwhile stay as they are: the others are not left half way because of them.
    """
    session.observe(around(session.fleet, machines))
    current, good = session.release, session.proved
    before = good.get(current.number) if current is not None else None
    # What had proved this very release before was not changed by this command.
    machines = [machine for machine in machines if before is None or machine in before.left_out]
    dead = [machine for machine in machines if machine in session.errors]
    rest = [machine for machine in machines if machine not in dead]
    target = release.undone_by(release.proved_on(good, rest), current)
    if current is None or target is None or not rest:
        options.voice.line("no rollback: nothing new was rolled out, or no release before it proved good")
        return code
    without = f", without {', '.join(map(str, dead))}: no answer" if dead else ""
    options.voice.line(f"release {current.number} failed: back to release {target.number}{without}")
    command = release.back_command(target.number, rest, session.fleet.machines)
    asked = Asked(release.going_back(session.fleet, target.whole or release.Whole()), back_to=target.number)
    try:
        done = _deploy(replace(options, yes=True), session, "rollout", command, rest, asked, tell)
    except FleetctlError as error:
        print(f"error: {hint.pasteable(error, options.inventory)}", file=sys.stderr)
        return 1
    return 5 if done == 0 and not dead else 1


def _deploy(
    options: Options,
    session: Session,
    book: str,
    command: str,
    machines: Sequence[int],
    asked: Asked,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> int:
    """Look, plan, refuse or carry out. `tell` gets the JSON document of what was done in place of stdout."""
    steps = playbook.load(book, set(STEPS), session.fleet.path.parent)
    _ = session.key  # a missing secret is said before any connection is used
    everybody = around(session.fleet, machines)
    session.observe(everybody, asked.overrides)
    session.require(everybody)
    _forward_only(session, asked)
    context = _context(session, machines, command, asked)
    plan = expand.expand(steps, context, command)
    if plan.operations:
        session.inspect(everybody)
        session.require(everybody)
        context = _context(session, machines, command, asked)
        if problems := _problems(session, context):
            _refuse(options, problems, command)
        plan = expand.expand(steps, context, command)
    if session.release is not None and context.release is not None and session.release.number != context.release.number:
        old, new = session.release.overrides, context.release.overrides
        options.voice.line(f"release {context.release.number}: {release.words(new)} (before: {release.words(old)})")
    if asked.plan_id is not None and asked.plan_id != plan.id:
        raise UsageError(
            f"plan {asked.plan_id} is out of date: the machines, the inventory or the release have changed since",
            state=f"nothing was changed; the plan is {plan.id} now",
            next_command=f"fleetctl {command} --dry-run",
        )
    return carry_out(options, session, plan, context.release, tell)


def _context(session: Session, machines: Sequence[int], command: str, asked: Asked) -> Context:
    found = session.context(machines, command, new_release=True, back_to=asked.back_to)
    current, ours = session.release, found.release
    if asked.as_it_was and current is not None and ours is not None and ours.number == current.number:
        found = replace(found, release=replace(current, outcome="running", left_out=ours.left_out))
    found = replace(found, canary=asked.canary, max_unavailable=asked.max_unavailable, adopt=asked.adopt)
    return adopting.begun(found) if asked.adopt else found


def _forward_only(session: Session, asked: Asked) -> None:
    """After a rollback nobody rolls out by accident what was left, nor an inventory that is ahead."""
    current = session.release
    if asked.forward or asked.overrides is None or current is None or current.back_to is None:
        return
    fleet = session.fleet
    if release.needed(fleet, asked.overrides) != release.needed(fleet, current.overrides):
        ahead = "the inventory is ahead of it" if release.ahead(fleet, current) else "this asks for something else"
        finish = ", or fleetctl rollout --resume to finish the rollback" if current.outcome != "good" else ""
        raise UsageError(
            f"release {current.number} went back to {current.back_to}: {ahead}",
            state="nothing was changed",
            next_command=f"fleetctl {asked.typed} --forward{finish}",
        )


def _problems(session: Session, context: Context) -> dict[int, list[str]]:
    """What is wrong with the machines, the inventory and the flags, by machine; the fleet's own under its source."""
    problems = expand.problems(context)
    findings = [*lint.lint(session.fleet), *session.lint_model()]
    if expand.needs_weights(context):
        findings += session.lint_weights()
    found = [str(f) for f in findings if f.severity is lint.Severity.ERROR]
    found += session.lint_engine(context)
    if found:
        problems.setdefault(context.source, []).extend(found)
    return problems


def _refuse(options: Options, problems: dict[int, list[str]], command: str) -> None:
    """Everything that is wrong at once; nothing was changed."""
    problems = {m: [hint.whole(problem, options.inventory) for problem in found] for m, found in problems.items()}
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
        raise SystemExit(_tell(lines, hint.whole(f"fleetctl {command}", options.inventory)))
    raise CommandError(
        "not ready:\n" + "\n".join(f"  {line}" for line in lines),
        state="nothing was changed",
        next_command=f"mend these, then fleetctl {command}",
    )


def _tell(lines: Sequence[str], command: str) -> int:
    print("\n".join(lines), file=sys.stderr)
    print(f"  next:  mend these, then {command}", file=sys.stderr)
    return 1
