"""A report as one HTML page: style and pictures inside, no script, nothing fetched. Pure."""

from __future__ import annotations

from typing import Any

from fleetctl.report.document import Code, Figure, Marked, Report, Table
from fleetctl.report.number import numbered
from fleetctl.report.words import Words

SHORT = 12  # characters
KINDS = ((Table, "table"), (Code, "code"), (Figure, "figure"))


def render(report: Report) -> str:
    """Every text is escaped by the template; pictures are our own SVG and go in as they are."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("fleetctl.report", "."),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    words = Words(report.language)
    locale = {"zh": "zh-CN"}.get(report.language, report.language)
    template = environment.get_template("page.html.j2")
    text: str = template.render(
        report=report, locale=locale, contents=words("contents"), numbered=numbered, kind=_kind, cell=_cell
    )
    return text


def _kind(block: Any) -> str:
    return next((name for kind, name in KINDS if isinstance(block, kind)), "text")


def _cell(cell: Any) -> tuple[str, str]:
    """Text and classes: its mark, and `short` for words and numbers that are never broken into two lines."""
    text, mark = (cell.text, cell.mark.value) if isinstance(cell, Marked) else (cell, "")
    short = "short" if all(len(word) <= SHORT for word in text.split()) else ""
    return text, f"{mark} {short}".strip()
