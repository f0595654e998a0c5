"""Judgements of what an instance does with requests, direct and through the balancer by the same rules. Pure.

Who fails a check directly is left out of the same check through the balancer: a red line there is the balancer's.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from fleetctl.observe import prompts
from fleetctl.verify import questions
from fleetctl.verify.answers import (
    TOO_LATE,
    TOO_LONG,
    Answer,
    Stream,
    bundled,
    first_choice,
    message,
    metric,
    stream,
    text,
    usage,
)
from fleetctl.verify.check import Check, Look, Status, Where, not_applicable, settle, skipped
from fleetctl.verify.evidence import Evidence
from fleetctl.verify.gates import completion_problem

LOGS = "fleetctl logs {who}"
NEXT = {"prompts": "fleetctl drain {who}; fleetctl logs {who}; fleetctl restart {who}"}
Judge = Callable[[Evidence, Where, str], Iterable[Look]]
SHARE = 0.05  # facts/bench-status.md 1.2.10: more than this share of the gaps may not collapse on the way
Z = 3.0  # and more than chance explains
ONE_SIDED = 1.645  # standard errors; 95 %

# kinds that are whole chat completions, for what holds for all of them
COMPLETIONS = ("prompt:", "cap:", "t0", "t0-again", "t0.5", "t1", "reasoning", "tool")


def checks(
    evidence: Evidence, where: Where, who: Iterable[str], out: Mapping[str, str], before: Iterable[Check] = ()
) -> Iterator[Check]:
    """`who` is asked about at this door; `before`: the checks of the direct door."""
    asked = list(who)
    failed: dict[str, frozenset[str]] = {}
    for check in before:
        failed[check.id] = failed.get(check.id, frozenset()) | check.failed
    usual = {prompt.id: _usual(evidence, prompt) for prompt in prompts.PROMPTS}
    judges: list[tuple[str, str, Judge]] = [
        ("prompts", "right answers to eight checkable prompts", partial(checkable, usual)),
        *JUDGES,
    ]
    for name, expected, judge in judges:
        if name in TRAINED and evidence.fleet.inventory.model.random_weights:
            yield not_applicable(name, where, expected)
            continue
        directly = failed.get(name, frozenset())
        mine = dict.fromkeys(sorted(directly), "fails it nearer too")
        looks = [look for id in asked if id not in out and id not in directly for look in judge(evidence, where, id)]
        yield settle(name, where, expected, looks, left_out={**out, **mine}, next_command=NEXT.get(name, LOGS))


def answered(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    """Every completion that was asked for came; those that did not come are judged nowhere else."""
    for kind, answer in _completions(evidence, where, who):
        problem = completion_problem(answer)
        yield Look(who, f"{kind}: {problem}" if problem else None)


def _completions(evidence: Evidence, where: Where, who: str) -> Iterator[tuple[str, Answer]]:
    for (place, name, kind), answer in evidence.answers.items():
        if place is where and name == who and (kind in COMPLETIONS or kind.startswith(("prompt:", "cap:"))):
            yield kind, answer


def _whole(evidence: Evidence, where: Where, who: str, kind: str) -> Answer | None:
    answer = evidence.answer(where, who, kind)
    return answer if completion_problem(answer) is None else None


def checkable(usual: Mapping[str, str | None], evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    """Eight fixed prompts. `usual`: what most instances say to each."""
    for prompt in prompts.PROMPTS:
        answer = _whole(evidence, where, who, f"prompt:{prompt.id}")
        if answer is None:
            continue
        said = text(message(answer).get("content"))
        grade = prompts.judge(prompt, said, usual[prompt.id])
        problem = None if grade is prompts.Grade.OK else f"{grade.value} at {prompt.id}: {_short(said)}"
        yield Look(who, problem, soft=not grade.fails)


def _usual(evidence: Evidence, prompt: prompts.Prompt) -> str | None:
    """The text that most right answers have, over all instances and doors."""
    kind = f"prompt:{prompt.id}"
    said = [text(message(answer).get("content")) for (_, _, name), answer in evidence.answers.items() if name == kind]
    right = Counter(one.strip() for one in said if not prompts.judge(prompt, one).fails)
    return right.most_common(1)[0][0] if right else None


def repeatable(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    """Soft: two batches may round differently, and vLLM promises nothing; `repeats` judges how many do."""
    pair = [_whole(evidence, where, who, kind) for kind in ("t0", "t0-again")]
    if pair[0] is not None and pair[1] is not None:
        first, second = (text(message(answer).get("content")) for answer in pair if answer)
        yield Look(who, None if first == second else f"{_short(first)} and {_short(second)}", soft=True)


def temperature(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    found = [_whole(evidence, where, who, kind) for kind in ("t0", "t0.5", "t1")]
    said = [text(message(answer).get("content")) for answer in found if answer is not None]
    if len(said) == 3:
        yield Look(who, None if len(set(said)) > 1 else f"the same text at 0, 0.5 and 1: {_short(said[0])}")


def exact(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    for cap in questions.CAPS:
        answer = _whole(evidence, where, who, f"cap:{cap}")
        if answer is None:
            continue
        count, reason = usage(answer).get("completion_tokens"), first_choice(answer).get("finish_reason")
        good = count == cap and reason == "length"
        yield Look(who, None if good else f"max_tokens {cap} gave {count} tokens, finish_reason {reason}")


def sums(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    for kind, answer in _completions(evidence, where, who):
        if completion_problem(answer) is None:
            yield Look(who, _sum_problem(usage(answer), kind))


def _sum_problem(counts: Mapping[str, object], kind: str) -> str | None:
    prompt, completion, total = (counts.get(f"{name}_tokens") for name in ("prompt", "completion", "total"))
    if not (isinstance(prompt, int) and isinstance(completion, int) and isinstance(total, int)):
        return f"{kind}: no usage"
    if prompt <= 0 or completion <= 0 or prompt + completion != total:
        return f"{kind}: {prompt} + {completion} tokens, total {total}"
    return None


def reasoning(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    """Thoughts in `reasoning`, no mark of them in `content`. An answer cut while it thinks has no content."""
    answer = _whole(evidence, where, who, "reasoning")
    if answer is None:
        return
    found = message(answer)
    thought, said = text(found.get("reasoning") or found.get("reasoning_content")), text(found.get("content"))
    cut = first_choice(answer).get("finish_reason") == "length"
    problem = None
    if "<think>" in said or "</think>" in said or "</think>" in thought:
        problem = "the marks of thinking are in the text"
    elif not thought.strip():
        problem = f"no reasoning; content {_short(said)}"
    elif not said.strip() and not cut:
        problem = "it thinks and says nothing"
    yield Look(who, problem)


def tool_call(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    answer = _whole(evidence, where, who, "tool")
    if answer is not None:
        yield Look(who, _tool_problem(answer))


def _tool_problem(answer: Answer) -> str | None:
    found = message(answer)
    calls = found.get("tool_calls")
    if not isinstance(calls, list) or not calls or not isinstance(calls[0], dict):
        return f"no tool call; content {_short(text(found.get('content')))}"
    function = calls[0].get("function")
    function = function if isinstance(function, dict) else {}
    try:
        arguments = json.loads(text(function.get("arguments")))
    except ValueError:
        return f"arguments that are no JSON: {_short(text(function.get('arguments')))}"
    if function.get("name") != "get_weather" or not isinstance(arguments, dict) or not arguments.get("city"):
        return f"called {function.get('name')}({_short(text(function.get('arguments')))})"
    reason = first_choice(answer).get("finish_reason")
    return None if reason == "tool_calls" else f"finish_reason {reason} after a tool call"


def streamed(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    """A stream that begins, says something in several pieces, and ends."""
    answer = evidence.answers.get((where, who, "stream"))
    if answer is not None:
        yield Look(who, stream_problem(answer))


def stream_problem(answer: Answer) -> str | None:
    """Why an answer is no whole stream of chat chunks; None when it is one."""
    if answer.http != 200:
        return answer.problem
    found = stream(answer)
    if found.error is not None:
        return f"an error after the 200: {found.error}"
    if not found.done and answer.exit in (TOO_LATE, TOO_LONG):
        return f"it does not end: {found.count} events and no [DONE] within {answer.seconds:.0f} s"
    if found.broken is not None:
        return f"a chunk that is no JSON: {found.broken}"
    if not found.count:
        return f"200, and no events{': ' + _short(answer.body) if answer.body.strip() else ''}"
    if not found.done:
        return f"it ends without [DONE] after {found.count} events {answer.error}".rstrip()
    if found.deltas < 2:
        return f"all of it in {found.deltas} chunk"
    return None


def _good_stream(evidence: Evidence, where: Where, who: str) -> Stream | None:
    answer = evidence.answers.get((where, who, "stream"))
    return stream(answer) if answer is not None and stream_problem(answer) is None else None


def stream_usage(evidence: Evidence, where: Where, who: str) -> Iterator[Look]:
    """The last event counts the tokens, as many as were asked for."""
    found = _good_stream(evidence, where, who)
    if found is None:
        return
    if found.usage is None:
        yield Look(who, "no usage in the stream")
        return
    problem = _sum_problem(found.usage, "stream")
    count = found.usage.get("completion_tokens")
    if problem is None and count != questions.STREAM_TOKENS:
        problem = f"max_tokens {questions.STREAM_TOKENS} gave {count} tokens in the stream"
    yield Look(who, problem)


JUDGES: tuple[tuple[str, str, Judge], ...] = (
    ("answered", "200 and a chat completion", answered),
    ("temperature", "other texts at 0.5 and 1 than at 0", temperature),
    ("max-tokens", f"exactly max_tokens ({', '.join(map(str, questions.CAPS))}), finish_reason length", exact),
    ("usage", "prompt + completion = total", sums),
    ("reasoning", "reasoning apart from content", reasoning),
    ("tool-call", "get_weather is called with a city", tool_call),
    ("stream", "chunk by chunk to [DONE]", streamed),
    ("stream-usage", "usage in the stream", stream_usage),
)


TRAINED = ("prompts", "tool-call")
"""What a model has to have learned: asked and judged only where it has (`model.random_weights`)."""


def repeats(evidence: Evidence, where: Where, who: Iterable[str], out: Mapping[str, str]) -> Check:
    """Temperature 0 repeats. A few pairs that differ are worth a look; most of them: it is not obeyed."""
    looks = [look for id in who if id not in out for look in repeatable(evidence, where, id)]
    different = sum(look.problem is not None for look in looks)
    hard = different * 2 > len(looks)
    looks = [Look(look.who, look.problem, soft=not hard) for look in looks]
    return settle("temperature-0", where, "the same text twice", looks, left_out=out, next_command=LOGS)


def speculation(evidence: Evidence, out: Mapping[str, str]) -> Check:
    """Acceptance above zero on every instance, from the engine's counters before and after this run."""
    tokens = evidence.fleet.tokens
    if not tokens:
        return skipped("mtp", Where.DIRECT, "acceptance above 0", "the fleet does not speculate")
    if evidence.fleet.inventory.model.random_weights:
        return not_applicable("mtp", Where.DIRECT, "acceptance above 0")
    looks, drafted, lowest = [], 0.0, None
    for instance in evidence.asked:
        if instance.id in out:
            continue
        before, after = (
            evidence.answer(Where.DIRECT, instance.id, f"metrics-{when}").body for when in ("before", "after")
        )
        problem, draft, accepted = _acceptance(before, after)
        looks.append(Look(instance.id, problem))
        if problem is None:
            drafted += draft
            share = accepted / draft
            lowest = min(lowest or (share, instance.id), (share, instance.id))
    good = f"lowest {lowest[0]:.0%} on {lowest[1]}, {drafted:.0f} tokens drafted" if lowest else ""
    return settle(
        "mtp",
        Where.DIRECT,
        f"acceptance above 0 with {tokens} tokens",
        looks,
        good=good,
        sampled=False,
        left_out=out,
        next_command="fleetctl logs {who}; fleetctl restart {who}",
    )


