"""What a report is made of, before anybody decides how it looks. Pure; texts are plain, renderers escape them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum


class Mark(str, Enum):
    """How a cell is coloured; its words say the same."""

    GOOD = "good"
    ODD = "odd"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Marked:
    text: str
    mark: Mark


Cell = str | Marked


@dataclass(frozen=True)
class Text:
    text: str
    mark: Mark | None = None


@dataclass(frozen=True)
class Code:
    """`language`: a hint for Markdown readers, such as `nginx`."""

    text: str
    language: str = ""


@dataclass(frozen=True)
class Table:
    """`about`: when the figures were seen and how many they are; empty only where nothing was measured."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    about: str = ""


@dataclass(frozen=True)
class Figure:
    """`svg` for a page; `drawing`: the same in characters where that can be done, for Markdown."""

    name: str
    caption: str
    svg: str
    drawing: str = ""


Block = Text | Code | Table | Figure


@dataclass(frozen=True)
class Section:
    """`id` is the same in every language: links and tests use it."""

    id: str
    title: str
    blocks: tuple[Block, ...] = ()
    parts: tuple[Section, ...] = ()


@dataclass(frozen=True)
class Report:
    """`lead`: lines below the title. `language`: `zh` or `en`."""

    language: str
    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]

    def walk(self) -> Iterator[Section]:
        """Every section and part, in order."""
        for section in self.sections:
            yield section
            yield from section.parts

    def changed(self, change: Callable[[str], str]) -> Report:
        """The same with every text changed, as masking does it: nothing that is printed is left out."""
        sections = tuple(_section(one, change) for one in self.sections)
        return replace(self, title=change(self.title), lead=tuple(map(change, self.lead)), sections=sections)


def _section(section: Section, change: Callable[[str], str]) -> Section:
    return replace(
        section,
        title=change(section.title),
        blocks=tuple(_block(block, change) for block in section.blocks),
        parts=tuple(_section(part, change) for part in section.parts),
    )


def _block(block: Block, change: Callable[[str], str]) -> Block:
    if isinstance(block, Table):
        rows = tuple(tuple(_cell(cell, change) for cell in row) for row in block.rows)
        return Table(tuple(map(change, block.columns)), rows, change(block.about))
    if isinstance(block, Figure):
        return replace(block, caption=change(block.caption), svg=change(block.svg), drawing=change(block.drawing))
    return replace(block, text=change(block.text))


def _cell(cell: Cell, change: Callable[[str], str]) -> Cell:
    return replace(cell, text=change(cell.text)) if isinstance(cell, Marked) else change(cell)
