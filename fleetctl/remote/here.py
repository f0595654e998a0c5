"""The operator's own computer, asked with the same scripts as the machines: how users come in, NAT and TLS included."""

from __future__ import annotations

import shutil
import subprocess
import time

from fleetctl.errors import CommandError
from fleetctl.remote.connection import Result


def has(program: str) -> bool:
    return shutil.which(program) is not None


def run(script: str, *, stdin: bytes = b"", timeout: float) -> Result:
    """Run a POSIX sh `script` here, not as root, at most `timeout` seconds; `stdin` is where secrets go.

    Raises CommandError at the time limit or when there is no sh.
    """
    started = time.monotonic()
    try:
        done = subprocess.run(["sh", "-c", script], input=stdin, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise CommandError(f"a command on this computer did not end within {timeout:g} s") from None
    except OSError as error:
        raise CommandError(f"no command can be run on this computer: {error}") from error
    out, err = (text.decode("utf-8", errors="replace") for text in (done.stdout, done.stderr))
    return Result(done.returncode, out, err, time.monotonic() - started)
