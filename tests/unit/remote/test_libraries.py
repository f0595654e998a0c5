"""Who imports what SSH takes."""

from __future__ import annotations

import re
import threading
from pathlib import Path

from fleetctl.remote import link
from fleetctl.remote.fanout import Connections

REMOTE = Path(link.__file__).parent


def test_no_two_threads_import_the_ssh_libraries_at_once() -> None:
    """`status` once ended with a deadlock of Python's import locks: the threads that connect, and the one that waits."""
    began = threading.Event()

    def begin() -> None:
        Connections([]).begin()
        began.set()

    with link._IMPORTING:
        thread = threading.Thread(target=begin, daemon=True)
        thread.start()
        assert not began.wait(0.1)
    assert began.wait(10)


def test_what_a_thread_imports_first_is_behind_the_lock() -> None:
    """Every import of them within a function stands below the one in `libraries`, or behind a link that it made."""
    text = (REMOTE / "link.py").read_text(encoding="utf-8")
    body = text.partition("    def link(self)")[2].partition("    def _socket")[0]
    assert body.index("libraries()") < body.index("import SSHException")
    assert "import paramiko" not in (REMOTE / "fanout.py").read_text(encoding="utf-8")
    assert re.search(r"^(import|from) (paramiko|fabric)", text, re.MULTILINE) is None
