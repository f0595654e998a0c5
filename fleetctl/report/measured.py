"""What `bench` measured: every scenario, also those that were not, and the comparison of speculation lengths. Pure."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from html import escape, unescape
from itertools import combinations

from fleetctl.bench import ab_result, compare, measures, stats
from fleetctl.bench import results as judged
from fleetctl.bench.plot import plots
from fleetctl.bench.tables import Check, Column, Result
from fleetctl.bench.tables import Table as Figures
from fleetctl.report.document import Block, Cell, Figure, Mark, Marked, Section, Table, Text
from fleetctl.report.material import Material, NamedRun
from fleetctl.report.verified import acceptance
from fleetctl.report.words import Words

UNKNOWN = "-"
SCENARIOS = ("distribution", "affinity", "instance", "sequential", "scaling", "mixed", "soak", "longctx", "failover")
MARKS = {"ok": Mark.GOOD, "warn": Mark.ODD, "failed": Mark.BAD, "unknown": Mark.UNKNOWN}
VERDICTS = {"ok": Mark.GOOD, "partial": Mark.ODD, "failed": Mark.BAD, "invalid": Mark.BAD}
DRAWN = re.compile(r"(<(?:text|title)\b[^>]*>)([^<]*)(</)")


def missing(material: Material) -> list[str]:
    return [name for name in SCENARIOS if material.run(name) is None]


def measured(material: Material, words: Words) -> Section:
    # A round of `bench ab` says nothing by itself; all of them are in `speculation`.
    more = sorted({one.run.header.scenario for one in material.runs} - {*SCENARIOS, "ab"})
    shown = [name for name in SCENARIOS if material.run(name) is not None]
    lead = Text(words("bench.lead", shown=len(shown), all=len(SCENARIOS)), None if shown else Mark.ODD)
    parts = [_setting(material, words)]
    parts += [_scenario(material, words, name) for name in (*SCENARIOS, *more)]
    return Section("measured", words("section.measured"), (lead, Text(words("bench.rules"))), tuple(parts))


def _setting(material: Material, words: Words) -> Section:
    """How it was measured: the client, the way, the seed."""
    rows: list[tuple[Cell, ...]] = []
    for one in material.runs:
        header = one.run.header
        rows.append(
            (
                header.started,
                header.scenario,
                str(len(one.run.measured)),
                header.url,
                str(len(header.backends)),
                str((header.release or {}).get("number", UNKNOWN)),
                UNKNOWN if header.tokens is None else str(header.tokens),
                str(header.seed),
                one.name,
            )
        )
    names = ("started", "scenario", "n", "url", "backends", "release", "mtp", "seed", "file")
    columns = tuple(words(f"bench.{name}") for name in names)
    blocks: tuple[Block, ...] = (Text(words("bench.nothing"), Mark.ODD),)
    if rows:
        total = sum(len(one.run.measured) for one in material.runs)
        clients = dict.fromkeys(_client(words, one) for one in material.runs)
        table = Table(columns, tuple(rows), words("about.runs", n=total, runs=len(rows)))
        blocks = (table, *map(Text, clients))
    return Section("bench-setting", words("section.bench-setting"), blocks)


def _client(words: Words, one: NamedRun) -> str:
    """The computer that measured, and with what."""
    header = one.run.header
    client, versions = (
        ", ".join(f"{key} {value}" for key, value in values.items() if not isinstance(value, dict | list)) or UNKNOWN
        for values in (header.client, header.versions)
    )
    return words("bench.by", client=client, versions=versions)


def _scenario(material: Material, words: Words, name: str) -> Section:
    title = words.get(f"scenario.{name}", name)
    one = material.run(name)
    if one is None:
        return Section(
            f"bench-{name}", title, (Text(words("not_measured", command=f"fleetctl bench {name}"), Mark.UNKNOWN),)
        )
    run = one.run
    found = judged.result(run)
    head = words(
        "bench.run",
        when=run.header.started,
        n=len(run.measured),
        seed=run.header.seed,
        parameters=", ".join(f"{key} {value}" for key, value in run.header.parameters.items()),
    )
    blocks: list[Block] = [Text(head), Text(words(f"verdict.{found.verdict}"), VERDICTS[found.verdict])]
    blocks += [Text(words("bench.invalid", why=words.said(why)), Mark.BAD) for why in found.invalid]
    blocks += [Text(words("bench.partial", why=words.said(found.partial)), Mark.ODD)] if found.partial else []
    about = words("about.run", when=run.header.started, n=len(run.measured))
    blocks.append(_checks(words, found, about))
    blocks += [
        block for table in found.tables for block in (Text(words.said(table.title)), figures(words, table, about))
    ]
    blocks += [Text(words.said(note)) for note in found.notes]
    for plot, svg in plots(run).items():
        caption = words(
            "bench.plot", name=words.get(f"plot.{plot}", plot), when=run.header.started, n=len(run.measured)
        )
        blocks.append(Figure(f"bench-{plot}", caption, drawn(words, svg)))
    return Section(f"bench-{name}", title, tuple(blocks))


def drawn(words: Words, svg: str) -> str:
    """The plot with its labels in the report's language."""

    def put(match: re.Match[str]) -> str:
        return match[1] + escape(words.said(unescape(match[2]))) + match[3]

    return DRAWN.sub(put, svg)


