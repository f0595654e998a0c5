"""Reads what `npu-smi info` and `npu-smi info -m` print, on any card and driver.

Rows are told apart by how many `|` cells they have, never by column offset: widths, headers and columns
differ per card and driver. What a card did not say is None, never 0 and never "free". Run npu-smi on the
host: in a container it lists only the container's own processes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_VERSION = re.compile(r"npu-smi\s+(\S+)\s+Version:\s*(\S+)")
_IDLE = re.compile(r"No running processes found in NPU\s+(\d+)")
_BUS = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_USAGE = re.compile(r"(\d+|NA|-)\s*/\s*(\d+|NA|-)")
_HEAD_CELLS = 3
_UNKNOWN = frozenset(("", "-", "NA", "N/A"))


@dataclass(frozen=True)
class NpuProcess:
    """A process that holds memory of a chip; `pid` is the host's. About 130 MB is a mere HCCL context."""

    pid: int | None
    name: str | None
    memory_mb: int | None


@dataclass(frozen=True)
class Npu:
    """One chip of one NPU. `processes` is None when the process table says nothing about this NPU."""

    id: int
    chip: int
    name: str | None
    health: str | None
    hbm_used_mb: int | None
    hbm_total_mb: int | None
    bus_id: str | None
    processes: tuple[NpuProcess, ...] | None


@dataclass(frozen=True)
class NpuReport:
    """All chips in the order printed. A card that did not answer is not among them."""

    version: str | None
    npus: tuple[Npu, ...]


@dataclass(frozen=True)
class ChipMapping:
    """A row of `npu-smi info -m`; `logic_id` is None for the management controller (MCU)."""

    npu: int
    chip: int
    logic_id: int | None
    name: str


@dataclass(frozen=True)
class _Head:
    """The first of the two rows that describe a chip."""

    npu: int
    name: str | None
    health: str | None


class _Processes:
    """The process table as it is read."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int | None, NpuProcess]] = []
        self._mentioned: set[int] = set()

    def idle(self, npu: int) -> None:
        self._mentioned.add(npu)

    def add(self, cells: list[str]) -> None:
        where = cells[0].split()
        if not where or not all(part.isdigit() for part in where):
            return
        npu = int(where[0])
        chip = int(where[1]) if len(where) > 1 else None
        process = NpuProcess(_number(cells[1]), _text(cells[2]), _number(cells[3]))
        self._mentioned.add(npu)
        self._rows.append((npu, chip, process))

    def of(self, npu: int, chip: int) -> tuple[NpuProcess, ...] | None:
        """Those of one chip; a row that names no chip counts for every chip of its NPU."""
        if npu not in self._mentioned:
            return None
        return tuple(row for owner, on, row in self._rows if owner == npu and on in (chip, None))


def parse_info(text: str) -> NpuReport:
    """What `npu-smi info` printed, whole or in part; noise around the tables is passed over."""
    version, processes = None, _Processes()
    head: _Head | None = None
    hbm_column: bool | None = None
    chips: list[Npu] = []
    for line in text.splitlines():
        if found := _IDLE.search(line):
            processes.idle(int(found[1]))
        elif found := _VERSION.search(line):
            version = found[2]
        elif line.startswith("+"):
            head = None
        cells = _cells(line)
        if len(cells) > _HEAD_CELLS:
            processes.add(cells)
        elif len(cells) == _HEAD_CELLS:
            if "Bus-Id" in cells[1]:
                hbm_column = "HBM-Usage" in cells[2]
            elif head is not None and (chip := _chip(head, cells, hbm_column)):
                if all((chip.id, chip.chip) != (other.id, other.chip) for other in chips):
                    chips.append(chip)
            else:
                head = _head(cells) or head
    npus = (_with(chip, processes.of(chip.id, chip.chip)) for chip in chips)
    return NpuReport(version, tuple(npus))


def parse_mapping(text: str) -> tuple[ChipMapping, ...]:
    """What `npu-smi info -m` printed: which logic id (the number in /dev/davinciN) each chip has."""
    rows = []
    for line in text.splitlines():
        parts = line.split(maxsplit=3)
        if len(parts) == 4 and parts[0].isdigit() and parts[1].isdigit():
            rows.append(ChipMapping(int(parts[0]), int(parts[1]), _number(parts[2]), parts[3].strip()))
    return tuple(rows)


def _cells(line: str) -> list[str]:
    """The cells of a whole row; a row that was cut off has none, since half a number is a wrong number."""
    line = line.strip()
    if len(line) < 2 or not (line.startswith("|") and line.endswith("|")):
        return []
    return [cell.strip() for cell in line[1:-1].split("|")]


def _head(cells: list[str]) -> _Head | None:
    number, _, name = cells[0].partition(" ")
    if not number.isdigit():
        return None
    return _Head(int(number), _text(name), _text(cells[1]))


def _chip(head: _Head, cells: list[str], hbm_column: bool | None) -> Npu | None:
    """The second row of a chip, known by its bus id; None when this row is something else."""
    where = cells[0].split()
    if not where or not all(part.isdigit() for part in where):
        return None
    bus = _BUS.search(cells[1])
    usages = _USAGE.findall(cells[2])
    if bus is None and not (_text(cells[1]) is None and usages):
        return None
    # Without a header, one pair may be DDR and not HBM (310P): only the second of two is sure.
    sure = hbm_column is True or (hbm_column is None and len(usages) > 1)
    used, total = usages[-1] if usages and sure else ("", "")
    return Npu(
        id=head.npu,
        chip=int(where[0]),
        name=head.name,
        health=head.health,
        hbm_used_mb=_number(used),
        hbm_total_mb=_number(total),
        bus_id=bus[0] if bus else None,
        processes=None,
    )


def _with(chip: Npu, processes: tuple[NpuProcess, ...] | None) -> Npu:
    return replace(chip, processes=processes)


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _text(text: str) -> str | None:
    text = text.strip()
    return None if text in _UNKNOWN else text
