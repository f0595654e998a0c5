"""What each scenario's checks say of runs made by hand: nothing that the samples do not carry."""

from __future__ import annotations

import random
from typing import Any

import pytest

from fleetctl.bench import views
from fleetctl.bench.results import result
from fleetctl.bench.samples import Failure, Run, Sample
from fleetctl.bench.tables import Check
from tests.unit.bench.build import BACKENDS, run, sample

VICTIM, OTHER = BACKENDS[0].address, BACKENDS[1].address


def check(one: Run, what: str) -> Check:
    return next(found for found in result(one).checks if found.what.startswith(what))


def distribution(backends: list[str | None], **changes: Any) -> Run:
    samples = [sample(n, backend=backend, home=None, cell="keys") for n, backend in enumerate(backends)]
    return run(samples, scenario="distribution", parameters={"keys": len(backends), "users": 8}, **changes)


def test_least_conn_is_no_hash_and_its_weights_are_no_unfairness() -> None:
    dice = random.Random(1)
    seen = dice.choices([one.address for one in BACKENDS], [8, 1, 1, 1, 1, 1, 1, 1], k=320)
    spread = check(distribution(seen, affinity="least_conn"), "spread like")
    assert spread.verdict == "unknown"
    assert "least_conn" in spread.seen
    assert check(distribution(seen), "spread like").verdict == "failed"


def test_where_nobody_says_who_answered_no_backend_is_called_missing() -> None:
    found = check(distribution([None] * 320), "every backend reached")
    assert found.verdict == "unknown"
    assert "X-Upstream-Addr" in found.seen
    some = check(distribution([None, *(BACKENDS[n % 8].address for n in range(320))]), "every backend reached")
    assert some.verdict == "failed"


def failover(own: list[tuple[float, str | None, Failure | None]]) -> Run:
    """(due, who answered, what went wrong) of eight sessions in turn; the kill takes from 5.0 to 5.2."""
    samples: list[Sample] = []
    for number, (at, backend, failure) in enumerate(own):
        samples.append(
            sample(
                number,
                cell="its sessions",
                session=f"s{number % 8}",
                scheduled=at,
                sent=at,
                first=at + 0.01,
                last=at + 0.02,
                end=at + 0.02,
                gaps=[],
                home=VICTIM,
                backend=backend,
                failure=failure,
            )
        )
    one = run(samples, scenario="failover", parameters={"backend": "69/0"})
    one.events = [{"what": "killing", "at": 5.0, "backend": VICTIM}, {"what": "killed", "at": 5.2, "backend": VICTIM}]
    return one


def due(begin: float, end: float, backend: str | None, failure: Failure | None = None) -> list[Any]:
    return [(begin + 0.1 * n, backend, failure) for n in range(round((end - begin) * 10))]


def test_requests_that_the_killed_instance_held_may_fail() -> None:
    one = failover([*due(4, 5, VICTIM), *due(5, 5.2, VICTIM, Failure.CUT), *due(5.3, 8, OTHER)])
    assert check(one, "its sessions are answered elsewhere").verdict == "ok"


def test_requests_that_were_due_after_the_kill_and_failed_are_worth_a_look() -> None:
    one = failover([*due(4, 5, VICTIM), *due(5.3, 6.3, None, Failure.STATUS), *due(6.3, 9, OTHER)])
    found = check(one, "its sessions are answered elsewhere")
    assert found.verdict == "warn"
    assert found.seen == "after 1.32 s; 10 that were due after the kill failed, the last 1.2 s after it"
    seen = views.recovery(one)
    assert seen is not None
    assert seen.late == 10


def test_a_session_that_nobody_answers_any_more_is_a_failure_whatever_the_others_are() -> None:
    after = [(at, backend, failure) for at, backend, failure in due(5.3, 9.3, OTHER)]
    after = [
        (at, None, Failure.STATUS) if n % 8 == 3 else (at, backend, None) for n, (at, backend, _) in enumerate(after)
    ]
    found = check(failover([*due(4.2, 5, VICTIM), *after]), "its sessions are answered elsewhere")
    assert found.verdict == "failed"
    assert found.seen == "after 0.32 s, but 1 of 8 sessions still failed at the end"


def test_the_speed_of_prefill_is_a_mean_of_few_and_no_median_of_them() -> None:
    samples = [
        sample(n, cell="4000 tokens", prompt_tokens=4000, first=n + wait) for n, wait in enumerate((1.0, 1.0, 6.0))
    ]
    one = run(samples, scenario="longctx", parameters={"times": 3})
    one.events = [{"what": "cell", "cell": "4000 tokens", "length": 4000}]
    table = result(one).tables[0]
    row = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert row["TTFT p50"] is None
    assert row["prefill tok/s"] == pytest.approx(12_000 / 8)
