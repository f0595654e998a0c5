"""The report as people read it: its shape is the first report's, its figures have n and date, and it always comes."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fleetctl.fleet.fleet import Fleet
from fleetctl.report import html, markdown, overview, service
from fleetctl.report.build import LANGUAGES, build
from fleetctl.report.document import Code, Figure, Marked, Report, Section, Table, Text
from fleetctl.report.findings import Severity, found, mended_by
from fleetctl.report.material import Material, NamedRun
from fleetctl.report.number import numbered
from fleetctl.report.picture import architecture, columns
from fleetctl.report.words import Words
from fleetctl.verify.check import Check, Status, Where
from tests.unit.bench import test_ab
from tests.unit.bench.build import run, sample
from tests.unit.report.world import WHEN, material, unreachable

HEADINGS = [line.split("\t") for line in (Path(__file__).parent / "data/headings.tsv").read_text().splitlines()]
# Tables that explain or list settings: nothing in them was measured.
SETTINGS = {"command", "stage-points"}


def section(report: Report, id: str) -> Section:
    return next(one for one in report.walk() if one.id == id)


def texts(one: Section) -> str:
    """Everything that a section and its parts say."""
    said = []
    for block in one.blocks:
        if isinstance(block, Table):
            said += [cell.text if isinstance(cell, Marked) else cell for row in block.rows for cell in row]
            said.append(block.about)
        elif isinstance(block, Text | Code):
            said.append(block.text)
        else:
            said.append(block.caption)
    return "\n".join([*said, *map(texts, one.parts)])


@pytest.mark.parametrize(("heading", "ours", "reason"), [(*one, "")[:3] for one in HEADINGS], ids=lambda one: one[:12])
def test_every_heading_of_the_first_report_is_one_of_ours_or_has_a_reason(
    whole: Material, heading: str, ours: str, reason: str
) -> None:
    ids = {one.id for one in build(whole, "zh").walk()}
    assert ours in ids or (ours == "-" and len(reason) > 20), heading


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_table_of_figures_says_when_and_of_how_many(whole: Material, language: str) -> None:
    for one in build(whole, language).walk():
        for block in one.blocks:
            if isinstance(block, Table) and one.id not in SETTINGS:
                assert re.search(r"\d{4}-\d\d-\d\dT|n = \d", block.about), (one.id, block.about)
                assert re.search(r"\d", block.about)
            if isinstance(block, Figure):
                assert re.search(r"\d{4}-\d\d-\d\dT", block.caption)


def test_both_languages_have_the_same_sections_tables_and_rows(whole: Material) -> None:
    def shape(report: Report) -> list[tuple[str, list[tuple[str, int]]]]:
        return [
            (one.id, [(type(b).__name__, len(b.rows) if isinstance(b, Table) else 0) for b in one.blocks])
            for one in report.walk()
        ]

    assert shape(build(whole, "zh")) == shape(build(whole, "en"))


def test_ids_are_unique_so_that_links_go_where_they_say(whole: Material) -> None:
    ids = [one.id for one in build(whole, "en").walk()]
    assert len(ids) == len(set(ids))


def test_a_goal_is_reached_only_where_a_check_says_so(whole: Material) -> None:
    words = Words("en")

    def states(given: Material) -> list[str]:
        table = overview.goals(given, words).blocks[-1]
        assert isinstance(table, Table)
        return [row[1].text for row in table.rows if isinstance(row[1], Marked)]

    assert states(whole) == ["reached", "reached", "not known", "reached", "reached", "configured"]
    unchecked = replace(whole, checks=(), verified=None, unverified="--no-verify")
    assert states(unchecked) == ["seen, not checked", "reached", "not known", "not known", "not known", "not known"]


def test_a_way_in_that_only_this_computer_has_is_no_way_in_from_outside(whole: Material) -> None:
    def entry(url: str) -> str:
        balancer = whole.fleet.inventory.balancer.model_copy(update={"public_url": url})
        inventory = whole.fleet.inventory.model_copy(update={"balancer": balancer})
        table = overview.goals(replace(whole, fleet=replace(whole.fleet, inventory=inventory)), Words("en")).blocks[-1]
        assert isinstance(table, Table)
        cell = table.rows[2][1]
        return cell.text if isinstance(cell, Marked) else cell

    assert entry("https://models.example.com") == "reached"
    assert entry("http://127.0.0.1:2219") == "partly"


def test_a_failed_check_is_a_missed_goal_and_a_serious_finding(whole: Material) -> None:
    def broken(check: Check) -> Check:
        if (check.id, check.where) != ("auth", Where.DIRECT):
            return check
        return replace(check, status=Status.FAIL, wrong=1, failed=frozenset({"67/2"}))

    checks = tuple(map(broken, whole.checks))
    given = replace(whole, checks=checks)
    assert "not reached" in texts(overview.goals(given, Words("en")))
    worst = found(given, Words("en"))[0]
    assert worst.severity is Severity.SERIOUS
    assert "auth" in worst.text
    row = texts(section(build(given, "en"), "verify-backends"))
    assert "auth" in row


@pytest.mark.parametrize("language", LANGUAGES)
def test_machines_that_do_not_answer_are_said_and_the_report_still_comes(fleet: Fleet, language: str) -> None:
    given = material(fleet, errors=unreachable(67, 66))
    report = build(given, language)
    word = Words(language)("unreachable")
    assert "67, 66" in texts(section(report, "goals"))
    assert texts(section(report, "hardware")).count(word) == 2
    assert [one.severity for one in found(given, Words(language))][:2] == [Severity.SERIOUS] * 2
    assert html.render(report)


@pytest.mark.parametrize(
    ("gone", "shown"),
    [((), "32 (n = 4 machines)"), ((67, 66), "16 (n = 2 machines)"), ((69, 68, 67, 66), "could not be read")],
)
def test_npus_that_nobody_saw_are_not_counted(fleet: Fleet, gone: tuple[int, ...], shown: str) -> None:
    """The inventory says how many there should be; the table is about what the machines say."""
    part = section(build(material(fleet, errors=unreachable(*gone)), "en"), "hardware")
    table = next(block for block in part.blocks if isinstance(block, Table))
    assert dict(table.rows)["NPUs in all"] == shown


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_fleet_of_which_nobody_answers_has_a_report_that_knows_nothing(fleet: Fleet, language: str) -> None:
    given = material(
        fleet,
        errors=unreachable(69, 68, 67, 66),
        checks=(),
        verified=None,
        unverified="no machine answered",
        history=(),
        runs=(),
        release=None,
        proved={},
        peers=(),
        engines={},
    )
    report = build(given, language)
    words = Words(language)
    goals = section(report, "goals").blocks[-1]
    assert isinstance(goals, Table)
    assert {row[1].text for row in goals.rows if isinstance(row[1], Marked)} == {words("state.unknown")}
    assert words("fleet.unknown") in report.lead[1]
    assert markdown.render(report, "r")


def test_with_the_balancer_down_its_section_says_so(fleet: Fleet) -> None:
    given = material(fleet)
    home = given.facts[69]
    state = {**given.status, "balancer": {**given.status["balancer"], "backends": None, "up": None, "unit": None}}
    down = replace(given, facts={**given.facts, 69: replace(home, balancer=None)}, status=state)
    said = texts(section(build(down, "en"), "balancer"))
    assert "did not answer" in said
    assert "is not known" in said


def test_what_was_not_measured_says_so_with_the_command_that_measures_it(whole: Material) -> None:
    report = build(replace(whole, runs=()), "en")
    assert "Not measured. It is measured by: fleetctl bench soak" in texts(section(report, "bench-soak"))
    assert "nothing was measured" in texts(section(report, "bench-setting"))
    assert "Not measured" in texts(section(report, "mtp-compared"))
    assert "9 scenarios were not measured" in texts(section(report, "findings"))


def test_a_run_that_is_invalid_is_shown_as_invalid(whole: Material) -> None:
    one = run(fleet="qwen38", started=WHEN)
    one.end = {"partial": False, "self_check": {"reasons": ["the loop was 9 ms late"]}}
    given = replace(whole, runs=(NamedRun("bad.jsonl", one),))
    assert "INVALID" in texts(section(build(given, "en"), "bench-sequential"))
    assert any("the loop was 9 ms late" in finding.text for finding in found(given, Words("en")))


def test_failed_requests_are_a_finding_with_n(whole: Material) -> None:
    from fleetctl.bench.samples import Failure

    samples = [sample(n) for n in range(63)] + [sample(63, failure=Failure.STATUS, status=502, detail="Bad Gateway")]
    given = replace(whole, runs=(NamedRun("f.jsonl", run(samples, fleet="qwen38", started=WHEN)),))
    worst = found(given, Words("en"))[0]
    assert worst.severity is Severity.SERIOUS
    assert "n = 64" in worst.text
    assert "502" in worst.text


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_rounds_of_the_newest_bench_ab_are_one_comparison(whole: Material, language: str) -> None:
    older = test_ab.all_rounds(slower=3)
    for one in older:
        one.header.parameters["experiment"] = "older"
    rounds = [*older, *test_ab.all_rounds(slower=5)]
    runs = tuple(NamedRun(f"{number}.jsonl", one) for number, one in enumerate(rounds))
    report = build(replace(whole, runs=runs), language)
    said = texts(section(report, "mtp-compared"))
    faster = {"en": "mtp 3 faster by 10.", "zh": "mtp 3 快 10."}[language]
    assert faster in said
    assert faster in texts(section(report, "mtp-conclusion"))
    assert {"en": "mtp 5 faster", "zh": "mtp 5 快"}[language] not in said
    assert not any(one.id == "bench-ab" for one in report.walk()), "a round by itself compares nothing"
    assert language == "en" or not re.search(r"[a-z]{4,} [a-z]{3,} [a-z]{3,}", said.replace("fleetctl bench", ""))


def test_two_lengths_of_speculation_are_compared_and_one_is_not(whole: Material) -> None:
    arms = tuple(
        NamedRun(f"{tokens}.jsonl", run(fleet="qwen38", started=WHEN, tokens=tokens, seed=tokens, faster=pace))
        for tokens, pace in ((3, 1.25), (4, 1.0))
    )
    report = build(replace(whole, runs=arms), "en")
    said = texts(section(report, "mtp-compared"))
    assert "MTP 3 (A) against MTP 4 (B)" in said
    assert "A better" in said
    assert "A better" in texts(section(report, "mtp-conclusion"))


def test_every_two_lengths_of_three_are_compared(whole: Material) -> None:
    arms = tuple(
        NamedRun(f"{tokens}.jsonl", run(fleet="qwen38", started=WHEN, tokens=tokens, seed=tokens))
        for tokens in (3, 4, 5)
    )
    said = texts(section(build(replace(whole, runs=arms), "en"), "mtp-compared"))
    for a, b in ((3, 4), (3, 5), (4, 5)):
        assert f"MTP {a} (A) against MTP {b} (B)" in said


def test_the_interval_of_an_arm_is_that_of_its_instances_and_not_of_their_requests(whole: Material) -> None:
    """Eight instances, four of them a fifth slower: eight requests each say nothing that one would not."""
    arms = []
    for tokens in (3, 4):
        samples = []
        for number in range(64):
            took = 1.0 if number % 2 else 1.2
            samples.append(sample(number, last=number + took, end=number + took, scheduled=float(number)))
        one = run(samples, fleet="qwen38", started=WHEN, tokens=tokens)
        arms.append(NamedRun(f"{tokens}.jsonl", one))
    part = section(build(replace(whole, runs=tuple(arms)), "en"), "mtp-compared")
    table = next(block for block in part.blocks if isinstance(block, Table))
    row = [cell if isinstance(cell, str) else cell.text for cell in table.rows[0]]
    low, high = map(float, row[4].split(" - "))
    assert float(row[3]) == pytest.approx(91.7, abs=0.1)
    assert high - low == pytest.approx(14.9, abs=0.2)


def test_runs_that_may_not_be_compared_are_refused_with_the_reason(whole: Material) -> None:
    arms = (
        NamedRun("a.jsonl", run(fleet="qwen38", started=WHEN, tokens=3)),
        NamedRun("b.jsonl", run(fleet="qwen38", started=WHEN, tokens=4, url="http://10.0.0.1:1")),
    )
    said = texts(section(build(replace(whole, runs=arms), "en"), "speculation"))
    assert "not comparable: reached another way" in said
    assert "No conclusion" in said


def test_stages_have_the_dates_of_the_commands_that_joined_machines(whole: Material) -> None:
    said = texts(section(build(whole, "en"), "stage-table"))
    assert "2026-08-01T10:00:00Z" in said
    assert "2026-08-02T11:00:00Z" in said, "the second try, which ended well"
    assert said.count("not recorded") == 2


def test_a_failed_command_is_mended_by_a_later_one_on_the_same_machines_only(whole: Material) -> None:
    wrong = next(one for one in whole.history if one.outcome == "failed")
    later = mended_by(whole.history, wrong)
    assert later is not None
    assert later.when == "2026-08-02T11:00:00Z"
    only = tuple(one for one in whole.history if one is not later)
    assert mended_by(only, wrong) is None
    assert "port 8000 taken" in texts(section(build(whole, "en"), "problems"))


def test_an_unknown_history_is_no_clean_one(whole: Material) -> None:
    said = texts(section(build(replace(whole, history=()), "en"), "problems"))
    assert "No command is recorded" in said


def test_the_run_command_is_the_units_own_and_every_option_has_a_row(whole: Material) -> None:
    first = whole.instances[0]
    argv = service.argv(whole, first)
    text = next(block.text for block in section(build(whole, "en"), "command").blocks if isinstance(block, Code))
    assert text == service.shell(argv)
    unit = whole.facts[69].unit_texts[f"/etc/systemd/system/{first.name}.service"]
    assert all(word in unit for word in argv if word.startswith("--"))
    names = {name for name, _ in service.options(argv)}
    assert {"--privileged", "--tensor-parallel-size", "--speculative-config", "-e", "--mount"} <= names
    words = Words("en")
    unexplained = [
        row[0]
        for block in section(build(whole, "en"), "command").blocks
        if isinstance(block, Table)
        for row in block.rows
        if row[2] == words("parameter.passed")
    ]
    assert unexplained == []


def test_what_the_report_says_of_units_stands_in_them(whole: Material) -> None:
    unit = whole.facts[69].unit_texts[f"/etc/systemd/system/{whole.instances[0].name}.service"]
    table = section(build(whole, "en"), "unit-goals").blocks[0]
    assert isinstance(table, Table)
    for row in table.rows[:3]:
        assert all(setting in unit for setting in str(row[1]).split(", ")), row[1]


def test_the_picture_has_every_machine_and_fits_a_page(whole: Material) -> None:
    figure = architecture(whole, Words("zh"))
    for machine in (69, 68, 67, 66):
        assert f"机器{machine}" in figure.svg
        assert f"机器{machine}" in figure.drawing
    assert max(map(columns, figure.drawing.splitlines())) <= 80


@pytest.mark.parametrize("count", [1, 4, 9])
def test_the_picture_of_any_number_of_machines_stays_within_its_frame(whole: Material, count: int) -> None:
    first = whole.fleet.inventory.machines[0]
    machines = (
        first,
        *(first.model_copy(update={"id": n, "address": f"10.255.254.{n}"}) for n in range(1, count)),
    )
    grown = replace(whole.fleet, inventory=whole.fleet.inventory.model_copy(update={"machines": machines}))
    figure = architecture(replace(whole, fleet=grown), Words("en"))
    view = re.search(r'viewBox="0 0 (\d+) (\d+)"', figure.svg)
    assert view is not None
    boxes = re.findall(r'<rect x="([-0-9.]+)" y="([-0-9.]+)" width="([0-9.]+)" height="([0-9.]+)"', figure.svg)
    assert len(boxes) == 3 + count
    for x, y, wide, tall in (tuple(map(float, box)) for box in boxes):
        assert x >= -1
        assert x + wide <= float(view[1]) + 1
        assert y + tall <= float(view[2])
    assert figure.drawing.count("Machine ") >= count


def test_the_configuration_says_when_the_balancer_runs_another_one(whole: Material) -> None:
    assert "exactly this configuration" in texts(section(build(whole, "en"), "configuration"))
    home = whole.facts[69]
    assert home.balancer is not None
    other = replace(home, balancer=replace(home.balancer, config="f" * 32))
    said = texts(section(build(replace(whole, facts={**whole.facts, 69: other}), "en"), "configuration"))
    assert "another configuration" in said


def test_chapters_are_numbered_as_each_language_does() -> None:
    assert [numbered("zh", n) for n in (1, 10, 11, 15, 20, 21)] == [
        "一、",
        "十、",
        "十一、",
        "十五、",
        "二十、",
        "二十一、",
    ]
    assert numbered("en", 3) == "3. "


class Page(HTMLParser):
    """Tags that are open at the end, and everything that a page would fetch."""

    VOID = frozenset({"meta", "br", "img", "line", "circle", "rect", "path", "polyline"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetches: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "srcset", "xlink:href") and value and not value.startswith("#"):
                self.fetches.append(value)
            if name == "href" and value:
                self.links.add(value.removeprefix("#"))
            if name == "id" and value:
                self.ids.add(value)
        assert tag not in ("script", "link", "iframe")

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_page_is_well_formed_and_fetches_nothing(whole: Material, language: str) -> None:
    text = html.render(build(whole, language))
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.fetches == []
    assert page.links <= page.ids
    assert "@import" not in text
    assert "url(" not in text
    assert f'lang="{"zh-CN" if language == "zh" else "en"}"' in text


def test_markup_in_what_machines_said_stays_text(whole: Material) -> None:
    evil = "<script>alert(1)</script> | *x* [y](javascript:z)\n# h"
    given = replace(whole, problems=(f"67/0: {evil}: fleetctl status",))
    page = html.render(build(given, "en"))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    text, _ = markdown.render(build(given, "en"), "r")
    assert "<script>" not in text
    assert "\n# h" not in text
    assert r"\[y\]" in text


def test_plots_are_in_the_page_and_files_beside_the_markdown(whole: Material) -> None:
    scaled = run(
        [sample(n, cell="c=1 pass 1") for n in range(30)], fleet="qwen38", started=WHEN, scenario="distribution"
    )
    given = replace(whole, runs=(NamedRun("d.jsonl", scaled),))
    report = build(given, "zh")
    assert html.render(report).count("<svg") == 2
    text, figures = markdown.render(report, "out")
    assert list(figures) == ["out-bench-distribution.svg"]
    assert "(out-bench-distribution.svg)" in text
    assert "会话" in figures["out-bench-distribution.svg"]
