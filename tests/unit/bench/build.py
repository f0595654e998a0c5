"""Runs made by hand, with figures that are known."""

from __future__ import annotations

import random
from typing import Any

from fleetctl.bench.samples import Backend, Header, Run, Sample

BACKENDS = [Backend(f"69/{n}", f"10.0.0.69:{8000 + n}") for n in range(8)]


def header(**changes: Any) -> Header:
    known: dict[str, Any] = {
        "scenario": "sequential",
        "seed": 1,
        "parameters": {"requests": 64, "tokens": 100},
        "model": "m",
        "url": "http://10.0.0.69:2219",
        "fleet": "f",
        "release": {"number": 1, "outcome": "done"},
        "image": {"reference": "image:a"},
        "tokens": 4,
        "affinity": "md5-mod",
        "backends": list(BACKENDS),
        "engine": {"max-num-seqs": 32},
        "client": {"cpus": 2},
        "versions": {"fleetctl": "1"},
    }
    return Header(**{**known, **changes})


def sample(number: int, **changes: Any) -> Sample:
    """Due at its number of seconds; first token 0.1 s later, 100 tokens in ten chunks over 0.9 s."""
    at = float(number)
    backend = BACKENDS[number % len(BACKENDS)].address
    known: dict[str, Any] = {
        "number": number,
        "cell": "one user",
        "session": f"s{number}",
        "scheduled": at,
        "home": backend,
        "backend": backend,
        "sent": at + 0.001,
        "headers": at + 0.05,
        "first": at + 0.1,
        "answer": at + 0.2,
        "last": at + 1.0,
        "end": at + 1.001,
        "status": 200,
        "finish": "length",
        "prompt_tokens": 50,
        "completion_tokens": 100,
        "asked_tokens": 100,
        "chunks": 10,
        "gaps": [0.1] * 9,
    }
    return Sample(**{**known, **changes})


def run(samples: list[Sample] | None = None, *, faster: float = 1.0, seed: int = 0, **changes: Any) -> Run:
    """64 requests whose times vary by 4 % from instance to instance and run to run."""
    dice = random.Random(seed)
    made = samples
    if made is None:
        pace = [dice.gauss(1, 0.03) / faster for _ in BACKENDS]
        made = []
        for number in range(64):
            factor = pace[number % len(BACKENDS)] * dice.gauss(1, 0.01)
            at = float(number)
            made.append(
                sample(number, first=at + 0.1 * factor, last=at + factor, end=at + factor, gaps=[0.1 * factor] * 9)
            )
    end = {"partial": False, "self_check": {"reasons": []}, "foreign_requests": 0}
    return Run(header(**changes), made, [{"what": "cell", "cell": "one user", "users": 1}], end)
