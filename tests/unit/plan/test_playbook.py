"""A user's copy of a playbook: what it may leave out and add, and that nonsense is said with its place."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from fleetctl.balancer import peers
from fleetctl.commands.script import Script
from fleetctl.errors import UsageError
from fleetctl.fleet.fleet import Fleet, Overrides
from fleetctl.observe.facts import Facts
from fleetctl.plan import expand, playbook
from fleetctl.plan.context import Context
from fleetctl.plan.operation import Group, Operation, Plan, Run
from fleetctl.plan.release import Release
from fleetctl.plan.steps import STEPS

from ..conftest import KEY
from .test_expand import context, whole

SHIPPED = Path(__file__).parents[3] / "playbooks"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The folder of an inventory with copies of all playbooks."""
    shutil.copytree(SHIPPED, tmp_path / "playbooks")
    return tmp_path


def edit(folder: Path, old: str, new: str, name: str = "rollout") -> playbook.Playbook:
    path = folder / "playbooks" / f"{name}.yaml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return playbook.load(name, set(STEPS), folder)


def said(folder: Path, old: str, new: str, name: str = "rollout") -> str:
    """What is said about an edit that makes no sense."""
    with pytest.raises(UsageError) as refused:
        edit(folder, old, new, name)
    return str(refused.value)


def five(fleet: Fleet) -> Context:
    table = peers.of(fleet, {}, fleet.machines)
    given = fleet.with_overrides(Overrides(tokens=5))
    release = Release(2, given.overrides, "", "", "rollout --mtp 5", "running")
    return context(given, whole(fleet), tuple(fleet.machines), peers=table, release=release)


def plan(book: playbook.Playbook, given: Context) -> Plan:
    return expand.expand(book, given, "rollout --mtp 5")


def of(found: Plan, step: str) -> list[Operation]:
    return [op for op in found.operations if op.step == step]


@pytest.mark.parametrize("name", ["rollout", "add-machine", "remove-machine"])
def test_the_shipped_playbooks_and_whole_copies_of_them_are_sound(copy: Path, name: str) -> None:
    shipped, own = playbook.load(name, set(STEPS)), playbook.load(name, set(STEPS), copy)
    assert own == shipped
    assert own.left_out == ()


def test_a_step_is_left_out_only_by_name_and_the_plan_says_what_that_means(copy: Path, fleet: Fleet) -> None:
    words = said(copy, "[join, verify]", "[join]")
    assert "step verify of the shipped playbook is missing; put it back, or say `drop: [verify]`" in words
    found = plan(edit(copy, "stages:\n", "drop: [verify]\nstages:\n"), five(fleet))
    assert of(found, "verify") == []
    assert any(note.startswith("verify is left out by playbooks/rollout.yaml: nobody asks") for note in found.notes)


@pytest.mark.parametrize("step", ["release", "key", "units", "balancer", "roll", "join", "record"])
def test_what_keeps_a_fleet_safe_cannot_be_left_out(copy: Path, step: str) -> None:
    path = copy / "playbooks/rollout.yaml"
    text = path.read_text().replace(f"{step}, ", "").replace(f", {step}]", "]")
    path.write_text(text.replace("stages:\n", f"drop: [{step}]\nstages:\n"))
    with pytest.raises(UsageError, match=f"{step} cannot be left out: |needs {step}"):
        playbook.load("rollout", set(STEPS), copy)


@pytest.mark.parametrize("step", ["drain", "leave", "dismiss"])
def test_a_machine_is_not_removed_without_its_drain(copy: Path, step: str) -> None:
    path = copy / "playbooks/remove-machine.yaml"
    path.write_text(path.read_text().replace(f"{step}, ", "").replace(f", {step}]", "]"))
    with pytest.raises(UsageError, match=f"{step} of the shipped playbook is missing; it cannot be left out"):
        playbook.load("remove-machine", set(STEPS), copy)


