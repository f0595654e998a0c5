"""One HTTP request as a value, and many of them as one configuration for curl. Pure.

The configuration goes to curl on its standard input, so that the key in it is never an argument.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from fleetctl.verify.check import Where

DONE = "=done"  # not @: curl would read the format from a file of that name
WRITE_OUT = f"{DONE} NUMBER %{{http_code}} %{{exitcode}} %{{time_total}} %{{errormsg}}\\n"
WRONG_KEY = "sk-fleetctl-verify-this-is-no-key"


class Key(Enum):
    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"


@dataclass(frozen=True)
class Ask:
    """`who` is asked about (`67/2`, or a session id), `kind` is what: together with `where` they name the answer.

    `body`: sent as JSON by POST; without it and without `method` it is a GET. `seconds`: the limit for all of it.
    """

    where: Where
    who: str
    kind: str
    url: str
    key: Key = Key.RIGHT
    headers: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    method: str | None = None
    seconds: int = 10

    @property
    def name(self) -> tuple[Where, str, str]:
        return (self.where, self.who, self.kind)


def quoted(text: str) -> str:
    """A value inside the double quotes of a curl configuration."""
    text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")


def lines(ask: Ask, *, insecure: bool = False) -> list[str]:
    """The request without its key, its outputs and its report."""
    found = [f"url = {quoted(ask.url)}", f"max-time = {ask.seconds}", "connect-timeout = 4", "silent", "path-as-is"]
    found += ["insecure"] if insecure else []
    found += [f"header = {quoted(f'{name}: {value}')}" for name, value in ask.headers]
    if ask.body is not None:
        found += ['header = "Content-Type: application/json"', 'header = "Expect:"']
        found.append(f"data-raw = {quoted(json.dumps(ask.body))}")
    if ask.method is not None:
        found.append(f"request = {quoted(ask.method)}")
    return found


def config(asks: Iterable[Ask], key: str, mark: str, *, insecure: bool = False) -> str:
    """All requests for `verify_ask.sh`; the n-th one's answer comes back in files named MARK.n.*."""
    blocks = []
    for number, ask in enumerate(asks):
        own = lines(ask, insecure=insecure)
        if ask.key is not Key.NONE:
            token = key if ask.key is Key.RIGHT else WRONG_KEY
            own.append(f"header = {quoted(f'Authorization: Bearer {token}')}")
        own += [f"output = {mark}.{number}.body", f"dump-header = {mark}.{number}.head"]
        own.append(f'write-out = "{WRITE_OUT.replace("NUMBER", str(number))}"')
        blocks.append("\n".join(own))
    return "\nnext\n".join(blocks) + "\n"


def key_of_streams(key: str) -> bytes:
    """What `verify_stream.sh` wants on its standard input: the key as it stands within quotes."""
    return quoted(key)[1:-1].encode()


def stream_config(ask: Ask, *, insecure: bool = False) -> str:
    """One stream for `verify_stream.sh`, which adds the key and the outputs."""
    return "\n".join([*lines(ask, insecure=insecure), f'write-out = "{WRITE_OUT.replace("NUMBER", "0")}"'])
