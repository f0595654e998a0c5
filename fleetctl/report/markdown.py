"""A report as Markdown, with its plots as files beside it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from fleetctl.report.document import Block, Cell, Code, Figure, Marked, Report, Section, Table
from fleetctl.report.number import numbered

SPECIAL = re.compile(r"([\\`*_\[\]|<>#~])")


def render(report: Report, stem: str) -> tuple[str, dict[str, str]]:
    """The text, and plots by file name: `STEM-NAME.svg`, linked from it."""
    figures: dict[str, str] = {}
    lines = [f"# {escape(report.title)}", ""]
    for text in report.lead:
        lines += [f"{escape(text)}  "]
    lines.append("")
    for number, section in enumerate(report.sections, 1):
        lines += _section(report, section, numbered(report.language, number), "##", stem, figures)
        for part, inner in enumerate(section.parts, 1):
            lines += _section(report, inner, f"{number}.{part} ", "###", stem, figures)
    return "\n".join(lines).rstrip("\n") + "\n", figures


def _section(
    report: Report, section: Section, number: str, level: str, stem: str, figures: dict[str, str]
) -> Iterator[str]:
    yield f'<a id="{section.id}"></a>'
    yield ""
    yield f"{level} {number}{escape(section.title)}"
    yield ""
    for block in section.blocks:
        yield from _block(block, stem, figures)
        yield ""


def _block(block: Block, stem: str, figures: dict[str, str]) -> Iterator[str]:
    if isinstance(block, Table):
        yield _row(block.columns)
        yield "|" + " --- |" * len(block.columns)
        for row in block.rows:
            yield _row(row)
        if block.about:
            yield ""
            yield f"*{escape(block.about)}*"
    elif isinstance(block, Code):
        fence = "```"
        while fence in block.text:
            fence += "`"
        yield f"{fence}{block.language}"
        yield block.text
        yield fence
    elif isinstance(block, Figure):
        if block.drawing:
            yield "```text"
            yield block.drawing
            yield "```"
        else:
            name = f"{stem}-{block.name}.svg"
            figures[name] = block.svg
            yield f"![{escape(block.caption)}]({name.replace(' ', '%20')})"
        yield ""
        yield f"*{escape(block.caption)}*"
    else:
        yield escape(block.text) if block.mark is None else f"**{escape(block.text)}**"


def _row(cells: tuple[Cell, ...] | tuple[str, ...]) -> str:
    texts = [cell.text if isinstance(cell, Marked) else cell for cell in cells]
    return "| " + " | ".join(escape(text).replace("\n", "<br>") for text in texts) + " |"


def escape(text: str) -> str:
    """Text as itself: what Markdown or HTML would take for markup is escaped."""
    return SPECIAL.sub(r"\\\1", text).replace("\\<", "&lt;").replace("\\>", "&gt;")
