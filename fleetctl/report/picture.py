"""The architecture as a picture, of the inventory: SVG for a page, characters for Markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from fleetctl.report.document import Figure
from fleetctl.report.material import Material
from fleetctl.report.words import Words

WIDTH, GAP, ROW, TALL = 720, 14, 4, 118
INK, LINE, FILL, DARK = "#1b2733", "#5b6b7b", "#eef4fa", "#0b5394"


@dataclass(frozen=True)
class Box:
    """Lines of text in a frame; the first is its name."""

    lines: tuple[str, ...]
    well: bool | None = None


def architecture(material: Material, words: Words) -> Figure:
    """Users, the way in, the balancer, and every machine with its instances."""
    fleet, balancer = material.fleet, material.fleet.inventory.balancer
    entry = balancer.public_url or words("picture.no_public")
    address = fleet.machines[balancer.machine].address
    top = (
        Box((words("picture.users"),)),
        Box((words("picture.entry"), entry)),
        Box(
            (
                words("picture.balancer", machine=balancer.machine),
                f"{address}:{balancer.listen}",
                words(f"affinity.{balancer.affinity.value}.short", n=len(material.peers) or len(fleet.instances)),
            )
        ),
    )
    machines = [_machine(material, words, machine) for machine in fleet.machines]
    return Figure(
        "architecture", words("picture.caption", when=material.when), _svg(top, machines), _drawing(top, machines)
    )


def _machine(material: Material, words: Words, machine: int) -> Box:
    fleet = material.fleet
    own = fleet.on(machine)
    lines = [words("machine", id=machine), fleet.machines[machine].address]
    if own:
        devices = [device for one in own for device in one.devices]
        lines.append(f":{_range([one.port for one in own])}")
        lines.append(words("picture.devices", devices=_range(devices)))
        lines.append(words("picture.instances", n=len(own), devices=len(own[0].devices)))
    if machine in material.errors:
        return Box((*lines, words("unreachable")), False)
    serving = sum(material.state(one.id).get("state") == "serving" for one in own)
    return Box((*lines, words("picture.serving", n=serving, all=len(own))), serving == len(own))


def _range(numbers: Sequence[int]) -> str:
    """`0-7` for what is without holes, `0,1,4` otherwise."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))


def _svg(top: Sequence[Box], machines: Sequence[Box]) -> str:
    parts, y, middle = [], 10.0, WIDTH / 2
    for number, box in enumerate(top):
        tall = 16 + 18 * len(box.lines)
        parts.append(_box(middle - 150, y, 300, tall, box, dark=number == len(top) - 1))
        y += tall
        if number < len(top) - 1:
            parts.append(_arrow(middle, y, middle, y + 24))
            y += 24
    bus = y + 18
    parts.append(_line(middle, y, middle, bus))
    wide = (WIDTH - GAP * (ROW - 1)) / ROW
    for begin in range(0, len(machines), ROW):
        row = machines[begin : begin + ROW]
        left = (WIDTH - len(row) * wide - (len(row) - 1) * GAP) / 2
        centres = [left + number * (wide + GAP) + wide / 2 for number in range(len(row))]
        parts.append(_line(min(*centres, middle), bus, max(*centres, middle), bus))
        if begin + ROW < len(machines):
            parts.append(_line(WIDTH - 3, bus, WIDTH - 3, bus + TALL + 48))
            parts.append(_line(centres[-1], bus, WIDTH - 3, bus))
        for centre, box in zip(centres, row, strict=True):
            parts.append(_arrow(centre, bus, centre, bus + 20))
            parts.append(_box(centre - wide / 2, bus + 20, wide, TALL, box))
        bus += TALL + 48
    height = bus - 18
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" role="img" '
    return f'{head}font-family="sans-serif" fill="{INK}">' + "".join(parts) + "</svg>\n"


def _box(x: float, y: float, wide: float, tall: float, box: Box, *, dark: bool = False) -> str:
    edge = {True: "#1a7f37", False: "#b42318", None: LINE}[box.well]
    fill, ink = (DARK, "#fff") if dark else (FILL, INK)
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{tall:.1f}" rx="6" fill="{fill}" '
        f'stroke="{edge}" stroke-width="1.5"/>'
    ]
    for number, text in enumerate(box.lines):
        weight = ' font-weight="bold"' if number == 0 else ""
        parts.append(
            f'<text x="{x + wide / 2:.1f}" y="{y + 21 + 18 * number:.1f}" text-anchor="middle" font-size="13" '
            f'fill="{ink}"{weight}>{escape(text)}</text>'
        )
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{LINE}" stroke-width="1.5"/>'


def _arrow(x1: float, y1: float, x2: float, y2: float) -> str:
    head = f'<path d="M{x2 - 4:.1f} {y2 - 7:.1f} L{x2:.1f} {y2:.1f} L{x2 + 4:.1f} {y2 - 7:.1f}" fill="none" '
    return _line(x1, y1, x2, y2) + head + f'stroke="{LINE}" stroke-width="1.5"/>'


def _drawing(top: Sequence[Box], machines: Sequence[Box]) -> str:
    """Boxes of + - and |, as wide as their text; Chinese characters take two columns."""
    inner = max(columns(text) for box in machines for text in box.lines)
    rows = [machines[begin : begin + ROW] for begin in range(0, len(machines), ROW)]
    across = max(len(row) for row in rows) * (inner + 4 + 2) - 2
    head = max(columns(text) for box in top for text in box.lines)
    across = max(across, head + 4)
    lines: list[str] = []
    for box in top:
        lines += [centred(line, across) for line in _frame(box, head)]
        lines.append(centred("|", across))
    for row in rows:
        framed = [_frame(box, inner) for box in row]
        tall = max(map(len, framed))
        blank = " " * (inner + 4)
        framed = [[*one, *[blank] * (tall - len(one))] for one in framed]
        lines.append(centred("  ".join(centred("v", inner + 4) for _ in row), across))
        lines += [centred("  ".join(parts), across) for parts in zip(*framed, strict=True)]
    return "\n".join(line.rstrip() for line in lines)


def _frame(box: Box, inner: int) -> list[str]:
    edge = f"+{'-' * (inner + 2)}+"
    return [edge, *(f"| {centred(text, inner)} |" for text in box.lines), edge]


def columns(text: str) -> int:
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)


def centred(text: str, wide: int) -> str:
    free = max(0, wide - columns(text))
    return " " * (free // 2) + text + " " * (free - free // 2)
