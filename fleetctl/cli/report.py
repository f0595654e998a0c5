"""`fleetctl report`: the deployment report as Markdown or as one HTML page."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fleetctl.cli.change import exit_code, fleet_of, with_session
from fleetctl.cli.history import commands_of
from fleetctl.cli.options import Options
from fleetctl.cli.output import dump
from fleetctl.errors import FleetctlError, UsageError
from fleetctl.plan.session import Session
from fleetctl.report.build import LANGUAGES, build
from fleetctl.report.document import Report
from fleetctl.report.gather import gather
from fleetctl.report.runs import read

KINDS = (".md", ".html")


def report(
    options: Options, out: Path, language: str | None, bench: Sequence[Path], *, verify: bool, reload: bool
) -> int:
    """Write the file. 0: written, whatever it says; 4: written, and machines did not answer.

    Raises UsageError before any connection for a file, language or samples that cannot be.
    """
    languages = LANGUAGES if language == "all" else (language or "en",)
    if languages[0] not in LANGUAGES:
        raise UsageError(f"--lang {language}: there are {', '.join(LANGUAGES)} and all")
    if out.is_dir():
        raise UsageError(f"--out {out}: that is a folder", next_command=f"fleetctl report --out {out / 'report'}")
    kinds = KINDS if out.suffix == "" else (out.suffix,)
    if kinds[0] not in KINDS:
        raise UsageError(f"--out {out}: the name ends in .md or .html")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    runs = read(fleet_of(options).name, bench)

    def write(session: Session) -> int:
        history = commands_of(session)
        material = gather(session, history, runs, verify=verify, reload=reload)
        secrets = _secrets(session)
        written = []
        for one in languages:
            made = build(material, one, secrets)
            stem = out.with_suffix("") if len(languages) == 1 else out.with_name(f"{out.stem}.{one}")
            for kind in kinds:
                written += _write(made, stem.with_name(f"{stem.name}{kind}"))
        code = exit_code((), session.errors.values())
        if options.json:
            unreachable = [{"id": m, "error": cause} for m, cause in material.errors.items()]
            files = [str(path) for path in written]
            print(
                dump(
                    {"schema": 1, "fleet": session.fleet.name, "exit": code, "unreachable": unreachable, "files": files}
                )
            )
        else:
            print("\n".join(map(str, written)))
        return code

    return with_session(options, lambda fleet: fleet.machines, write)


def _secrets(session: Session) -> list[str]:
    """The key, to mask it; a report without it is possible, and then nothing was asked with it either."""
    try:
        return [session.key.reveal()]
    except FleetctlError:
        return []


def _write(made: Report, path: Path) -> list[Path]:
    """The report, and beside Markdown its plots."""
    if path.suffix == ".html":
        from fleetctl.report.html import render as page

        _put(path, page(made))
        return [path]
    from fleetctl.report.markdown import render

    text, figures = render(made, path.stem)
    for name, svg in figures.items():
        _put(path.with_name(name), svg)
    _put(path, text)
    return [path, *(path.with_name(name) for name in figures)]


def _put(path: Path, text: str) -> None:
    """Whole or not at all: what was there stays until the new file is complete."""
    handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