def test_nonsense_is_said_with_file_line_and_column(copy: Path) -> None:
    path = copy / "playbooks/rollout.yaml"
    where = path.read_text().split("[balancer, roll]")[0]
    line, column = where.count("\n") + 1, len(where.rsplit("\n", 1)[1]) + len("[balancer, ") + 1
    words = said(copy, "[balancer, roll]", "[balancer, rol]")
    assert f"{path}:{line}:{column}: stages[3].steps[1]: no step 'rol'; did you mean" in words
    assert "^" in words


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("[join, verify]", "[join, verify, join]", "step join twice (first in line"),
        ("[balancer, roll]", "[]", "an empty stage"),
        ("[balancer, roll]", "[roll, balancer]", "roll stands before balancer"),
        ("[join, verify]", "[verify, join]", "verify stands before join"),
        ("  - name: change\n    machines: one by one", "  - name: change\n    machines: side by side", "`one by one`"),
        ("    machines: one by one\n    steps: [pull", "    machine: one by one\n    steps: [pull", 'mean "machines"?'),
        ("[record, tidy]", "[tidy, record]", "tidy stands before record"),
        ("name: finish", "name: join", "stage join twice"),
        ("[pull, manifest]", "[pull]", "model needs manifest before it"),
        ("[join, verify]", "[join, verify, record]", "step record twice"),
        ("[join, verify]", "[join, verify, {run: x}]", "a `run:` step has a name"),
        ("[join, verify]", "[join, verify, {run: x, name: roll}]", "roll is the name of a step kind"),
        ("[join, verify]", "[join, verify, {name: a}]", "either `run:` with a shell line, or `file:`"),
        ("[join, verify]", "[join, verify, {name: a, file: no.sh}]", "no such file"),
        ("[join, verify]", "[join, verify, {name: a, file: ../up.sh}]", "a path below the inventory's folder"),
        ("[join, verify]", "[join, verify, {name: a, run: playbooks/rollout.yaml}]", "say `file: playbooks"),
        ("[join, verify]", "[join, verify, {name: a, run: x, on: everywhere}]", "machines, balancer, source"),
        ("[join, verify]", "[join, verify, {name: a, run: x, timeout: 0}]", "seconds, 1 to"),
        ("[join, verify]", "[join, verify, {name: a, run: x, timout: 9}]", 'did you mean "timeout"?'),
        ("[join, verify]", "[join, verify]\n    before: [verify]", "hooks are the user's own"),
        ("stages:\n", "drop: [fly]\nstages:\n", "has no step 'fly'"),
        ("stages:\n", "drop: [verify]\nstages:\n", "verify is left out here and is a step below"),
        ("stages:\n", "stages:\n  - roll\n", "a stage has name, machines and steps"),
    ],
)
def test_each_kind_of_nonsense_is_a_clear_error(copy: Path, old: str, new: str, words: str) -> None:
    assert words in said(copy, old, new)


def test_a_playbook_that_no_command_reads_is_refused(copy: Path) -> None:
    (copy / "playbooks/rollout.yaml").rename(copy / "playbooks/rolout.yaml")
    with pytest.raises(UsageError, match=r"rolout.yaml: no command has this playbook; it has to be rollout.yaml"):
        playbook.load("rollout", set(STEPS), copy)


def test_join_before_start_is_refused(copy: Path) -> None:
    path = copy / "playbooks/add-machine.yaml"
    lines = path.read_text().split("  - name: ")
    order = {part.split("\n")[0]: part for part in lines[1:]}
    names = ["source", "prepare", "join", "start", "finish"]
    path.write_text("  - name: ".join([lines[0], *(order[name] for name in names)]))
    with pytest.raises(UsageError, match="join stands before start"):
        playbook.load("add-machine", set(STEPS), copy)


def test_every_mistake_is_said_at_once(copy: Path) -> None:
    words = said(copy, "[join, verify]", "[join, verify, {run: x}, {name: b, file: no.sh}, fly]")
    assert all(part in words for part in ("has a name", "no such file", "no step 'fly'"))


def test_a_run_step_goes_with_the_work_of_its_machine(copy: Path, fleet: Fleet) -> None:
    book = edit(copy, "[balancer, roll]", "[balancer, roll, {name: warm-up, run: 'echo $MACHINE', timeout: 9}]")
    found = of(plan(book, five(fleet)), "warm-up")
    assert [op.machine for op in found] == [69, 68, 67, 66]
    run = found[2].action
    assert isinstance(run, Run)
    assert run.stdin == b"#!/bin/sh\nset -eu\necho $MACHINE\n"
    assert found[2].summary == "echo $MACHINE"
    words = found[2].detail
    for fact in ("FLEET=qwen38", "MACHINE=67", "STAGE=change", "RELEASE=2", "TOKENS=5", "ADDRESS=10.255.254.67"):
        assert fact in words
    assert "BACKENDS=10.255.254.69:8000 " in words
    assert "INSTANCES=67/0 67/1 67/2 67/3" in words
    assert KEY not in run.script.text


def test_a_run_step_on_the_balancer_is_still_about_its_machine(copy: Path, fleet: Fleet) -> None:
    book = edit(copy, "[balancer, roll]", "[balancer, roll, {name: tell, run: x, on: balancer}]")
    found = of(plan(book, five(fleet)), "tell")
    assert [(op.machine, op.target) for op in found] == [(69, "69"), (69, "68"), (69, "67"), (69, "66")]
    assert "MACHINE=66" in found[3].detail


def test_hooks_stand_around_their_stage(copy: Path, fleet: Fleet) -> None:
    (copy / "hooks").mkdir()
    (copy / "hooks/quiet.sh").write_text("#!/bin/bash\nexit 0\n")
    hooks = (
        "[balancer, roll]\n    before:\n      - {name: quiet, file: hooks/quiet.sh}\n"
        "    after:\n      - {name: loud, run: echo done, on: balancer}"
    )
    found = plan(edit(copy, "[balancer, roll]", hooks), five(fleet))
    names = [child.name for child in found.root.children]
    place = names.index("change")
    assert names[place - 1 : place + 2] == ["before change", "change", "after change"]
    assert [op.machine for op in of(found, "quiet")] == [69, 68, 67, 66]
    assert [op.machine for op in of(found, "loud")] == [69]
    quiet = of(found, "quiet")[0]
    assert quiet.summary.startswith("hooks/quiet.sh (sha256 ")
    assert isinstance(quiet.action, Run)
    assert quiet.action.stdin == b"#!/bin/bash\nexit 0\n"


