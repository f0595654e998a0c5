"""What the simulated model says: deterministic words, and right answers to a handful of checkable questions.

A reply is a stream of tokens; it depends on prompt, temperature and seed, and on nothing else when the
temperature is 0. Sums, capitals and "reply with exactly ..." are answered right, so that a canary can check.
"""

from __future__ import annotations

import json
import operator
import os
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

CAPITALS = {
    "france": "Paris",
    "germany": "Berlin",
    "italy": "Rome",
    "spain": "Madrid",
    "japan": "Tokyo",
    "china": "Beijing",
    "法国": "巴黎",
    "德国": "柏林",
    "日本": "东京",
    "中国": "北京",
}
TEXT = (
    "the model reads each request and keeps its cache warm while other sessions wait for their turn on a "
    "device that holds half of all weights so every step moves many tokens at once and then it checks what "
    "was guessed before it goes on with next part of this answer because order matters here more than speed"
)
WORDS = TEXT.split()
HANZI = "模型读取每个请求并保持缓存温热其他会话等待轮到自己设备保存一半权重因此每步处理许多词元然后检查猜测"
GARBAGE = ["锟斤拷", "!!!!", "\\x00", "烫烫", "�", "((((", "0000", "的的的"]
OPERATORS: dict[str, Callable[[int, int], float]] = {
    **dict.fromkeys(("+", "plus", "加"), operator.add),
    **dict.fromkeys(("-", "minus", "减"), operator.sub),
    **dict.fromkeys(("*", "×", "x", "times", "乘"), operator.mul),
    **dict.fromkeys(("/", "÷"), lambda left, right: left / right if right else 0),
}
SUM = re.compile(r"(-?\d+)\s*([-+*×x/÷]|plus|minus|times|加|减|乘)\s*(-?\d+)", re.IGNORECASE)
EXACTLY = re.compile(r"(?:reply|answer|respond|say|repeat)\b[^:\n]*?(?:exactly|only|word)\b:?\s*(.+)", re.IGNORECASE)
CAPITAL = re.compile(r"capital (?:city )?of (\w+)|(\w+)的首都", re.IGNORECASE)
PIECE = re.compile(r"\s*[^\s]{1,6}|\s+")
CONTENT, REASONING, CALL, ARGUMENTS = "content", "reasoning", "call", "arguments"
Token = tuple[str, str]


def token_count(text: str) -> int:
    """Tokens of a text: four bytes of UTF-8 each, which is about right for English and Chinese."""
    return (len(text.encode(errors="replace")) + 3) // 4


def tokens_of(text: str) -> list[str]:
    return PIECE.findall(text)


@dataclass(frozen=True)
class Ask:
    """A request as the model sees it."""

    prompt: str
    question: str
    temperature: float = 1.0
    seed: int | None = None
    think: bool = False
    split_reasoning: bool = True
    schema: dict[str, Any] | None = None
    tool: dict[str, Any] | None = None
    faults: frozenset[str] = field(default_factory=frozenset)


def answer(question: str, wrong: bool = False) -> str | None:
    """The right answer to a checkable question (a wrong one when asked to), None when it is not one."""
    if found := SUM.search(question):
        left, right = int(found[1]), int(found[3])
        value = OPERATORS[found[2].lower()](left, right)
        value = int(value) if value == int(value) else round(value, 4)
        return f"{left} {found[2]} {right} = {value + 1 if wrong else value}."
    if found := CAPITAL.search(question):
        country = (found[1] or found[2]).lower()
        for name, city in CAPITALS.items():
            if country.endswith(name):
                return "Atlantis." if wrong else f"{city}."
    if found := EXACTLY.search(question):
        text = found[1].strip().strip("\"'`“”")
        return text[::-1] if wrong else text
    return None


def words(state: int, text: str, garbled: bool) -> Iterator[str]:
    """Endless words, in Chinese when the prompt is."""
    chinese = any("\u4e00" <= char <= "\u9fff" for char in text[-2000:])
    first = True
    while True:
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        pick = state >> 33
        if garbled:
            yield GARBAGE[pick % len(GARBAGE)]
        elif chinese:
            yield HANZI[pick % len(HANZI)]
        else:
            word = WORDS[pick % len(WORDS)]
            yield word.capitalize() if first else f" {word}"
        first = False


def speak(ask: Ask, index: int = 0) -> Iterator[Token | None]:
    """Tokens of one reply; None marks its natural end, after which words go on for ever (ignore_eos)."""
    salt = f"{ask.temperature}/{ask.seed}/{index if ask.temperature > 0 else 0}"
    if ask.temperature > 0 and ask.seed is None:
        salt += os.urandom(8).hex()
    key = zlib.crc32(ask.prompt.encode(errors="replace"), zlib.crc32(salt.encode()))
    voice = words(key | 1, ask.prompt, "garbled" in ask.faults)
    if ask.think:
        kind = REASONING if ask.split_reasoning else CONTENT
        for _ in range(12 + key % 60):
            yield kind, next(voice)
        if not ask.split_reasoning:
            yield CONTENT, "\n</think>\n\n"
    voice = words(key ^ 0x9E3779B9, ask.prompt, "garbled" in ask.faults)
    if ask.tool:
        yield CALL, ask.tool["name"]
        text: str | None = json.dumps(fill(ask.tool.get("parameters") or {}, ask.question))
    elif ask.schema is not None:
        text = json.dumps(fill(ask.schema, ask.question))
    else:
        text = None if "garbled" in ask.faults else answer(ask.question, "wrong-answers" in ask.faults)
    if text is None:
        text = "".join(next(voice) for _ in range(8 + (key >> 8) % 100)) + "."
    for piece in tokens_of(text):
        yield ARGUMENTS if ask.tool else CONTENT, piece
    yield None
    while True:
        yield CONTENT, next(voice)


def fill(schema: dict[str, Any], question: str, name: str = "") -> Any:
    """A value that satisfies a JSON schema, taken from the question where that is obvious."""
    if schema.get("enum"):
        said = [value for value in schema["enum"] if str(value).lower() in question.lower()]
        return (said or schema["enum"])[0]
    kind = schema.get("type") or ("object" if "properties" in schema else "string")
    if kind == "object":
        properties = schema.get("properties") or {}
        wanted = schema.get("required") or properties
        return {key: fill(properties.get(key) or {}, question, key) for key in wanted}
    if kind == "array":
        return [fill(schema.get("items") or {}, question, name)]
    return _scalar(kind, question, name)


def _scalar(kind: str, question: str, name: str) -> Any:
    if kind in ("integer", "number"):
        found = re.search(r"-?\d+(?:\.\d+)?", question)
        value = float(found[0]) if found else 1.0
        return int(value) if kind == "integer" else value
    if kind == "boolean":
        return True
    quoted = re.findall(r"[\"'“](.+?)[\"'”]", question)
    proper = re.findall(r"(?<=\s)[A-Z][a-z]+", question)
    return (quoted or proper or [question.strip()[:40] or name])[0]


def choose_tool(tools: list[dict[str, Any]], choice: Any, question: str) -> dict[str, Any] | None:
    """The function to call: the named one, else one that the question touches, else the first if required."""
    functions = [tool.get("function") or {} for tool in tools]
    functions = [function for function in functions if function.get("name")]
    if choice == "none" or not functions:
        return None
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        return next((function for function in functions if function["name"] == name), None)
    low = question.lower()
    for function in functions:
        parts = [part for part in re.split(r"[_\W]+", function["name"].lower()) if len(part) > 3]
        if any(part in low for part in parts):
            return function
    return functions[0] if choice == "required" else None
