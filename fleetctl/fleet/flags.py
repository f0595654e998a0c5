"""The `vllm serve` command line of an instance, and what an image says about its own flags.

Sources: `vllm serve --help=all` of 0.32, vLLM's FlexibleArgumentParser (`_` and `-` are the same).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleetctl.errors import UsageError
from fleetctl.fleet import flag_types
from fleetctl.fleet.allocation import Problem
from fleetctl.fleet.fleet import Fleet, canonical
from fleetctl.fleet.instance import Instance
from fleetctl.fleet.schema import COMPUTED_FLAGS, FLAG_NAME, FlagValue, Inventory

JSON_LISTS = frozenset({"allowed-origins", "allowed-methods", "allowed-headers"})
COMMA_LISTS = frozenset({"disable-access-log-for-endpoints"})
REPEATED = frozenset({"middleware"})


def engine_argv(fleet: Fleet, instance: Instance) -> list[str]:
    """`vllm serve ...` as the container runs it; never holds the key, which travels as a file.

    The port inside the container is the instance's own, so that logs and `X-Upstream-Addr` agree.
    """
    model = fleet.inventory.model
    argv = ["vllm", "serve", f"/models/{model.path.name}", "--served-model-name", model.name]
    argv += ["--host", "0.0.0.0", "--port", str(instance.port)]  # noqa: S104 the container's own network
    for name, value in fleet.engine.items():
        argv += flag(name, value)
    return argv + _speculative(fleet)


def flag(name: str, value: FlagValue) -> list[str]:
    """One flag as arguments: true is the bare flag, false its `--no-` form, None leaves it to the engine."""
    name = canonical(name)
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return _list(name, value)
    return [f"--{name}", _text(value)]


def _list(name: str, values: list[Any]) -> list[str]:
    if name in JSON_LISTS:
        return [f"--{name}", _text(values)]
    if name in COMMA_LISTS:
        return [f"--{name}", ",".join(map(_text, values))] if values else []
    if name in REPEATED:
        return [word for value in values for word in (f"--{name}", _text(value))]
    return [f"--{name}", *map(_text, values)] if values else []


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return str(value)


def _speculative(fleet: Fleet) -> list[str]:
    speculative = fleet.inventory.speculative
    if speculative is None or not fleet.tokens:
        return []
    config = {"method": fleet.settings["method"], "num_speculative_tokens": fleet.tokens}
    return ["--speculative-config", json.dumps(config, separators=(",", ":"))]


def problems(inventory: Inventory) -> list[Problem]:
    """Typed flags of the inventory whose value vLLM would refuse, each with the way to it."""
    spelt = {canonical(name): name for name in inventory.engine}
    typed = {canonical(name): value for name, value in inventory.engine.items()}
    return [Problem(("engine", spelt[name]), message) for name, message in flag_types.problems(typed)]


def check_overrides(engine: Mapping[str, FlagValue]) -> None:
    """Raises UsageError for flags of `--set engine.KEY=VALUE` that are computed, misnamed or of the wrong type."""
    typed = {canonical(name): value for name, value in engine.items()}
    wrong = [(name, COMPUTED_FLAGS[plain]) for name in typed if (plain := name.removeprefix("no-")) in COMPUTED_FLAGS]
    wrong += [(name, "not the name of a vllm serve flag") for name in typed if not FLAG_NAME.fullmatch(name)]
    wrong += flag_types.problems(typed)
    if wrong:
        raise UsageError("\n".join(f"engine.{name}: {message}" for name, message in wrong))


@dataclass(frozen=True)
class FlagProblem:
    """An engine flag that the image does not know."""

    flag: str
    nearest: str | None

    def __str__(self) -> str:
        hint = f'; did you mean "{self.nearest}"?' if self.nearest else ""
        return f"engine.{self.flag}: the image's vllm serve has no --{self.flag}{hint}"


# A flag is introduced in the left column of the help, up to two spaces; the same word in the text beside it is not.
_LEFT_COLUMN = re.compile(r"^[ \t]{1,8}(-{1,2}[A-Za-z](?:[^\n ]|[ ](?! ))*)", re.MULTILINE)
_FLAG = re.compile(r"(?:^|, |\[)--([A-Za-z0-9][A-Za-z0-9_-]*)")


def parse_help(text: str) -> set[str]:
    """Every flag, without dashes, that `vllm serve --help=all` introduces; empty for a text that is no help."""
    introduced = (name for match in _LEFT_COLUMN.finditer(text) for name in _FLAG.findall(match.group(1)))
    return {canonical(name) for name in introduced}


def lint_flags(engine: Mapping[str, FlagValue], known: set[str]) -> list[FlagProblem]:
    """The flags of `engine` that are not among `known` (from `parse_help`), each with the nearest that is.

    An empty `known` means that the help could not be read: nothing is reported rather than everything.
    """
    if not known:
        return []
    from fleetctl.fleet.nearest import nearest

    return [
        FlagProblem(name, nearest(canonical(name), sorted(known)))
        for name in engine
        if not _is_known(canonical(name), known)
    ]


def _is_known(name: str, known: set[str]) -> bool:
    head = name.partition(".")[0]
    return bool({head, head.removeprefix("no-"), f"no-{head}"} & known)