def test_a_stage_with_nothing_to_do_has_no_hooks(copy: Path, fleet: Fleet) -> None:
    book = edit(copy, "[join, verify]", "[join, verify]\n    before: [{name: knock, run: x}]")
    assert of(plan(book, five(fleet)), "knock") == []


def test_nothing_of_the_user_runs_when_there_is_nothing_to_do(copy: Path, fleet: Fleet) -> None:
    table = peers.of(fleet, {}, fleet.machines)
    text = "[record, tidy, {name: own, run: x}]\n    before: [{name: a, run: x}]\n    after: [{name: b, run: x}]"
    book = edit(
        copy, "[record, tidy]", text + "\n  - name: mine\n    machines: side by side\n    steps: [{name: c, run: x}]"
    )
    assert plan(book, context(fleet, whole(fleet), tuple(fleet.machines), peers=table)).operations == ()
    steps = {op.step for op in plan(book, five(fleet)).operations}
    assert {"own", "a", "b", "c"} <= steps


def test_another_line_is_another_plan(copy: Path, fleet: Fleet) -> None:
    one = plan(edit(copy, "[balancer, roll]", "[balancer, roll, {name: own, run: x 1}]"), five(fleet)).id
    assert plan(edit(copy, "run: x 1", "run: x 2"), five(fleet)).id != one


def test_another_content_of_a_file_is_another_plan(copy: Path, fleet: Fleet) -> None:
    (copy / "own.sh").write_text("one")
    one = plan(edit(copy, "[balancer, roll]", "[balancer, roll, {name: own, file: own.sh}]"), five(fleet)).id
    (copy / "own.sh").write_text("two")
    assert plan(playbook.load("rollout", set(STEPS), copy), five(fleet)).id != one


def test_what_looks_like_a_key_is_not_shown(copy: Path, fleet: Fleet) -> None:
    book = edit(copy, "[balancer, roll]", "[balancer, roll, {name: own, run: 'curl -d sk-0123456789abcdef x'}]")
    found = plan(book, five(fleet))
    assert "sk-0123456789abcdef" not in "".join(op.summary + op.detail for op in found.operations)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_program_runs_with_its_facts_and_leaves_no_file(place: Path) -> None:
    done = _run(place, b'#!/bin/sh\nset -eu\necho "$MACHINE, $STAGE"\n')
    assert (done.returncode, done.stdout) == (0, b"67, a b\n")
    assert list(place.iterdir()) == []


def _run(place: Path, program: bytes, seconds: int = 20) -> subprocess.CompletedProcess[bytes]:
    script = Script("run_step", (PurePosixPath(place), seconds, "MACHINE=67", "STAGE=a b"))
    return subprocess.run(["/bin/sh", "-c", script.text], input=program, capture_output=True, check=False)


def test_a_program_without_an_interpreter_is_shell(place: Path) -> None:
    assert _run(place, b"echo $0 | grep -c run\n").stdout == b"1\n"


def test_a_failing_line_fails_and_says_how(place: Path) -> None:
    done = _run(place, b"#!/bin/sh\nset -eu\necho boom >&2; false\necho not reached\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"boom\nit ended with 1\n")


def test_a_program_that_hangs_is_ended(place: Path) -> None:
    done = _run(place, b"#!/bin/sh\nsleep 60\n", 1)
    assert done.returncode == 124
    assert b"not done within 1 s" in done.stderr


def test_facts_of_machines_that_do_not_answer_are_not_needed(copy: Path, fleet: Fleet) -> None:
    book = edit(copy, "[drain, leave]", "[drain, leave, {name: own, run: x}]", "remove-machine")
    table = peers.of(fleet, {}, fleet.machines)
    facts: dict[int, Facts] = whole(fleet)
    del facts[67]
    found = expand.expand(book, replace(context(fleet, facts, (67,)), peers=table), "remove-machine 67")
    assert of(found, "own") == []
    assert isinstance(found.root, Group)


def test_the_example_in_the_documentation_is_a_playbook(tmp_path: Path) -> None:
    text = (SHIPPED.parent / "docs/playbooks.md").read_text()
    blocks = [block.split("```")[0] for block in text.split("```yaml\n")[1:]]
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks/warm-up.sh").write_text("true\n")
    (tmp_path / "playbooks/rollout.yaml").write_text(blocks[0])
    assert len(playbook.load("rollout", set(STEPS), tmp_path).stages) == 7
    (tmp_path / "playbooks/rollout.yaml").write_text(blocks[1] + blocks[0].replace("[record, tidy]", "[record]"))
    assert len(playbook.load("rollout", set(STEPS), tmp_path).left_out) == 1
    rules = (tmp_path / "playbooks/rollout.yaml").read_text()
    assert rules.startswith("drop:")
