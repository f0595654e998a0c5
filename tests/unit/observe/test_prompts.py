"""A right answer passes, a wrong or garbled one fails, another wording is worth a look."""

from __future__ import annotations

import pytest

from fleetctl.observe.prompts import MAX_TOKENS, PROMPTS, Grade, body, garbled, judge

SUM, PRODUCT, DIFFERENCE, CAPITAL, _, CAPITAL_ZH, COPY, COPY_ZH = PROMPTS


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (SUM, "42"),
        (SUM, "17 + 25 = 42."),
        (SUM, "**42**"),
        (SUM, "The answer is forty-two"),
        (PRODUCT, "12 * 12 = 144."),
        (DIFFERENCE, "答案是78。"),
        (CAPITAL, "paris"),
        (CAPITAL_ZH, "东京。"),
        (COPY, "Copper river 7391 seven lamps."),
        (COPY_ZH, "「模型服务一切正常」"),
    ],
)
def test_a_right_answer_is_ok(prompt, answer) -> None:  # type: ignore[no-untyped-def]
    assert judge(prompt, answer) is Grade.OK


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        (SUM, "43"),
        (SUM, "142"),
        (SUM, "4.42"),
        (SUM, "42.5"),
        (SUM, "-42"),
        (SUM, "42,000"),
        (SUM, ""),
        (SUM, None),
        (CAPITAL, "Atlantis."),
        (CAPITAL_ZH, "大阪"),
        (COPY, "spmal neves 1937 revir reppoc"),
    ],
)
def test_another_answer_is_wrong(prompt, answer) -> None:  # type: ignore[no-untyped-def]
    assert judge(prompt, answer) is Grade.WRONG


@pytest.mark.parametrize(
    "text",
    [
        "锟斤拷!!!!\\x00烫烫",
        "42 \ufffd\ufffd",
        "!!!!!!!!!!!!",
        "the the the the the the the the",
        "的的的的的的的的",
        "((((]]]]0000!!!!((((",
        "Это не ответ",
        "คำตอบคือ",
        "a\x00b",
    ],
)
def test_no_language_is_garbled(text: str) -> None:
    assert garbled(text)
    assert judge(SUM, text) is Grade.GARBLED


@pytest.mark.parametrize(
    "text",
    [
        "",
        "42",
        "17 + 25 = 42.",
        "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12",
        "日本の首都は東京です。",
        "Σ = 42, naïve café",
        "- one\n- two\n- three",
        '{"answer": 42}',
    ],
)
def test_language_is_not_garbled(text: str) -> None:
    assert garbled(text) is None


def test_a_right_answer_in_other_words_than_the_reference_is_different_and_does_not_fail() -> None:
    assert judge(SUM, "42", reference="42") is Grade.OK
    assert judge(SUM, "It is 42", reference="42") is Grade.DIFFERENT
    assert judge(SUM, "43", reference="43") is Grade.WRONG
    assert not Grade.DIFFERENT.fails
    assert Grade.WRONG.fails
    assert Grade.GARBLED.fails


def test_there_are_eight_prompts_with_names_of_their_own() -> None:
    assert len(PROMPTS) == len({prompt.id for prompt in PROMPTS}) == 8


def test_the_request_does_not_sample() -> None:
    asked = body(SUM, "m")
    assert asked["temperature"] == 0
    assert asked["max_tokens"] == MAX_TOKENS
    assert asked["messages"][0]["content"] == SUM.text
