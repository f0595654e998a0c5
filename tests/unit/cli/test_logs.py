"""`fleetctl logs` shows what an engine says, not the probes that it answered."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from fleetctl.cli import read

STAMP = "2026-08-29T12:00:00+0000 m67 qwen38-tp2-0[1]: (APIServer pid=1) INFO:     10.0.0.1:52788 - "
PROBES = (
    f'{STAMP}"GET /health HTTP/1.1" 200 OK',
    f'{STAMP}"GET /metrics HTTP/1.1" 200 OK',
)
SAID = (
    f'{STAMP}"GET /health HTTP/1.1" 503 Service Unavailable',
    f'{STAMP}"GET /metrics HTTP/1.1" 500 Internal Server Error',
    f'{STAMP}"POST /v1/chat/completions HTTP/1.1" 200 OK',
    f'{STAMP}"GET /v1/models HTTP/1.1" 200 OK',
    f'{STAMP}"GET /healthy HTTP/1.1" 200 OK',
    "2026-08-29T12:00:00+0000 m67 qwen38-tp2-0[1]: (EngineCore pid=9) ERROR 11-30 06:05:12 [core.py:1100] out of memory",
)


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A journal of one instance, newest last: every line is followed by three probes that were answered."""
    lines = [line for said in SAID for line in (said, *PROBES, PROBES[0])]
    (tmp_path / "journal").write_text("".join(f"{line}\n" for line in lines))
    tool = tmp_path / "journalctl"
    tool.write_text(
        f'#!/bin/sh\ncase " $* " in *" -r "*) tac {tmp_path}/journal ;; '
        f'*) while [ $# -gt 1 ]; do [ "$1" = -n ] && n=$2; shift; done; tail -n "$n" {tmp_path}/journal ;; esac\n'
    )
    tool.chmod(0o755)
    return tmp_path


def printed(machine: Path, command: str) -> list[str]:
    environment = {**os.environ, "PATH": f"{machine}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_probes_that_were_answered_are_left_out_and_failures_are_not(machine: Path) -> None:
    assert printed(machine, read._journal("qwen38-tp2-0", False, None, 200, probes=False)) == list(SAID)


def test_the_number_of_lines_is_of_lines_that_are_shown(machine: Path) -> None:
    assert printed(machine, read._journal("qwen38-tp2-0", False, None, 2, probes=False)) == list(SAID[-2:])


def test_everything_is_shown_when_it_is_asked_for(machine: Path) -> None:
    assert printed(machine, read._journal("qwen38-tp2-0", False, None, 4, probes=True)) == [
        SAID[-1],
        *PROBES,
        PROBES[0],
    ]


def test_what_is_followed_is_left_out_here(machine: Path) -> None:
    lines = printed(machine, read._journal("qwen38-tp2-0", True, None, 4, probes=False))
    assert [line for line in lines if not re.search(read.ANSWERED, line)] == [SAID[-1]]
