"""Judgements that decide who is asked anything else: alive, the right model, the right key, able to compute. Pure.

An instance that fails here is one red line: it is left out of everything that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fleetctl.verify.answers import Answer, first_choice
from fleetctl.verify.check import Check, Look, Where, settle
from fleetctl.verify.evidence import Evidence

LOGS = "fleetctl logs {who}; fleetctl restart {who}"
Problem = Callable[[Evidence, Where, str], str | None]


def health(evidence: Evidence, where: Where, who: str) -> str | None:
    answer = evidence.answer(where, who, "health")
    return None if answer.http == 200 else f"/health answers {answer.words}"


def model(evidence: Evidence, where: Where, who: str) -> str | None:
    """Name and max_model_len of /v1/models."""
    answer = evidence.answer(where, who, "models")
    if answer.http in (0, 401):
        return None if answer.http else f"/v1/models: {answer.words}"
    if answer.problem is not None:
        return f"/v1/models {answer.problem}"
    listed = answer.json.get("data")
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    wanted = evidence.fleet.inventory.model.name
    own = next((row for row in rows if row.get("id") == wanted), None)
    if own is None:
        return f"serves {', '.join(str(row.get('id')) for row in rows) or 'no model'}, {wanted} was due"
    longest = evidence.fleet.engine.get("max-model-len")
    if isinstance(longest, int) and own.get("max_model_len") != longest:
        return f"max_model_len {own.get('max_model_len')}, {longest} was due"
    return None


def auth(evidence: Evidence, where: Where, who: str) -> str | None:
    """200 with the key; 401 without one and with a wrong one, for listing and for computing."""
    if evidence.answer(where, who, "models").http == 401:
        return "401 with the key: it was started with another one"
    for kind, words in (("none", "without a key"), ("wrong", "with a wrong key")):
        for what, path in (("models", "/v1/models"), ("chat", "/v1/chat/completions")):
            answer = evidence.answer(where, who, f"{what}-{kind}")
            if answer.http != 401:
                return f"{path} answers {answer.words} {words}"
    return None


def completion(evidence: Evidence, where: Where, who: str) -> str | None:
    return completion_problem(evidence.answer(where, who, "completion"))


def completion_problem(answer: Answer) -> str | None:
    """Why an answer is no chat completion; None when it is one."""
    if answer.problem is not None:
        return f"a completion {answer.problem}" if answer.http else f"a completion: {answer.problem}"
    return None if first_choice(answer) else "a completion has no choices"


GATES: tuple[tuple[str, str, Problem], ...] = (
    ("health", "/health answers 200", health),
    ("model", "the model's name and max_model_len", model),
    ("auth", "200 with the key, 401 without and with a wrong one", auth),
    ("completion", "a completion is computed", completion),
)


def direct(evidence: Evidence) -> tuple[list[Check], dict[str, str]]:
    """The checks, and who is left out from here on, with the reason."""
    out = dict(evidence.where_stopped)
    for instance in evidence.joined:
        if instance.machine not in evidence.facts:
            out[instance.id] = "is on a machine that does not answer"
        elif (unit := evidence.facts[instance.machine].units.get(instance.name)) and unit.active != "active":
            out.setdefault(instance.id, f"has a unit that is {unit.active}")
    found = []
    for name, expected, problem in GATES:
        asked = [i.id for i in evidence.asked if i.id not in out]
        looks = [Look(id, problem(evidence, Where.DIRECT, id)) for id in asked]
        check = settle(
            name,
            Where.DIRECT,
            _expected(evidence, name, expected),
            looks,
            sampled=False,
            left_out=out,
            next_command=LOGS,
        )
        found.append(check)
        out |= dict.fromkeys(sorted(check.failed), f"fails {name}")
    found.append(versions(evidence, out))
    return found, out


def _expected(evidence: Evidence, name: str, words: str) -> str:
    if name != "model":
        return words
    longest = evidence.fleet.engine.get("max-model-len")
    return f"{evidence.fleet.inventory.model.name}, max_model_len {longest or 'of the model'}"


def versions(evidence: Evidence, out: dict[str, str]) -> Check:
    """vLLM's own version, the same everywhere."""
    found = {i.id: evidence.version(i.id) for i in evidence.asked if i.id not in out}
    known = [str(value) for value in found.values() if value]
    common = max(set(known), key=known.count) if known else None

    def looks() -> Iterator[Look]:
        for id, value in found.items():
            yield Look(id, None if value == common and value else f"vLLM {value or 'of unknown version'}")

    return settle(
        "version", Where.DIRECT, "one version of vLLM", looks(), good=common or "", sampled=False, left_out=out
    )
