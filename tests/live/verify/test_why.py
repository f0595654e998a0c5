"""The balancer's log, asked about requests that it has answered but not written yet."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

from fleetctl.commands.script import Script


def test_what_the_balancer_has_not_written_yet_is_waited_for(tmp_path: Path) -> None:
    """nginx holds its log for a second: why a request went elsewhere is known only then."""
    log = tmp_path / "access.log"
    log.write_text('{"id":"aa","why":"primary"}\n{"id":"bb","why":"primary"}\n')

    def late() -> None:
        time.sleep(0.5)
        with log.open("a") as file:
            file.write('{"id":"cc","why":"spill"}\n')

    writer = threading.Thread(target=late)
    writer.start()
    done = subprocess.run(
        ["sh", "-c", Script("verify_why", (str(log), "bb", "cc")).text], check=True, capture_output=True, text=True
    )
    writer.join()
    assert done.stdout.splitlines() == ['{"id":"bb","why":"primary"}', '{"id":"cc","why":"spill"}']


def test_what_is_never_logged_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    log.write_text('{"id":"aa","why":"primary"}\n')
    words = ["sh", "-c", Script("verify_why", (str(log), "zz")).text]
    assert subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout.strip() == ""
