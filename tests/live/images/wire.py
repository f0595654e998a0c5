"""Stands in for ssh between receiver and source: runs what the transfer's key may run, and breaks as it is told.

The folder of this file has `settings.json`: the source's `environment`, the `serve` command, and `faults`, one for each
connection that carries a layer or an archive, used up in order: {"after": bytes, "run": a shell line, "code": the exit
status}. `asked` gets what was asked for, `carried` the bytes of each answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> int:
    words = sys.argv[1:]
    words = words[words.index("source") + 1 :]
    settings = json.loads((HERE / "settings.json").read_text())
    with (HERE / "asked").open("a") as asked:
        print(*words, file=asked)
    fault = None
    if words[0] in ("layer", "save") and settings["faults"]:
        fault = settings["faults"].pop(0)
        (HERE / "settings.json").write_text(json.dumps(settings))
    environment = {**os.environ, **settings["environment"], "SSH_ORIGINAL_COMMAND": " ".join(words)}
    carried = 0
    with subprocess.Popen(settings["serve"], env=environment, stdout=subprocess.PIPE, bufsize=0) as serving:
        assert serving.stdout is not None
        try:
            while True:
                if fault is not None and carried == fault["after"]:
                    subprocess.run(["sh", "-c", fault.get("run", ":")], check=False)
                    if fault.get("code", 255):
                        serving.kill()
                        print("Connection to 192.0.2.1 closed by remote host.", file=sys.stderr)
                        return int(fault.get("code", 255))
                    fault = None
                data = os.read(serving.stdout.fileno(), min(1 << 16, fault["after"] - carried) if fault else 1 << 16)
                if not data:
                    break
                carried += len(data)
                while data:
                    data = data[os.write(1, data) :]
        except OSError as error:
            print(f"write stdout: {error.strerror}", file=sys.stderr)
            serving.kill()
            return 255
        finally:
            with (HERE / "carried").open("a") as file:
                print(words[0], carried, file=file)
    return serving.returncode


if __name__ == "__main__":
    sys.exit(main())