def _acceptance(before: str, after: str) -> tuple[str | None, float, float]:
    """What is wrong, and the tokens drafted and accepted between two pages of metrics."""
    values = []
    for name in ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens"):
        old, new = metric(before, name), metric(after, name)
        if old is None or new is None:
            return "its metrics do not tell", 0, 0
        if new < old:
            return "it restarted while it was looked at", 0, 0
        values.append(new - old)
    draft, accepted = values
    if draft == 0:
        return "it drafts nothing", 0, 0
    return (f"0 of {draft:.0f} drafted tokens accepted" if accepted == 0 else None), draft, accepted


def calmer(first: Answer, second: Answer) -> Answer:
    """Of two answers the one whose chunks came less bundled; the second where one of them is no whole stream."""
    if stream_problem(first) is not None or stream_problem(second) is not None:
        return second
    (n, a), (m, b) = bundled(first), bundled(second)
    return first if n and m and a / n < b / m else second


def spread(evidence: Evidence, who: Iterable[str], out: Mapping[str, str]) -> Check:
    """The share of chunks that arrive together with the one before, through the balancer against directly.

    `bound`: how much higher it may be at 95 %.
    """
    expected = f"at most {SHARE:.0%} more chunks bundled than directly"
    pooled = {}
    both = [
        id
        for id in who
        if id not in out and all(_good_stream(evidence, where, id) for where in (Where.DIRECT, Where.BALANCER))
    ]
    for where in (Where.DIRECT, Where.BALANCER):
        pairs = [bundled(evidence.answer(where, id, "stream")) for id in both]
        pooled[where] = (sum(n for n, _ in pairs), sum(count for _, count in pairs))
    (n, directly), (m, through) = pooled[Where.DIRECT], pooled[Where.BALANCER]
    if not n or not m:
        return skipped("spread", Where.BALANCER, expected, "no stream to compare")
    a, b = directly / n, through / m
    common = (directly + through) / (n + m)
    error = (common * (1 - common) * (1 / n + 1 / m)) ** 0.5
    worse = b - a > SHARE and b - a > Z * error
    again = f", at look {evidence.stream_looks}" if evidence.stream_looks > 1 else ""
    seen = f"{b:.1%} of {m} chunks bundled, {a:.1%} of {n} directly{again}"
    return Check(
        "spread",
        Where.BALANCER,
        Status.FAIL if worse else Status.PASS,
        expected,
        seen,
        n=m,
        bound=max(0.0, b - a + ONE_SIDED * (a * (1 - a) / n + b * (1 - b) / m) ** 0.5),
        failed=frozenset(("balancer",)) if worse else frozenset(),
        problems=(f"balancer: {seen}",) if worse else (),
        left_out=tuple(out),
        next_command="fleetctl balancer diff" if worse else None,
    )


def _short(said: str) -> str:
    words = " ".join(said.split())
    return f'"{words[:40]}{"..." if len(words) > 40 else ""}"'