def _checks(words: Words, found: Result, about: str) -> Table:
    columns = (
        *tuple(words(f"verify.{key}") for key in ("result", "check", "expected", "seen", "n")),
        words("bench.proves"),
    )
    return Table(columns, tuple(_check_row(words, check) for check in found.checks), about)


def _check_row(words: Words, check: Check) -> tuple[Cell, ...]:
    return (
        Marked(words(f"verdict.{check.verdict}"), MARKS[check.verdict]),
        words.said(check.what),
        words.said(check.expected),
        words.said(check.seen),
        str(check.n),
        words.said(check.bound) or UNKNOWN,
    )


def figures(words: Words, table: Figures, about: str) -> Table:
    """A table of `bench` as it prints it: a dash for what was not measured, or not often enough."""
    columns = tuple(_title(words, column) for column in table.columns)
    rows = tuple(
        tuple(_cell(words, column, value) for column, value in zip(table.columns, row, strict=True))
        for row in table.rows
    )
    return Table(columns, rows, about)


def _title(words: Words, column: Column) -> str:
    return f"{words.get(f'column.{column.name}', column.name)}{column.suffix}"


def _cell(words: Words, column: Column, value: float | str | None) -> str:
    if value is None:
        return UNKNOWN
    return words.said(value) if isinstance(value, str) else column.text(value)


def speculation(material: Material, words: Words) -> Section:
    """MTP: what it is, what runs, and arms against each other where runs of more than one were given."""
    tokens, check = material.fleet.tokens, acceptance(material)
    force = words("mtp.force", n=tokens) if tokens else words("mtp.off")
    if check is not None:
        rest = check.seen.partition(", ")[2] if ", " in check.seen else check.seen
        force += words("mtp.accepted", seen=words.said(rest), n=check.n, when=material.verified)
    arms = _arms(material)
    principle = Section("mtp-principle", words("section.mtp-principle"), (Text(words("mtp.principle")), Text(force)))
    crossed, said = _crossover(material, words)
    if len({one.run.header.tokens for one in arms}) < 2 and not crossed:
        nothing = (Text(words("mtp.not_compared"), Mark.UNKNOWN),)
        parts = (principle, Section("mtp-compared", words("section.mtp-compared"), nothing))
        return Section("speculation", words("section.speculation"), (), (*parts, _conclusion(words, [])))
    one_by_one, verdicts = _one_by_one(arms, words) if arms else ([], [])
    part = Section("mtp-compared", words("section.mtp-compared"), (*crossed, *one_by_one))
    end = _conclusion(words, [*said, *verdicts])
    return Section("speculation", words("section.speculation"), (), (principle, part, end))


def _crossover(material: Material, words: Words) -> tuple[list[Block], list[str]]:
    """The newest `bench ab`, all its rounds together, and its verdicts; nothing where there was none."""
    runs = [one.run for one in material.runs if one.run.header.scenario == "ab"]
    if not runs:
        return [], []
    newest = runs[-1].header.parameters.get("experiment")
    own = [run for run in runs if run.header.parameters.get("experiment") == newest]
    found, n = ab_result.analysis(own), sum(len(run.measured) for run in own)
    about = words("about.runs", n=n, runs=len(own))
    instances = len(own[0].header.parameters["arms"])
    blocks: list[Block] = [Text(words("mtp.crossover", when=own[0].header.started, n=instances, rounds=len(own)))]
    blocks += [Text(words("bench.invalid", why=words.said(why)), Mark.BAD) for why in dict.fromkeys(found.invalid)]
    blocks += [Text(words("bench.partial", why=words.said(found.partial)), Mark.ODD)] if found.partial else []
    blocks += [_checks(words, found, about), *(figures(words, table, about) for table in found.tables)]
    blocks += [Text(words.said(note)) for note in found.notes]
    verdicts = []
    for row in (row for table in found.tables for row in table.rows):
        names = [column.name for column in found.tables[0].columns]
        cell = dict(zip(names, row, strict=True))
        pair, said = words("mtp.arms", a=cell["A"], b=cell["B"]), words.said(str(cell["verdict"]))
        measure = words.said(str(cell["work"]))
        verdicts.append(words("mtp.verdict", pair=pair, measure=measure, verdict=said, n=cell["pairs"]))
    return blocks, verdicts


