"""Which files of `bench` belong into a report: those that were named, or those of this fleet in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleetctl.bench import samples
from fleetctl.errors import UsageError
from fleetctl.report.material import NamedRun

FOLDER = Path("bench")  # where `fleetctl bench` writes


def read(fleet: str, given: Sequence[Path]) -> tuple[NamedRun, ...]:
    """Runs, oldest first: files as named, folders searched for `*.jsonl`; without any, ./bench where there is one.

    Raises UsageError for a named file that is no run, or of another fleet; in a folder such files are passed over.
    """
    found: list[NamedRun] = []
    for path in given or ([FOLDER] if FOLDER.is_dir() else []):
        found += _of_folder(fleet, path) if path.is_dir() else [_of_file(fleet, path)]
    unique = {(one.name, one.run.header.started): one for one in found}
    return tuple(sorted(unique.values(), key=lambda one: (one.run.header.started, one.name)))


def _of_file(fleet: str, path: Path) -> NamedRun:
    run = samples.read(path)
    if run.header.fleet != fleet:
        raise UsageError(f"{path} was measured on fleet {run.header.fleet or 'unknown'}, this report is about {fleet}")
    return NamedRun(path.name, run)


def _of_folder(fleet: str, folder: Path) -> list[NamedRun]:
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        try:
            found.append(_of_file(fleet, path))
        except UsageError:
            continue
    return found
