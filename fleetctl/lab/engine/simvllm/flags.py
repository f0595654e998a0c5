"""The command line, strictly: the flags of serve-flags.tsv (a capture of vLLM 0.32), nothing else.

Unknown flags end with argparse's usage and status 2, as with the real program. Underscores are dashes,
`--no-X` exists for booleans, and `--config FILE` adds flags of a YAML file before those typed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from . import BANNER

_BOOLEANS_WITHOUT_DEFAULT = (
    "async-scheduling dcp-q-replicate disable-cascade-attn disable-hybrid-kv-cache-manager"
    " disable-nccl-for-dp-synchronization interleave-mm-strings language-model-only mm-device-do-normalize"
    " numa-bind use-fp64-gumbel"
)
BOOLEANS_WITHOUT_DEFAULT = frozenset(_BOOLEANS_WITHOUT_DEFAULT.split())
_SEVERAL = (
    "api-key cudagraph-capture-sizes disable-access-log-for-endpoints ignore-patterns lora-modules"
    " numa-bind-cpus numa-bind-nodes served-model-name"
)
SEVERAL = frozenset(_SEVERAL.split())
_JSON_VALUES = (
    "additional-config allowed-headers allowed-methods allowed-origins compilation-config"
    " default-chat-template-kwargs hf-overrides kv-transfer-config limit-mm-per-prompt mm-processor-kwargs"
    " override-generation-config speculative-config"
)
JSON_VALUES = frozenset(_JSON_VALUES.split())
ALIASES = {
    "tensor-parallel-size": ["-tp"],
    "pipeline-parallel-size": ["-pp"],
    "data-parallel-size": ["-dp"],
    "quantization": ["-q"],
    "speculative-config": ["-sc"],
    "compilation-config": ["-cc"],
}
SUFFIXES = {"k": 1000, "m": 1000**2, "g": 1000**3, "K": 1024, "M": 1024**2, "G": 1024**3}


def human_int(text: str) -> int:
    """An integer, also as 256k (thousands) or 256K (1024s), as vLLM reads lengths."""
    return int(float(text[:-1]) * SUFFIXES[text[-1]]) if text[-1:] in SUFFIXES else int(text)


def json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"Value {text} cannot be converted to <function loads>.") from error


def table() -> dict[str, str]:
    """Flag name without dashes -> default as printed by the real help."""
    lines = Path(__file__).with_name("serve-flags.tsv").read_text().splitlines()[1:]
    pairs = (line.partition("\t") for line in lines)
    return {flag.lstrip("-"): default.strip() for flag, _, default in pairs if flag != "--help"}


def is_boolean(name: str, default: str) -> bool:
    return (
        default in ("True", "False") or name.startswith("enable-") or name in BOOLEANS_WITHOUT_DEFAULT
    ) and name not in SEVERAL


def _kind(name: str, default: str) -> Any:
    if name in ("max-model-len", "max-num-batched-tokens", "max-num-seqs", "kv-cache-memory-bytes"):
        return human_int
    if name in JSON_VALUES:
        return json_value
    for kind in (int, float):
        try:
            kind(default)
        except ValueError:
            continue
        return kind
    return int if name in ("block-size", "spec-tokens", "api-server-count") else str


def _default(kind: Any, default: str) -> Any:
    if default in ("", "None", "set("):
        return None
    return json.loads(default.replace("'", '"')) if kind is json_value else kind(default)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="vllm", description=BANNER, allow_abbrev=False)
    top.add_argument("-v", "--version", action="version", version=BANNER)
    serve = top.add_subparsers(dest="command", required=True, metavar="{serve}").add_parser(
        "serve", usage="vllm serve [model_tag] [options]", description=BANNER, allow_abbrev=False
    )
    serve.add_argument("model_tag", nargs="?", default=None)
    for name, default in table().items():
        names = [f"--{name}", *ALIASES.get(name, [])]
        shown = f"(default: {default or None})"
        if is_boolean(name, default):
            value = {"True": True, "False": False}.get(default)
            serve.add_argument(*names, action=argparse.BooleanOptionalAction, default=value, help=shown)
            continue
        kind = _kind(name, default)
        options: dict[str, Any] = {"nargs": "+"} if name in SEVERAL else {}
        initial = None if name in SEVERAL else _default(kind, default)
        serve.add_argument(*names, type=kind, default=initial, help=shown.replace("%", "%%"), **options)
    return top


def normalise(argv: list[str]) -> list[str]:
    """Underscores of flag names become dashes; values stay as they are."""
    result = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        result.append(name.replace("_", "-") + equals + value if name.startswith("--") else argument)
    return result


def from_config(path: str) -> list[str]:
    """Flags of a YAML file: `key: value`, `key: true`, lists in brackets or as `- item` lines."""
    argv: list[str] = []
    for raw in Path(path).read_text().splitlines():
        line = raw.split(" #")[0].rstrip()
        if not line or line.lstrip().startswith("#"):
            continue
        if line.lstrip().startswith("- "):
            argv.append(line.lstrip()[2:].strip("'\" "))
            continue
        key, _, value = line.partition(":")
        value = value.strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        key = key.strip().replace("_", "-")
        if key == "model":
            argv.insert(0, value)
        elif value.lower() in ("true", "false"):
            argv.append(f"--{key}" if value.lower() == "true" else f"--no-{key}")
        else:
            argv += [f"--{key}", value] if value else [f"--{key}"]
    return argv


def parse(argv: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
    """The flags in force and those that differ from their defaults (what the start-up log prints).

    Ends the process for --help, --version and for what is wrong, as the real program does.
    """
    argv = normalise(argv)
    if argv[:1] == ["serve"] and any(a.startswith("--help=") for a in argv):
        argv = ["serve", "--help"]
    for position, argument in enumerate(argv):
        name, _, value = argument.partition("=")
        if name == "--config":
            path = value or "".join(argv[position + 1 : position + 2])
            argv = [argv[0], *from_config(path), *argv[1:]]
            break
    program = parser()
    flags = program.parse_args(argv)
    changed = {}
    for name, default in table().items():
        key = name.replace("-", "_")
        value = getattr(flags, key)
        boolean = is_boolean(name, default)
        kind = _kind(name, default)
        initial = (
            {"True": True, "False": False}.get(default)
            if boolean
            else (None if name in SEVERAL else _default(kind, default))
        )
        if value != initial:
            changed[key] = value
    if flags.model_tag:
        changed = {"model_tag": flags.model_tag, **changed, "model": flags.model_tag}
        flags.model = flags.model_tag
    return flags, changed


def main_help() -> None:
    """Prints what `vllm` alone prints."""
    parser().print_help(sys.stdout)
