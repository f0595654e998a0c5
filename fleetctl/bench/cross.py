"""Our engine beside the `vllm bench serve` of the serving image: its arguments, its answer, do the two agree? Pure.

The options are those of facts/ascend-vllm 3.5; what came or went with versions is used only where `--help` has it.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.bench import measures, stats
from fleetctl.bench.samples import Run, Sample
from fleetctl.errors import CommandError

AGREE = 10.0  # percent: within that the two are one instrument
ABSENT = "the image has no `vllm bench serve`"
MARK = "@@result"


@dataclass(frozen=True)
class Figure:
    """One figure that both have. `theirs`: its key in vLLM's document, `scale` makes seconds of it.

    `judged`: not what the way to the instance is part of, which they go on the machine and we through the balancer.
    """

    name: str
    theirs: str
    scale: float = 0.001
    judged: bool = True


FIGURES = (
    Figure("tok/s", "output_throughput", 1.0),
    Figure("TPOT", "mean_tpot_ms"),
    Figure("E2E", "mean_e2el_ms"),
    Figure("TTFT", "mean_ttft_ms", judged=False),
)


def arguments(
    options: str, *, url: str, model: str, tokenizer: str, tokens: int, prompts: int, users: int, seed: int
) -> list[str]:
    """`vllm bench serve ...` for `prompts` lines of prompts.jsonl, all in the folder where it runs.

    `options`: what its `--help` says. Raises CommandError where that is no help of it. No key: it reads
    OPENAI_API_KEY.
    """
    if "--dataset-name" not in options:
        raise CommandError(ABSENT, next_command="fleetctl bench instance measures with our own engine alone")
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", options))
    argv = ["vllm", "bench", "serve", "--backend", "openai-chat", "--base-url", url]
    argv += ["--endpoint", "/v1/chat/completions", "--model", model, "--tokenizer", tokenizer]
    argv += ["--dataset-name", "custom", "--dataset-path", "prompts.jsonl", "--custom-output-len", str(tokens)]
    argv += ["--num-prompts", str(prompts), "--max-concurrency", str(users), "--seed", str(seed), "--ignore-eos"]
    argv += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
    argv += ["--save-result", "--result-dir", ".", "--result-filename", "result.json"]
    # The server applies the chat template; a client that did so too would send another prompt.
    skip = [name for name in ("--skip-chat-template", "--custom-skip-chat-template") if name in known]
    more = [["--temperature", "0"], ["--num-warmups", str(users)], ["--disable-tqdm"], ["--disable-shuffle"]]
    return argv + skip[:1] + [word for words in more if words[0] in known for word in words]


def lines(prompts: Sequence[str]) -> bytes:
    """What its `custom` data set reads."""
    return "".join(json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in prompts).encode()


def figures(text: str, prompts: int) -> dict[str, float]:
    """Of its result document: our names, seconds and tok/s. Raises CommandError for what is none or is incomplete."""
    try:
        document = json.loads(text.partition(f"{MARK}\n")[2])
        found = {one.name: float(document[one.theirs]) * one.scale for one in FIGURES}
        completed = int(document["completed"])
    except (ValueError, KeyError, TypeError) as error:
        raise CommandError(f"`vllm bench serve` left no result that makes sense: {error!r}") from None
    if completed != prompts:
        raise CommandError(f"`vllm bench serve` completed {completed} of {prompts} requests: what is left is no sample")
    return found


def ours(samples: Sequence[Sample]) -> dict[str, float] | None:
    """The same figures by their definitions: from when a request was sent; None where one failed."""
    if not samples or not all(one.ok and one.sent is not None and one.last is not None for one in samples):
        return None
    sent = [one.sent or 0.0 for one in samples]
    took = max(one.end or 0.0 for one in samples) - min(sent)
    tokens = sum(one.completion_tokens or 0 for one in samples)
    first = [(one.first or 0.0) - at for one, at in zip(samples, sent, strict=True)]
    whole = [(one.last or 0.0) - at for one, at in zip(samples, sent, strict=True)]
    tpot = measures.values(samples, measures.tpot)
    if took <= 0 or not tpot:
        return None
    means = {"TPOT": statistics.fmean(tpot), "E2E": statistics.fmean(whole), "TTFT": statistics.fmean(first)}
    return {"tok/s": tokens / took, **means}


@dataclass(frozen=True)
class Agreement:
    """`first`: vLLM's mean over the rounds, `second`: ours; the difference is ours against vLLM's."""

    figure: Figure
    first: float
    second: float
    difference: stats.Difference

    @property
    def agrees(self) -> bool | None:
        """True: the interval lies within the limit; False: it lies beyond it; None: neither can be said."""
        low, high = self.difference.low, self.difference.high
        if low is None or high is None:
            return None
        if low >= -AGREE and high <= AGREE:
            return True
        return False if low > AGREE or high < -AGREE else None


def agreement(run: Run) -> list[Agreement]:
    """Pairs are rounds, each measured by both."""
    theirs: Mapping[str, Any] = {e["cell"]: e["figures"] for e in run.events if e.get("what") == "vllm"}
    pairs = [(theirs[cell], mine) for cell in theirs if (mine := ours(run.of(cell))) is not None]
    found = []
    for figure in FIGURES:
        first, second = ([pair[side][figure.name] for pair in pairs] for side in (0, 1))
        if pairs and min(*first, *second) > 0:
            means = statistics.fmean(first), statistics.fmean(second)
            found.append(Agreement(figure, *means, stats.paired(first, second)))
    return found
