"""Eight fixed questions whose answers can be checked, and what an answer is worth. Pure; needs nothing else.

A model that serves garbage answers 200 (facts/ascend-vllm.md 4.8 and 4.9: prefix cache with MTP, missing shards), so an
instance is asked something that a reader could check too: sums, capitals, copying, in English and in Chinese, without
sampling. Acceptance and the canary of a rollout use the same list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any
from unicodedata import name as character_name

MAX_TOKENS = 256
"""Room for a model that thinks although it was told not to; the answers themselves take fewer than ten."""

CUT = 2000  # characters that are looked at


class Grade(str, Enum):
    """`different`: right, and not the text that was expected of this model; worth a look, no failure."""

    OK = "ok"
    DIFFERENT = "different"
    WRONG = "wrong"
    GARBLED = "garbled"

    @property
    def fails(self) -> bool:
        return self in (Grade.WRONG, Grade.GARBLED)


@dataclass(frozen=True)
class Prompt:
    """A question, and the words of which one has to be in the answer."""

    id: str
    text: str
    accepts: tuple[str, ...]


PROMPTS = (
    Prompt("sum", "What is 17 + 25? Reply with the number only.", ("42", "forty-two")),
    Prompt("product", "What is 12 * 12? Reply with the number only.", ("144",)),
    Prompt("difference-zh", "123 - 45 等于多少？只回答数字。", ("78", "七十八")),
    Prompt("capital", "What is the capital of France? Reply with the name of the city only.", ("Paris", "巴黎")),
    Prompt("capital-2", "What is the capital of Germany? Reply with the name of the city only.", ("Berlin", "柏林")),
    Prompt("capital-zh", "日本的首都是哪座城市？只回答城市名。", ("东京", "東京", "Tokyo")),
    Prompt("copy", "Reply with exactly: copper river 7391 seven lamps", ("copper river 7391 seven lamps",)),
    Prompt("copy-zh", "Repeat exactly: 模型服务一切正常", ("模型服务一切正常",)),
)

# What broken weights, broken text encodings and broken kernels print.
_BROKEN = re.compile(r"\ufffd|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|锟斤拷|烫烫烫|屯屯屯|\\x[0-9a-f]{2}", re.IGNORECASE)
_RUN = re.compile(r"(\S)\1{7}")
_LOOP = re.compile(r"(\S.{1,39}?)\1{5}", re.DOTALL)
_KNOWN_SCRIPTS = frozenset(("LATIN", "CJK", "FULLWIDTH", "HIRAGANA", "KATAKANA", "GREEK", "FEMININE", "MASCULINE"))


def body(prompt: Prompt, model: str) -> dict[str, Any]:
    """The chat completion that asks: without sampling, without thinking where the model lets itself be told."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt.text}],
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def judge(prompt: Prompt, answer: str | None, reference: str | None = None) -> Grade:
    """What an answer's text is worth. `reference`: what this model is known to say to it, such as another instance."""
    text = (answer or "").strip()
    if garbled(text) is not None:
        return Grade.GARBLED
    if not any(_holds(text, accepted) for accepted in prompt.accepts):
        return Grade.WRONG
    return Grade.OK if reference is None or text == reference.strip() else Grade.DIFFERENT


def garbled(text: str) -> str | None:
    """Why a text is no language, None when nothing speaks against it. An empty text is not garbled."""
    text = text[:CUT]
    if match := _BROKEN.search(text):
        return f"it holds {match[0]!r}"
    if match := _RUN.search(text) or _LOOP.search(text):
        return f"it repeats {match[1]!r}"
    letters = [char for char in text if char.isalpha()]
    strange = [char for char in letters if character_name(char, "?").split()[0] not in _KNOWN_SCRIPTS]
    if len(strange) * 5 > len(letters):
        return f"it is written in {character_name(strange[0], '?').split()[0].lower()}"
    solid = [char for char in text if not char.isspace()]
    signs = [char for char in solid if not char.isalnum()]
    if len(solid) >= 12 and len(signs) * 5 > len(solid) * 3:
        return "it is mostly punctuation"
    return None


def _holds(text: str, accepted: str) -> bool:
    """A number stands alone (142 and 42.5 are not 42); words match in any case."""
    if accepted.isdecimal():
        return re.search(rf"(?<![\d.,-]){accepted}(?![.,]?\d)", text) is not None
    return accepted.casefold() in text.casefold()
