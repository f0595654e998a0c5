"""What each scenario shows: its own checks and tables. Pure."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from fleetctl.bench import ab, cross, measures, stats, views
from fleetctl.bench.measures import Window
from fleetctl.bench.samples import Run, Sample
from fleetctl.bench.tables import FAILED, LOAD, OK, UNKNOWN, WARN, Cell, Check, Result, Table, columns, load_row

MISSED = 0.001  # above that, an empty backend says nothing; the level of the spread's own check


def _routed(run: Run, samples: Sequence[Sample]) -> Check:
    """The deterministic check: nothing about it is a matter of chance."""
    known = [sample for sample in samples if sample.ok and sample.home is not None]
    silent = sum(sample.backend is None for sample in known)
    moved = [sample for sample in known if sample.moved]
    what, expected = "answered by the computed backend", "all"
    if not known or silent == len(known):
        why = "where a session lands cannot be computed here" if not known else "no X-Upstream-Addr in the answers"
        return Check(what, UNKNOWN, expected, why, len(known))
    seen = "all"
    if moved:
        one = moved[0]
        where = f"{views.run_name(run, one.backend)} instead of {views.run_name(run, one.home)}"
        seen = f"{len(moved)} were not, such as {where}"
    bound = stats.rate(len(moved) + silent, len(known))
    says = f"misrouted below {bound.high:.2%}" if bound and not moved and not silent else ""
    return Check(what, FAILED if moved or silent else OK, expected, seen, len(known), says)


def _length(run: Run, found: Result) -> None:
    """Was the work what was asked for? Without that, throughputs are not comparable."""
    pinned = [s for s in run.measured if s.ok and s.asked_tokens is not None and s.completion_tokens is not None]
    other = [sample for sample in pinned if sample.completion_tokens != sample.asked_tokens]
    seen = "all" if not other else f"{len(other)} not, such as {other[0].completion_tokens} for {other[0].asked_tokens}"
    check = Check("output length as asked", FAILED if other else OK, "all", seen, len(pinned))
    found.checks.append(check)


def _distribution(run: Run, found: Result) -> None:
    answered = [sample for sample in run.measured if sample.ok]
    addresses = [one.address for one in run.header.backends]
    counted = Counter(sample.backend for sample in answered)
    counts = [counted[address] for address in addresses]
    elsewhere = len(answered) - sum(counts)
    found.checks.append(_routed(run, answered))
    missed = [views.run_name(run, a) for a, seen in zip(addresses, counts, strict=True) if not seen]
    silent = bool(answered) and all(sample.backend is None for sample in answered)
    misses = _misses(len(answered), len(addresses)) if missed else 0.0
    chance = f"a fair hash misses one with p = {misses:.1e}" if missed else ""
    # Of a run that was cut short a fair hash leaves out backends too.
    unlucky = UNKNOWN if misses > MISSED else FAILED
    what, expected = "every backend reached", f"{len(addresses)} of {len(addresses)}"
    seen = f"missing {', '.join(missed)}" if missed else f"{elsewhere} from unknown" if elsewhere else "all"
    verdict = FAILED if elsewhere else unlucky if missed else OK
    reached = Check(what, verdict, expected, seen, len(answered), chance)
    if silent:
        reached = Check(what, UNKNOWN, expected, "no X-Upstream-Addr in the answers", len(answered))
    found.checks.append(reached)
    weights = run.header.weights
    even = stats.balance(counts, weights)
    if even is not None and run.header.affinity == "least_conn":
        words = "least_conn goes by load, it is no hash"
        found.checks.append(Check("spread like a fair hash", UNKNOWN, "p >= 0.001", words, even.n))
    elif even is not None:
        verdict = {"unfair": FAILED, "suspicious": WARN, "fair": OK}[even.verdict]
        seen = f"max/mean {even.imbalance:.2f}, p = {even.p:.3g} ({even.how})"
        fair = f"a fair hash: {even.fair.expected:.2f}, up to {even.fair.usual:.2f}" if even.fair else ""
        found.checks.append(Check("spread like a fair hash", verdict, "p >= 0.001", seen, even.n, fair))
    rows: list[list[Cell]] = [
        [views.run_name(run, address), address, count, count / max(1, len(answered))]
        for address, count in zip(addresses, counts, strict=True)
    ]
    rows.append(["sum", None, sum(counts), sum(counts) / max(1, len(answered))])
    shape = columns("backend | address | sessions:int | share:%")
    found.tables.append(Table(f"{len(answered)} sessions, once each", shape, rows))


def _misses(n: int, cells: int) -> float:
    return 1 - stats.minimum_at_least(1, n, cells) if cells > 1 else 0.0


def _affinity(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    sessions: dict[str, list[Sample]] = {}
    for sample in run.measured:
        if sample.ok and sample.backend is not None:
            sessions.setdefault(sample.session, []).append(sample)
    several = {key: own for key, own in sessions.items() if len(own) > 1}
    moved = [key for key, own in several.items() if len({sample.backend for sample in own}) > 1]
    bound = stats.rate(len(moved), len(several))
    says = f"sessions that move: below {bound.high:.1%}" if bound and not moved else ""
    verdict = FAILED if moved else OK if several else UNKNOWN
    if run.header.affinity == "least_conn":
        verdict, says = UNKNOWN, "with least_conn no session stays anywhere"
    stay = Check("a session stays on one backend", verdict, "0 moved", f"{len(moved)} moved", len(several), says)
    found.checks.append(stay)
    rows: list[list[Cell]] = []
    for cell in run.cells():
        own = [sample for sample in run.of(cell) if sample.ok]
        rows.append([cell, len({sample.session for sample in own}), len(own), sum(sample.moved for sample in own)])
    shape = columns("how | sessions:int | requests:int | elsewhere:int")
    found.tables.append(Table("the same sessions again", shape, rows))


def _instance(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    rows = [
        load_row(cell, run.of(cell), measures.steady(run.of(cell), views.users_of(run, cell))) for cell in run.cells()
    ]
    title = f"one instance, {run.header.parameters['backend']}: closed loop, service times at that concurrency"
    found.tables.append(Table(title, LOAD, rows))
    _length(run, found)


def _sequential(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    samples = run.measured
    rows = [load_row("all", samples, measures.steady(samples, 1))]
    for address, own in sorted(measures.by_backend(samples).items()):
        # Other backends' requests lie between these: a rate over all that time would mean nothing.
        row = load_row(views.run_name(run, address), own, None)
        rows.append(row)
    found.tables.append(Table("one request after the other", LOAD, rows))
    alone = stats.mean(measures.values(samples, measures.user_rate))
    if alone is not None:
        found.notes.append(f"one user alone: {alone.value:.1f} tok/s (95 %: {alone.low:.1f} to {alone.high:.1f})")
    _length(run, found)


def _scaling(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    rows: list[list[Cell]] = []
    measured = views.levels(run)
    base = measured[0] if measured else None
    addresses = [one.address for one in run.header.backends]
    for level in measured:
        figures = load_row(f"c={level.users}", level.samples, None)
        passes = stats.mean(level.single)
        figures[3] = level.rate
        figures[4] = None
        efficiency = level.rate / base.rate * base.users / level.users if base and base.rate and level.rate else None
        uneven = measures.imbalance(level.samples, addresses)
        low, high = (min(level.single), max(level.single)) if level.single else (None, None)
        more: list[Cell] = [low, high, (passes.high - passes.low) / 2 if passes else None, efficiency]
        rows.append([*figures, *more, uneven.busy if uneven and level.users >= len(addresses) else None])
    shape = (*LOAD, *columns("least:rate | most:rate | ±95%:rate | efficiency:% | busy max/mean:x"))
    how = "streamed" if run.header.parameters.get("stream", True) else "in one piece"
    found.tables.append(Table(f"closed loop, {how}, tok/s over all passes", shape, rows))
    turning = views.knee(measured)
    if turning is not None:
        found.notes.append(
            f"knee: {turning.users} users give 90 % of the most that was seen ({turning.rate:.0f} tok/s)"
        )
    _length(run, found)


def _mixed(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    rows: list[list[Cell]] = []
    shape = columns(
        "small requests | measure | n apart:int | n during:int | apart p50:ms | during p50:ms | during max:ms"
        " | factor:x | low:x | high:x"
    )
    for group, both in views.phases(run).items():
        for name, measure in (("TTFT", measures.ttft), ("E2E", measures.latency)):
            apart, during = measures.values(both["apart"], measure), measures.values(both["during"], measure)
            change = stats.ratio(apart, during)
            factors = [None if p is None else 1 + p / 100 for p in (change.percent, change.low, change.high)]
            medians = [stats.quantile(apart, 50).value, stats.quantile(during, 50).value]
            row: list[Cell] = [f"{group} instance", name, len(apart), len(during), *medians]
            rows.append([*row, max(during, default=None), *factors])
    found.tables.append(Table("small requests while one instance reads a long prompt, and apart from it", shape, rows))
    found.tables.append(_prefill(run, "the long prompts", ["large"]))


def _prefill(run: Run, title: str, cells: Sequence[str]) -> Table:
    shape = columns(
        "cell | n:int | prompt tokens:int | TTFT p50:ms | TTFT min:ms | TTFT max:ms | prefill tok/s:rate | cached:%"
    )
    rows: list[list[Cell]] = []
    for cell in cells:
        own = [sample for sample in run.of(cell) if sample.ok]
        first = measures.values(own, measures.ttft)
        prompts = [sample.prompt_tokens for sample in own if sample.prompt_tokens is not None]
        cached = [sample.cached_tokens for sample in own if sample.cached_tokens is not None]
        rows.append(
            [
                cell,
                len(own),
                round(statistics.fmean(prompts)) if prompts else None,
                stats.quantile(first, 50).value,
                min(first, default=None),
                max(first, default=None),
                measures.prefill_rate(own),
                sum(cached) / sum(prompts) if cached and prompts else None,
            ]
        )
    return Table(title, shape, rows)


def _longctx(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    found.tables.append(
        _prefill(run, "one at a time; from n = 6 on min and max enclose the median with 95 %", run.cells())
    )
    for cell in run.cells():
        event = next((one for one in run.events if one.get("cell") == cell), {})
        wanted = int(event.get("length") or 0)
        off = [s.prompt_tokens / wanted - 1 for s in run.of(cell) if s.ok and s.prompt_tokens and wanted]
        worst = max(off, key=abs, default=None)
        seen = "unknown" if worst is None else f"{worst:+.2%}"
        verdict = UNKNOWN if worst is None else OK if abs(worst) <= 0.01 else FAILED
        found.checks.append(Check(f"prompt length, {cell}", verdict, "within 1 %", seen, len(off)))
    hit = views.hit_rate(run)
    seen = "unknown" if hit is None else f"{hit:.2%} of prompt tokens"
    verdict = UNKNOWN if hit is None else OK if hit < 0.01 else FAILED
    found.checks.append(Check("prompts were cold", verdict, "below 1 % from the prefix cache", seen, len(run.measured)))


def _soak(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    rows: list[list[Cell]] = []
    parts = views.slices(run)
    foreign = [one for one in run.events if one.get("what") == "foreign"]
    for number, part in enumerate(parts, 1):
        window, own = part.window, part.samples
        done = [s for s in run.measured if s.ok and s.end is not None and window.start <= s.end < window.end]
        others = [one["in_flight"] for one in foreign if window.start <= one["at"] < window.end]
        first = measures.values(own, measures.ttft)
        rows.append(
            [
                number,
                len(own),
                len(own) / window.seconds,
                len(done) / window.seconds,
                sum(s.failed for s in own),
                measures.throughput(run.measured, window),
                measures.in_flight(run.measured, window),
                stats.quantile(first, 50).value,
                stats.quantile(first, 95).value,
                stats.quantile(first, 99).value,
                max(first, default=None),
                max(others, default=None) if foreign else None,
            ]
        )
    shape = columns(
        "window:int | n:int | offered/s:rate2 | achieved/s:rate2 | failed:int | tok/s:rate | in flight:rate"
        " | TTFT p50:ms | TTFT p95:ms | TTFT p99:ms | TTFT max:ms | foreign:int"
    )
    rate = run.header.parameters["rate"]
    title = f"open loop, Poisson, {rate:g} requests/s offered, windows of {run.header.parameters['window']:g} s"
    found.tables.append(Table(title, shape, rows))
    if parts and parts[-1].window.end > parts[0].window.start:
        whole = Window(parts[0].window.start, parts[-1].window.end)
        found.tables.append(Table("the whole time", LOAD, [load_row("soak", run.measured, whole)]))
    for name, values in (
        ("TTFT does not rise", [stats.quantile(measures.values(p.samples, measures.ttft), 50).value for p in parts]),
        ("requests in flight do not rise", [measures.in_flight(run.measured, p.window) for p in parts]),
    ):
        found.checks.append(_rising(name, [value for value in values if value is not None]))


def _rising(name: str, values: list[float]) -> Check:
    seen = stats.trend(values)
    if seen is None:
        return Check(name, UNKNOWN, "no trend", f"{len(values)} windows say nothing, five would", len(values))
    rises = seen.shown and seen.slope > 0
    words = f"slope {seen.slope:+.3g} a window, p = {seen.p:.2g}"
    return Check(name, FAILED if rises else OK, "no trend at 5 %", words, len(values))


def _failover(run: Run, found: Result) -> None:
    seen = views.recovery(run)
    if seen is None:
        found.notes.append("nothing was killed")
        return
    own = [s for s in run.of("its sessions") if s.ok]
    others = run.of("others")
    hurt = [s for s in others if s.failed]
    bound = measures.failure_rate(others)
    says = f"failure rate below {bound.high:.2%}" if bound and not hurt else ""
    other = Check("sessions of other instances unhurt", FAILED if hurt else OK, "0 failed", f"{len(hurt)} failed", 1)
    found.checks.append(Check(other.what, other.verdict, other.expected, other.seen, len(others), says))
    verdict, took = _answered_elsewhere(seen)
    found.checks.append(Check("its sessions are answered elsewhere", verdict, "yes", took, len(own)))
    row: list[Cell] = [run.header.parameters["backend"], seen.failed, seen.recovered, seen.answered, seen.back]
    shape = columns("killed | failed:int | last failure after:s | first answer elsewhere after:s | itself back after:s")
    found.tables.append(Table("one kill; its time is one observation, not a distribution", shape, [row]))


def _answered_elsewhere(seen: views.Recovery) -> tuple[str, str]:
    """One session that is answered again says nothing about the others."""
    if seen.answered is None:
        return FAILED, "none of its sessions was answered"
    took = f"after {seen.answered:.2f} s"
    if seen.lost:
        return FAILED, f"{took}, but {seen.lost} of {seen.sessions} sessions still failed at the end"
    if seen.late:
        last = f"the last {seen.recovered:.1f} s after it"
        return WARN, f"{took}; {seen.late} that were due after the kill failed, {last}"
    return OK, took


def _ab(run: Run, found: Result) -> None:
    """One round by itself: what each arm did. Arms are compared over all rounds (ab_result.py)."""
    found.checks.append(_routed(run, run.measured))
    _length(run, found)
    found.checks.append(ab.drafted(run))
    rows = []
    for cell in run.cells():
        for arm, addresses in ab.by_arm(run).items():
            own = [sample for sample in run.of(cell) if sample.backend in addresses]
            rows.append(load_row(f"{cell}, mtp {arm}, {len(addresses)} instances", own, None))
    number, rounds = run.header.parameters["number"], run.header.parameters["rounds"]
    title = f"round {number} of {rounds}: one request at a time an instance, all instances at once"
    found.tables.append(Table(title, LOAD, rows))


def _cross(run: Run, found: Result) -> None:
    found.checks.append(_routed(run, run.measured))
    _length(run, found)
    rows: list[list[Cell]] = []
    for one in cross.agreement(run):
        d = one.difference
        unit = "tok/s" if one.figure.name == "tok/s" else "s"
        rows.append([one.figure.name, unit, one.first, one.second, d.percent, d.low, d.high, d.n])
        if one.figure.judged:
            found.checks.append(_agrees(one))
    shape = columns("mean | unit | vllm:rate3 | ours:rate3 | ours-vllm %:rate | 95 % from:rate | to:rate | rounds:int")
    title = f"the same prompts to {run.header.parameters['backend']}, by `vllm bench serve` on its machine and by us"
    found.tables.append(Table(title, shape, rows))
    found.notes.append("TTFT is not judged: ours has the way through the balancer in it, theirs has not")


def _agrees(one: cross.Agreement) -> Check:
    d = one.difference
    what, expected = f"{one.figure.name} as `vllm bench serve` has it", f"within {cross.AGREE:g} %"
    if d.low is None or d.high is None:
        return Check(what, UNKNOWN, expected, d.why or "-", d.n)
    verdict = {True: OK, False: FAILED, None: WARN}[one.agrees]
    more = "" if one.agrees is not None else ": too wide to tell, more --times"
    return Check(what, verdict, expected, f"{d.low:+.1f} to {d.high:+.1f} %{more}", d.n)


JUDGES: dict[str, Callable[[Run, Result], None]] = {
    "distribution": _distribution,
    "affinity": _affinity,
    "instance": _instance,
    "sequential": _sequential,
    "scaling": _scaling,
    "mixed": _mixed,
    "soak": _soak,
    "longctx": _longctx,
    "failover": _failover,
    "ab": _ab,
    "cross-check": _cross,
}
