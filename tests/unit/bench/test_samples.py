"""Samples on disk: whole, cut off, and not samples at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.bench.results import result
from fleetctl.bench.samples import Backend, Failure, Header, Sample, Writer, decode, encode, read
from fleetctl.errors import UsageError

seconds = st.none() | st.floats(0, 1e5).map(lambda value: round(value, 6))
counts = st.none() | st.integers(0, 10**6)


def header(**more: object) -> Header:
    return Header("soak", 7, {"rate": 2.0}, "m", "http://x", **more)  # type: ignore[arg-type]


@given(
    st.builds(
        Sample,
        number=st.integers(1, 10**6),
        cell=st.text(max_size=9),
        session=st.text(max_size=9),
        scheduled=st.floats(0, 1e5).map(lambda value: round(value, 6)),
        warmup=st.booleans(),
        stream=st.booleans(),
        first=seconds,
        end=seconds,
        failure=st.none() | st.sampled_from(Failure),
        detail=st.none() | st.text(max_size=20),
        completion_tokens=counts,
        gaps=st.lists(st.floats(0, 99).map(lambda value: round(value, 5)), max_size=5),
    )
)
def test_a_sample_comes_back_as_it_was(sample: Sample) -> None:
    assert decode(encode(sample)) == sample


def test_a_run_comes_back_with_all_that_is_needed_to_repeat_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "run.jsonl"
    writer = Writer(path, header(backends=[Backend("67/2", "10.0.0.67:8002")], tokens=4, engine={"dtype": "bfloat16"}))
    writer.event(0.5, "cell", cell="c=1", users=1)
    writer.sample(Sample(1, "c=1", "s", 0.6, end=1.0))
    writer.end({"partial": False})
    run = read(path)
    assert run.header.backends == [Backend("67/2", "10.0.0.67:8002")]
    assert (run.header.seed, run.header.parameters, run.header.tokens) == (7, {"rate": 2.0}, 4)
    assert run.cells() == ["c=1"]
    assert run.partial is None


def test_samples_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    Writer(path, header()).close()
    with pytest.raises(FileExistsError):
        Writer(path, header())


def test_a_killed_run_is_valid_and_partial_whatever_its_last_line_holds(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    writer = Writer(path, header())
    for number in range(5):
        writer.sample(Sample(number, "cell", "s", number / 10, end=1.0))
    writer.close()
    text = path.read_text()
    for cut in range(len(text.splitlines()[0]) + 2, len(text)):
        path.write_text(text[:cut])
        run = read(path)
        assert "killed" in (run.partial or "")
        assert len(run.samples) <= 5


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no header"),
        ('{"kind": "sample"}\n', "no header"),
        ("hello\n", "not JSON"),
        ("[1]\n", "not an object"),
        ('{"kind": "header", "schema": 9}\n', "schema 9"),
        ('{"kind": "header", "schema": 1}\n', "not a file of samples"),
    ],
)
def test_anything_else_is_refused_with_its_reason(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        read(path)
    with pytest.raises(UsageError, match="No such file"):
        read(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "edited", ['"scheduled":"soon"', '"first":"soon"', '"gaps":["x"]', '"completion_tokens":"many"', '"session":7']
)
def test_a_sample_whose_figures_are_none_is_refused_and_not_counted_with(tmp_path: Path, edited: str) -> None:
    path = tmp_path / "run.jsonl"
    writer = Writer(path, header())
    writer.end({"partial": False})
    line = '{"kind":"sample","number":1,"cell":"c","session":"s","scheduled":0.5}'
    path.write_text(f"{path.read_text()}{line[:-1]},{edited}}}\n")
    with pytest.raises(UsageError, match="not a file of samples"):
        read(path)


def test_a_scenario_that_a_later_fleetctl_knows_is_shown_as_far_as_this_one_can(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    writer = Writer(path, Header("tomorrow", 7, {}, "m", "http://x"))
    writer.sample(Sample(1, "c", "s", 0.6, end=1.0))
    writer.end({"partial": False})
    found = result(read(path))
    assert found.checks[0].verdict == "ok"
    assert found.notes == ["this fleetctl knows no scenario tomorrow: nothing of it is judged"]


def test_interrupted_requests_and_warm_up_are_no_failures_and_not_measured() -> None:
    cut = Sample(1, "c", "s", 0.0, failure=Failure.INTERRUPTED)
    warm = Sample(2, "c", "s", 0.0, warmup=True, failure=Failure.CONNECT)
    assert not cut.failed
    assert not cut.counted
    assert not warm.counted
    assert Sample(3, "c", "s", 0.0, status=502, failure=Failure.STATUS).why == "status 502"
