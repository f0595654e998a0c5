"""The first instance of a change is asked what a reader could check before the others follow. Pure.

An engine that loads and answers 200 may still serve rubbish: a wrong shard, a kernel that breaks with one flag, a
speculation that accepts nothing. The canary and a sibling, which runs what ran before, get the same questions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleetctl.commands import paths
from fleetctl.commands.script import Script
from fleetctl.fleet.instance import Instance
from fleetctl.observe.facts import parse_json
from fleetctl.observe.observe import sections
from fleetctl.observe.prompts import PROMPTS, Grade, body, judge
from fleetctl.plan.build import op
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Judgement, Operation, Run, Verdict
from fleetctl.plan.release import back_command, proved, proved_on, undone_by

SECONDS = 600.0
SLOWER = 3  # so many times slower than its sibling is no measurement any more, it is a fault
UNREAD_TOKENS = 32
MANY_DRAFTS = 20  # below, that nothing was accepted may be chance


@dataclass(frozen=True)
class Answers:
    """`texts` and `rates` (completion tokens a second) by question, None where there was no answer."""

    texts: tuple[str | None, ...]
    rates: tuple[float | None, ...]
    drafts: float | None
    accepted: float | None

    @property
    def rate(self) -> float | None:
        """The median."""
        known = sorted(rate for rate in self.rates if rate is not None)
        return known[len(known) // 2] if known else None


def read(text: str) -> Answers:
    """What `canary.sh` printed."""
    part = sections(text)
    texts: list[str | None] = []
    rates: list[float | None] = []
    for number in range(len(PROMPTS)):
        answer, _, last = part.get(f"answer-{number}", "").strip().rpartition("\n")
        code, _, seconds = last.partition(" ")
        said, tokens = _completion(parse_json(answer)) if code == "200" else (None, None)
        texts.append(said)
        rates.append(tokens / float(seconds) if said is not None and tokens and float(seconds) > 0 else None)
    counters: dict[str, float] = {}
    for name, value in re.findall(r"^vllm:spec_decode_num_(\w+?)_total\S* (\S+)$", part.get("counters", ""), re.M):
        counters[name] = counters.get(name, 0.0) + float(value)
    return Answers(tuple(texts), tuple(rates), counters.get("drafts"), counters.get("accepted_tokens"))


def _completion(document: Any) -> tuple[str | None, int | None]:
    """Text and completion tokens of a chat completion; None for what has another form."""
    match document:
        case {"choices": [{"message": dict() as message}, *_]}:
            text, usage = message.get("content") or "", document.get("usage")
            tokens = usage.get("completion_tokens") if isinstance(usage, dict) else None
            return (text if isinstance(text, str) else None), (tokens if isinstance(tokens, int) else None)
        case _:
            return None, None


def proves(which: Instance, speculates: bool, trained: bool = True) -> Callable[[str], Judgement]:
    """Judge the canary's answers, and its sibling's when they follow after a line of their own.

    Of a model that is not `trained` (random weights) only that it answers, and how fast.
    """

    def verdict(text: str) -> Judgement:
        own, _, others = text.partition("@@sibling\n")
        mine, other = read(own), read(others) if others else None
        return _judged(which, mine, other, speculates and trained, trained)

    return verdict


def _judged(which: Instance, mine: Answers, other: Answers | None, speculates: bool, trained: bool) -> Judgement:
    for number, prompt in enumerate(PROMPTS):
        text = mine.texts[number]
        if text is None:
            return Judgement(Verdict.DEAD, f"canary {which.id} gave no answer to `{prompt.text}`")
        if not trained:
            continue
        grade = judge(prompt, text, other.texts[number] if other else None)
        same_fault = other is not None and other.texts[number] is not None and judge(prompt, other.texts[number]).fails
        if grade is Grade.GARBLED or (grade.fails and not same_fault):
            return Judgement(
                Verdict.DEAD, f"canary {which.id} answers `{prompt.text}` with {grade.value}: {text[:120]!r}"
            )
    if speculates and mine.drafts is not None and mine.drafts >= MANY_DRAFTS and not mine.accepted:
        return Judgement(Verdict.DEAD, f"canary {which.id}: none of {mine.drafts:.0f} drafts was accepted (mtp)")
    if other is not None and mine.rate and other.rate and mine.rate * SLOWER < other.rate:
        words = f"canary {which.id} does {mine.rate:.1f} tokens/s, its sibling {other.rate:.1f}"
        return Judgement(Verdict.DEAD, words)
    return Judgement(Verdict.PASS, "")


def operation(context: Context, step: str, which: Instance, sibling: Instance | None) -> Operation:
    """Ask the canary, and on the same machine its sibling, which still runs what ran before."""
    fleet, trained = context.fleet, not context.fleet.inventory.model.random_weights
    # Nobody reads what random weights say, and they never come to an end.
    limit = {} if trained else {"max_tokens": UNREAD_TOKENS}
    requests = "".join(
        json.dumps({**body(prompt, fleet.inventory.model.name), **limit}, ensure_ascii=False) + "\n"
        for prompt in PROMPTS
    )
    urls = [f"http://{one.address}" for one in (which, sibling) if one is not None]
    script = Script("canary", (paths.api_key(fleet), *urls))
    judge = proves(which, bool(fleet.tokens), trained)
    left = f"{which.id} runs what is new and is drained: no user is sent to it; those after it serve as they did"
    run = Run(script, requests.encode(), SECONDS, judge, state=left, next_command=_back(context))
    beside = f", beside {sibling.id}" if sibling else ""
    judged = "whose answers can be checked" if trained else "whose answers are not judged (random weights)"
    summary = f"canary: {len(PROMPTS)} questions {judged}{beside}"
    return op(step, which.machine, summary, run, which.id)


def _back(context: Context) -> str | None:
    """What to do when the canary fails, where there is a release to go back to."""
    good = proved(one for facts in context.facts.values() for one in facts.releases)
    target, ours = undone_by(proved_on(good, context.machines), context.release), context.release
    if target is None or ours is None:
        return None
    back = back_command(target.number, context.machines, context.fleet.machines)
    return (
        f"fleetctl {back}, back to what proved good ({target.command}); "
        f"or mend the cause, then run `fleetctl {ours.command}` again"
    )
