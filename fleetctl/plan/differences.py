"""What differs between the command lines of two units, in the words of a plan. Pure."""

from __future__ import annotations

from fleetctl.fleet.excerpt import masked

MOST, WIDEST = 4, 60  # differences that are listed, and characters of a value
REPEATED = ("--mount", "--label", "--device", "--log-opt", "--ulimit")
OURS = ("--label fleetctl.spec=", "--label fleetctl.tokens=")  # they follow from the rest
SPECULATION = "--speculative-config"


def options(old: str, new: str, *, tokens_said: bool = False) -> str:
    """`--max-num-seqs 32 -> 16, new --seed 7, without --enforce-eager` of the units' texts; empty when nothing differs.

    Of environment variables only the names. `tokens_said`: the number of speculative tokens is said elsewhere.
    """
    before, after = _options(old), _options(new)
    found = []
    for key in dict.fromkeys([*before, *after]):
        was, will = before.get(key), after.get(key)
        if was == will or (tokens_said and key == SPECULATION):
            continue
        if was is None:
            found.append(f"new {_shown(key, will)}")
        elif will is None:
            found.append(f"without {_shown(key, None)}")
        elif key.startswith("-e "):
            found.append(f"another {key}")
        else:
            found.append(f"{_shown(key, was)} -> {_cut(will)}")
    more = [f"and {len(found) - MOST} more"] if len(found) > MOST else []
    return ", ".join([*found[:MOST], *more])


def _options(text: str) -> dict[str, str]:
    """The options of ExecStart, by name; those that may stand there several times by all they say."""
    block = text.partition("\nExecStart=")[2].partition("\nExecStop")[0]
    found = {}
    for line in block.split("\n"):
        words = line.strip().removesuffix("\\").strip()
        name, _, value = words.partition(" ")
        if not name.startswith("-") or words.startswith(OURS):
            continue
        if name == "--entrypoint":  # docker run's last option: the image follows it
            found["image"] = value.rpartition(" ")[2]
        elif name == "-e":
            variable, _, content = value.partition("=")
            found[f"-e {variable}"] = content
        elif name in REPEATED:
            found[words] = ""
        else:
            found[name] = value
    return found


def _shown(key: str, value: str | None) -> str:
    return _cut(key) if key.startswith("-e ") or not value else f"{_cut(key)} {_cut(value)}"


def _cut(text: str) -> str:
    plain = masked(text)
    return plain if len(plain) <= WIDEST else f"{plain[: WIDEST - 3]}..."
