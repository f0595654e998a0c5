"""Whatever a file holds, loading it gives a fleet or problems with places: never a traceback."""

from __future__ import annotations

import random
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleetctl.errors import InventoryError
from fleetctl.fleet.load import load
from tests.unit.fleet.build import TEXT, values

gently = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def outcome(folder: Path, data: bytes) -> None:
    path = folder / "inventory.yaml"
    path.write_bytes(data)
    try:
        load(path)
    except InventoryError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.startswith(f"{path}:")
            assert "pydantic" not in problem
            assert "Input should" not in problem


@gently
@given(st.binary(max_size=400))
def test_any_bytes(tmp_path: Path, data: bytes) -> None:
    outcome(tmp_path, data)


@gently
@given(st.text(max_size=200))
def test_any_text(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, text.encode("utf-8", errors="surrogatepass"))


@gently
@given(st.text(alphabet="abc:-[]{}&*!|>'\"#%@`,?<. \n\t019~", max_size=80))
def test_anything_that_looks_like_yaml(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, text.encode())


@gently
@given(st.integers(0, 2**32), st.integers(1, 6))
def test_the_shipped_file_with_characters_changed(tmp_path: Path, seed: int, count: int) -> None:
    chance = random.Random(seed)
    text = list(TEXT)
    for _ in range(count):
        place = chance.randrange(len(text))
        text[place : place + chance.choice((0, 1, 1, 20))] = chance.choice(string.printable)
    outcome(tmp_path, "".join(text).encode())


leaves: Any = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12) | st.just("sk-abcdef123456")
)
anything = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


def places(tree: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [way, *(place for key, value in inner for place in places(value, (*way, key)))]


@gently
@given(st.data())
def test_the_shipped_file_with_values_of_any_type_anywhere(tmp_path: Path, data: st.DataObject) -> None:
    tree: Any = values()
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from(places(tree)))
        value = data.draw(anything)
        if not way:
            continue
        inner = tree
        for part in way[:-1]:
            inner = inner[part]
        inner[way[-1]] = value
    outcome(tmp_path, yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", errors="surrogatepass"))


@pytest.mark.parametrize(
    "text", ["? " * 5000, "- " * 5000, "a:\n " * 300, "!" * 1000, "*" * 100, "&a " * 100, "{" * 5000]
)
def test_deep_and_odd_files(tmp_path: Path, text: str) -> None:
    outcome(tmp_path, text.encode())
