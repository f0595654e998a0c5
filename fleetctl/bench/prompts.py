"""What is asked. The text follows from the seed, so that two runs do the same work; a mark in front of it that no other
run has keeps the prefix cache out of it (facts/bench-status, 1.2: the same prompts again gave up to +86 %)."""

from __future__ import annotations

import random
import secrets
from dataclasses import dataclass, field

TOPICS = (
    "how a ship's lock lifts a barge",
    "why bread rises and what can go wrong",
    "how a city plans its bus lines",
    "what a surveyor does on a mountain",
    "how rainwater becomes drinking water",
    "why old bridges need watching",
    "how a library keeps track of its books",
    "what happens in a power station at night",
    "how seeds know when to sprout",
    "why clocks drift and how they are set",
    "how a newspaper was printed a century ago",
    "what a good map leaves out",
    "how bees find their way home",
    "why some harbours silt up",
    "how a violin gets its sound",
    "what makes a staircase comfortable",
)
WHO = ("The engineer", "A careful reader", "The harbour master", "Every second visitor", "The old manual", "Nobody")
DID = ("noticed", "wrote down", "explained", "had forgotten", "measured twice", "doubted")
WHAT = (
    "how the gates were opened in spring",
    "which of the pumps ran through the night",
    "why the lower road was closed again",
    "that the figures of the first survey were wrong",
    "where the spare parts had been stored",
    "how long the repairs would take this time",
    "that the new schedule left an hour free",
    "what the water level meant for the town",
)
WHEN = (
    "before the meeting began",
    "after the storm had passed",
    "while the others were at lunch",
    "and sent a short note about it",
    "without telling the council",
    "although the light was poor",
)
CHARACTERS_PER_TOKEN = 4.0


@dataclass
class Prompts:
    """Prompts of one run. `nonce` is what no other run has; `characters_per_token` comes from `calibrated`."""

    seed: int
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    characters_per_token: float = CHARACTERS_PER_TOKEN
    _count: int = 0

    def short(self) -> str:
        """A question that takes a long answer, in natural words: acceptance of draft tokens depends on that."""
        dice = self._next()
        return f"{self._mark()} Explain in detail, with examples, {dice.choice(TOPICS)}."

    def endless(self) -> str:
        """A question whose answer is thousands of tokens long: past its natural end a model repeats itself, and what
        repeats is drafted too well."""
        topic = self._next().choice(TOPICS)
        return (
            f"{self._mark()} Write a textbook of forty chapters on {topic}. Write out every chapter in full, several "
            "pages each, with examples, and never repeat what an earlier chapter said."
        )

    def of(self, tokens: int) -> str:
        """A prompt of about that many tokens: a long report, then a question about it."""
        dice, mark = self._next(), self._mark()
        question = " What was noticed, by whom and when? Explain in detail."
        length = int(tokens * self.characters_per_token) - len(mark) - len(question)
        sentences, written = [], 0
        while written < length:
            sentence = f" {dice.choice(WHO)} {dice.choice(DID)} {dice.choice(WHAT)} {dice.choice(WHEN)}."
            sentences.append(sentence)
            written += len(sentence)
        return mark + "".join(sentences)[: max(0, length)] + question

    def calibrate(self, characters: int, prompt_tokens: int) -> None:
        """The server counted `prompt_tokens` for a prompt of that many characters."""
        if prompt_tokens > 0:
            self.characters_per_token = characters / prompt_tokens

    def _next(self) -> random.Random:
        self._count += 1
        return random.Random(f"{self.seed}/{self._count}")  # noqa: S311

    def _mark(self) -> str:
        return f"[{self.nonce}-{self._count}]"
