"""Console entry: `fleetctl` and `python -m fleetctl`."""

from __future__ import annotations

import sys


def main() -> None:
    from fleetctl.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
