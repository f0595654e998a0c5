"""Tables and verdicts from a run's samples. Pure: a file from last year gives the same words.

Every check says what was expected, what was seen, of how many, and what that n proves.
"""

from __future__ import annotations

import statistics

from fleetctl.bench import counters, measures, views
from fleetctl.bench.judges import JUDGES
from fleetctl.bench.samples import Run
from fleetctl.bench.tables import FAILED, OK, UNKNOWN, WARN, Check, Result

COUNTING = ("distribution", "affinity")  # where a slow client changes nothing that is said


def result(run: Run) -> Result:
    """What the run of any scenario says. One without a single measured request says only that."""
    timed = run.header.scenario not in COUNTING
    found = Result(run.header.scenario, invalid=run.invalid if timed else [], partial=run.partial)
    if not timed:
        found.notes += [f"its times are not to be trusted: {reason}; its counts are" for reason in run.invalid]
    found.checks.append(_answered(run))
    judge = JUDGES.get(run.header.scenario)
    if judge is None:
        found.notes.append(f"this fleetctl knows no scenario {run.header.scenario}: nothing of it is judged")
    elif run.measured:
        judge(run, found)
    _foreign(run, found)
    if stalled := measures.stalls(run.measured):
        found.notes.append(f"{stalled} of {len(run.measured)} requests waited more than a second for their next chunk")
    _server(run, found)
    return found


def _answered(run: Run) -> Check:
    measured = run.measured
    failures = measures.failures(measured)
    bound = measures.failure_rate(measured)
    seen = ", ".join(f"{count} {why}{_where(run, why)}" for why, count in failures.items()) or "none failed"
    if failures:
        first = next(sample for sample in measured if sample.failed)
        seen += f"; the first: {first.detail}"
    says = f"failure rate {bound.low:.2%} to {bound.high:.2%}" if bound and bound.value else ""
    says = f"failure rate below {bound.high:.2%}" if bound and not bound.value else says
    verdict = UNKNOWN if not measured else FAILED if failures else OK
    # Of requests that a killed instance held, some must fail: what matters there is for how long.
    if run.header.scenario == "failover" and failures:
        verdict = WARN
    return Check("every request answered", verdict, "0 failed", seen, len(measured), says)


def _where(run: Run, why: str) -> str:
    """The backends, when the failure is theirs and not everybody's: one with another key or another model."""
    own = {sample.backend for sample in run.measured if sample.failed and sample.why == why}
    if None in own or len(own) > 3 or len(own) == len(run.header.backends):
        return ""
    return " from " + ", ".join(sorted(views.run_name(run, address) for address in own))


def _foreign(run: Run, found: Result) -> None:
    """Other people's requests hit the same engines: numbers with them are of a fleet in use."""
    end = run.end or {}
    others, seen = end.get("foreign_requests"), [e["in_flight"] for e in run.events if e.get("what") == "foreign"]
    own = sum(sample.backend is not None for sample in run.samples)
    if others is None and not seen:
        found.checks.append(Check("no foreign traffic", UNKNOWN, "0", "could not be seen", own))
        return
    words = f"{others} requests" if others is not None else "requests not counted"
    words += f", up to {max(seen)} in flight" if seen and max(seen) else ""
    busy = bool(others) or any(seen)
    found.checks.append(Check("no foreign traffic", WARN if busy else OK, "0 requests", words, own))


def _server(run: Run, found: Result) -> None:
    """The engines' own histograms beside the client's figures: what lies between is network, balancer and client."""
    change = counters.change(run.end or {})
    if change is None:
        return
    if (hit := views.hit_rate(run)) is not None:
        found.notes.append(f"prefix cache: {hit:.2%} of prompt tokens were hits")
    if (accepted := counters.acceptance(change)) is not None:
        found.notes.append(f"draft tokens accepted: {accepted.rate:.1%}, mean length {accepted.length:.2f}")
    server = counters.mean(change, counters.TTFT)
    streamed = [s for s in run.samples if s.ok and s.stream]
    # Everything that was sent is in the engines' histograms, warm-up too: so it is here.
    client = measures.values(streamed, lambda s: None if s.first is None or s.sent is None else s.first - s.sent)
    if server is not None and client and len(streamed) == sum(s.ok for s in run.samples):
        mine = statistics.fmean(client)
        between = f"{1000 * (mine - server):+.1f} ms between"
        found.notes.append(f"mean TTFT: {1000 * mine:.1f} ms here, {1000 * server:.1f} ms in the engines, {between}")
    if preempted := change.get(counters.PREEMPTIONS):
        found.notes.append(f"{preempted:.0f} preemptions: the engines ran out of KV cache")
