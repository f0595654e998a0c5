"""Console entry: `fleetctl` and `python -m fleetctl`."""

from __future__ import annotations

import gc
import os
import sys

from fleetctl import interrupt


def main() -> None:
    # A command lives for a second or two: collecting cycles and tearing modules down would cost a tenth of it.
    gc.disable()
    # No plugin of pydantic's is wanted: looking for them reads the metadata of every package that is installed.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with interrupt.ended_by_signals():
        code = _run()
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


def _run() -> int:
    try:
        from fleetctl.cli.app import run

        return run(sys.argv[1:])
    except KeyboardInterrupt:
        return 130
    except Exception:
        if interrupt.came.is_set():  # pydantic, for one, makes a SchemaError of it
            return 130
        raise


if __name__ == "__main__":
    main()
