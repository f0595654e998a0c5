"""What `rollout --mtp N --image REF --set engine.KEY=VALUE` asks for, checked as strictly as the inventory."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import TypeAdapter, ValidationError

from fleetctl.errors import UsageError
from fleetctl.fleet import document, flags
from fleetctl.fleet.fleet import Overrides, canonical
from fleetctl.fleet.schema import FlagValue, Image, Speculative


def overrides(tokens: int | None, image: str | None, settings: Sequence[str]) -> Overrides:
    """The overrides of a release; raises UsageError with everything that is wrong with them."""
    engine: dict[str, FlagValue] = {}
    wrong = [*_wrong_tokens(tokens), *_wrong_image(image)]
    for text in settings:
        try:
            name, value = setting(text)
        except UsageError as error:
            wrong.append(error.cause)
            continue
        if name in engine:
            wrong.append(f"--set engine.{name}: given twice")
        engine[name] = value
    try:
        flags.check_overrides(engine)
    except UsageError as error:
        wrong.append(error.cause)
    if wrong:
        raise UsageError("\n".join(wrong))
    return Overrides(tokens, image, tuple(sorted(engine.items())))


def setting(text: str) -> tuple[str, FlagValue]:
    """Name and value of one `engine.KEY=VALUE`; the value is read as YAML, as strictly as in the inventory."""
    key, equals, value = text.partition("=")
    section, _, name = key.partition(".")
    if not equals or section != "engine" or not name:
        raise UsageError(f"--set {text}: expected engine.KEY=VALUE, such as engine.max-num-seqs=16")
    read = document.parse(value)
    if read.mistakes:
        raise UsageError(f"--set {key}: {read.mistakes[0].message}")
    found: FlagValue = TypeAdapter(FlagValue).validate_python(read.value)
    return canonical(name), found


def _wrong_tokens(tokens: int | None) -> list[str]:
    try:
        Speculative(tokens=0 if tokens is None else tokens)
    except ValidationError:
        return [f"--mtp {tokens}: expected a whole number from 0 to 15"]
    return []


def _wrong_image(image: str | None) -> list[str]:
    try:
        Image(reference="sound" if image is None else image)
    except ValidationError as error:
        return [f"--image: {error.errors()[0]['msg'].removeprefix('Value error, ')}"]
    return []