def _one_by_one(arms: Sequence[NamedRun], words: Words) -> tuple[list[Block], list[str]]:
    """Runs of one scenario with several lengths, one after the other."""
    rows = tuple(_arm(one) for one in arms)
    columns = tuple(
        words(f"mtp.{name}")
        for name in ("tokens", "scenario", "n", "rate", "interval", "ttft", "accepted_share", "when")
    )
    compared, verdicts = _compared(arms, words)
    about = words("about.runs", n=sum(len(one.run.measured) for one in arms), runs=len(arms))
    return [Table(columns, rows, about), *compared], verdicts


def _arms(material: Material) -> list[NamedRun]:
    """The newest run of every scenario and number of tokens, where a scenario was run with several."""
    newest: dict[tuple[str, int | None], NamedRun] = {}
    for one in material.runs:
        newest[one.run.header.scenario, one.run.header.tokens] = one
    several = [s for s in {scenario for scenario, _ in newest} if sum(own == s for own, _ in newest) > 1]
    return [
        one
        for (scenario, tokens), one in sorted(newest.items(), key=lambda kv: (kv[0][0], kv[0][1] or 0))
        if scenario in several
    ]


def _arm(one: NamedRun) -> tuple[Cell, ...]:
    from fleetctl.bench import counters

    run = one.run
    rates = [measures.values(own, measures.user_rate) for own in measures.by_backend(run.measured).values()]
    # Requests to one instance are no independent runs of it: the interval is that of the instances.
    rate = stats.mean([statistics.fmean(own) for own in rates if own])
    first = stats.quantile(measures.values(run.measured, measures.ttft), 50).value
    change = counters.change(run.end or {})
    accepted = counters.acceptance(change) if change else None
    return (
        UNKNOWN if run.header.tokens is None else str(run.header.tokens),
        run.header.scenario,
        str(len(run.measured)),
        UNKNOWN if rate is None else f"{rate.value:.1f}",
        UNKNOWN if rate is None else f"{rate.low:.1f} - {rate.high:.1f}",
        UNKNOWN if first is None else f"{1000 * first:.0f}",
        UNKNOWN if accepted is None else f"{accepted.rate:.1%}",
        run.header.started,
    )


def _compared(arms: Sequence[NamedRun], words: Words) -> tuple[list[Block], list[str]]:
    """Each arm against each, as `bench compare` does it, refusals included."""
    blocks: list[Block] = []
    verdicts: list[str] = []
    for first, second in combinations(arms, 2):
        a, b = first.run.header, second.run.header
        if a.scenario != b.scenario:
            continue
        pair = words("mtp.pair", scenario=a.scenario, a=a.tokens, b=b.tokens)
        found = compare.compare(first.run, second.run)
        if found.refused:
            blocks.append(Text(words("mtp.refused", pair=pair, why="; ".join(found.refused)), Mark.ODD))
            continue
        rows = []
        for row in found.rows:
            d = row.difference
            said = words.said(row.verdict)
            verdicts.append(
                words(
                    "mtp.verdict",
                    pair=pair,
                    measure=f"{words.said(row.cell)}, {words.said(row.measure)}",
                    verdict=said,
                    n=d.n,
                )
            )
            low, high = (UNKNOWN if end is None else f"{end:+.1f} %" for end in (d.low, d.high))
            percent = UNKNOWN if d.percent is None else f"{d.percent:+.1f} %"
            rows.append(
                (
                    words.said(row.cell),
                    words.said(row.measure),
                    f"{row.first:.3g}",
                    f"{row.second:.3g}",
                    percent,
                    f"{low} … {high}",
                    str(d.n),
                    said,
                )
            )
        names = ("cell", "measure", "a", "b", "difference", "interval", "pairs", "judged")
        columns = tuple(words(f"mtp.{name}") for name in names)
        blocks += [Text(pair), Table(columns, tuple(rows), words("about.pair", a=a.started, b=b.started))]
    return blocks, verdicts


def _conclusion(words: Words, verdicts: Sequence[str]) -> Section:
    lines = [Text(text) for text in verdicts] or [Text(words("mtp.no_conclusion"))]
    return Section("mtp-conclusion", words("section.mtp-conclusion"), (*lines, Text(words("mtp.honest"))))
