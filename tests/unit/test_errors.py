"""What is shown of foreign text: it cannot move the cursor, ring, or hide what stands beside it."""

from __future__ import annotations

import pytest

from fleetctl.cli.output import Voice, table
from fleetctl.errors import CommandError, visible

HOSTILE = "ok\x1b[2J\x07\rgone\u202e\x9b1m"


def test_what_a_terminal_obeys_is_shown_as_a_mark_and_text_stays() -> None:
    assert visible(HOSTILE) == "ok\ufffd[2J\ufffd\ufffdgone\ufffd\ufffd1m"
    assert visible("two\nlines\tand 中文, é") == "two\nlines\tand 中文, é"


def test_neither_error_nor_table_nor_chatter_obeys_a_servers_answer(capsys: pytest.CaptureFixture[str]) -> None:
    Voice()("67", HOSTILE)
    shown = capsys.readouterr().err + str(CommandError(HOSTILE, machine=67)) + table(("SEEN",), [(HOSTILE,)])
    assert not set(shown) & set("\x1b\x07\r\u202e\x9b")
