"""Console entry: `fleetctl` and `python -m fleetctl`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    # A command lives for a second or two: collecting cycles and tearing modules down would cost a tenth of it.
    gc.disable()
    from fleetctl.cli.app import run

    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 1
    os._exit(code)


if __name__ == "__main__":
    main()
