"""What fleetctl has written on a machine, read back: a person or half a write may have been at it. Pure.

What has another form than fleetctl gives it is no record: it is told as one that cannot be read, and nothing else here
has to look at types again.
"""

from __future__ import annotations

from typing import Any

from fleetctl.observe.facts import Stopped, parse_json


def release(text: str) -> dict[str, Any] | None:
    """The document of a release; None for anything that is not one."""
    document = parse_json(text)
    return document if is_release(document) else None


def is_release(document: Any) -> bool:
    """Whether a JSON value has the form of a release; what is absent is null."""
    return (
        isinstance(document, dict)
        and _number(document.get("number"))
        and all(_text(document.get(word, "")) for word in ("when", "who", "command", "outcome"))
        and (document.get("back_to") is None or _number(document["back_to"]))
        and all(_settings(document.get(name)) for name in ("overrides", "whole"))
        and _numbers(document.get("left_out", []))
    )


def wrong(text: str) -> str | None:
    """Why a text is no release; None when it is one."""
    if not text.strip():
        return "it is empty"
    if parse_json(text) is None:
        return "it is no JSON, or half of it"
    return None if release(text) is not None else "it has another form than a release"


def experiment(text: str) -> dict[str, Any]:
    """The mark of `bench ab`; one that was damaged is a mark still, and empty."""
    document = parse_json(text)
    if not isinstance(document, dict):
        return {}
    arms = document.get("arms")
    good: dict[str, Any] = {word: document[word] for word in ("run", "when", "who") if _text(document.get(word))}
    good |= {"release": document["release"]} if _number(document.get("release")) else {}
    return good | ({"arms": arms} if _numbers(arms) else {})


def mark(text: str) -> Stopped:
    """Of an instance: that it is there counts, whatever it says."""
    entry = parse_json(text)
    entry = entry if isinstance(entry, dict) else {}
    who, when, reason = (entry[key] if _text(entry.get(key)) else None for key in ("who", "when", "reason"))
    return Stopped(who or "unknown", when or "", reason or "")


def _settings(seen: Any) -> bool:
    """Overrides, or a release as a whole: tokens, image, flags, environment and settings, each of them or null."""
    if seen is None:
        return True
    return (
        isinstance(seen, dict)
        and (seen.get("tokens") is None or _number(seen["tokens"]))
        and isinstance(seen.get("image"), str | None)
        and isinstance(seen.get("engine"), dict | None)
        and all(isinstance(value, str | None) for value in _values(seen.get("env")))
        and all(map(_text, _values(seen.get("settings"))))
    )


def _values(mapping: Any) -> list[Any]:
    """Of a mapping or null; of anything else a value that is never one of ours."""
    if mapping is None:
        return []
    return list(mapping.values()) if isinstance(mapping, dict) else [object()]


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
