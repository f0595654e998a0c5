"""The report's page in a real browser: on paper, on a phone and on a desk nothing sticks out and no number is torn."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from fleetctl.fleet.load import load
from fleetctl.report import html
from fleetctl.report.build import LANGUAGES, build
from fleetctl.report.material import NamedRun
from tests.unit.bench import test_ab
from tests.unit.bench.build import run, sample
from tests.unit.report.world import WHEN, material

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")
ROOT = Path(__file__).parents[2]

# A4 less its margins is 186 mm, 703 CSS pixels, and a headless window keeps 15 for a scroll bar.
PROBE = """<script>addEventListener("load", () => {
  const found = [], wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide) found.push("the page is wider than its window");
  const paper = PAPER;
  for (const one of document.querySelectorAll("h1, h2, h3, p, pre, table, svg")) {
    const inside = !paper && one.closest(".scroll, figure, pre");
    if (!inside && one.getBoundingClientRect().right > wide + 1)
      found.push("sticks out: " + one.tagName + " " + one.textContent.slice(0, 40));
  }
  for (const cell of document.querySelectorAll("td, th")) {
    const text = cell.textContent.trim();
    if (!/^[\\x21-\\x7e]{1,12}$/.test(text)) continue;
    if (cell.tagName === "TH" && cell.parentNode.cells.length > 10) continue;
    const range = document.createRange();
    range.selectNodeContents(cell);
    const lines = new Set([...range.getClientRects()].map(line => Math.round(line.top)));
    if (lines.size > 1) found.push("torn: " + text + " of " + cell.parentNode.cells.length);
  }
  document.body.innerHTML = "<pre id=found>" + found.length + " found\\n" + found.join("\\n") + "</pre>";
});</script>"""


def page(language: str) -> str:
    """A report with the widest tables that there are."""
    fleet = load(ROOT / "inventory.yaml")
    cells = [(users, turn) for turn in (1, 2, 3) for users in (1, 8, 64, 512)]
    samples = [
        sample(1000 * number + n, cell=f"c={users} pass {turn}", scheduled=float(n))
        for number, (users, turn) in enumerate(cells)
        for n in range(64)
    ]
    scaling = run(samples, fleet="qwen38", started=WHEN, scenario="scaling", parameters={"tokens": 100})
    scaling.events = [{"what": "cell", "cell": f"c={users} pass {turn}", "users": users} for users, turn in cells]
    alone = run(fleet="qwen38", started=WHEN)
    rounds = [scaling, alone, *test_ab.all_rounds(slower=5)]
    runs = tuple(NamedRun(f"qwen38-run-20260829T204900Z-{n}.jsonl", one) for n, one in enumerate(rounds))
    return html.render(build(material(fleet, runs=runs), language))


def seen(text: str, folder: Path, width: int, *, paper: bool) -> list[str]:
    if paper:
        # A headless browser shows no page of paper: its rules are shown on a screen of the paper's width instead.
        text = text.replace("@media print", "@media screen").replace("@media (max-width: 45rem)", "@media not all")
    (folder / "page.html").write_text(text.replace("</body>", PROBE.replace("PAPER", str(paper).lower()) + "</body>"))
    words = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    words += [f"--user-data-dir={folder / 'profile'}", (folder / "page.html").as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    match = re.search(r'<pre id="found">(\d+) found\n?(.*?)</pre>', shown, flags=re.S)
    assert match is not None, shown[-500:]
    return unescape(match[2]).splitlines()[:20]


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(("width", "paper"), [(703, True), (500, False), (1280, False)])
def test_nothing_sticks_out_and_no_number_is_torn(language: str, width: int, paper: bool, tmp_path: Path) -> None:
    assert seen(page(language), tmp_path, width, paper=paper) == []
