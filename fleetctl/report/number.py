"""Numbers of sections, as each language writes them. Pure."""

from __future__ import annotations

DIGITS = "零一二三四五六七八九"


def numbered(language: str, number: int) -> str:
    """`十二、` or `12. ` in front of a title; up to 99."""
    if language != "zh":
        return f"{number}. "
    tens, ones = divmod(number, 10)
    head = "" if not tens else "十" if tens == 1 else f"{DIGITS[tens]}十"
    return f"{head}{DIGITS[ones] if ones or not tens else ''}、"
