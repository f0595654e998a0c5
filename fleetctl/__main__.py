"""Console entry: `fleetctl` and `python -m fleetctl`."""

from __future__ import annotations

import gc
import os
import sys


def main() -> None:
    # A command lives for a second or two: collecting cycles and tearing modules down would cost a tenth of it.
    gc.disable()
    # No plugin of pydantic's is wanted: looking for them reads the metadata of every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    from fleetctl.cli.app import run

    code = run(sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except BrokenPipeError:
            pass  # whoever read our output has seen enough
        except (OSError, ValueError) as error:
            code = code or 1
            os.write(2, f"error: the output could not be written: {error}\n".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
