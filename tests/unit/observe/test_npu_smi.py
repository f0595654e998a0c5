"""What the npu-smi parser survives: every card and driver of the published samples, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetctl.observe.npu_smi import ChipMapping, Npu, NpuProcess, parse_info, parse_mapping

DATA = Path(__file__).parent / "data" / "npu-smi"
IDLE_AND_BUSY = (DATA / "info-25.2.0-910b3.txt").read_text()
BUILT = (DATA / "built-26.0.rc1-910b4.txt").read_text()
ROWS = [number for number, line in enumerate(BUILT.splitlines()) if line.startswith("|")]
HEADER_310P = """\
| NPU     Name              | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device            | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
"""


def one(text: str) -> Npu:
    (npu,) = parse_info(text).npus
    return npu


def card(**cells: str) -> str:
    """A whole output of one card and no process, with some cells replaced."""
    given = {"name": "910B4", "health": "OK", "power": "97.9", "chip": "0", "bus": "0000:C1:00.0"}
    given |= {"hbm": "3408 / 65536", **cells}
    return (
        "| npu-smi 25.2.0  Version: 25.2.0 |\n"
        f"| 0     {given['name']} | {given['health']} | {given['power']}  34   0    / 0 |\n"
        f"| {given['chip']} | {given['bus']} | 0   0    / 0   {given['hbm']} |\n"
        "| NPU     Chip | Process id | Process name | Process memory(MB) |\n"
        "| No running processes found in NPU 0 |\n"
    )


def test_a_whole_output_gives_every_card_with_its_holders() -> None:
    idle, busy = parse_info(IDLE_AND_BUSY).npus
    assert idle == Npu(0, 0, "910B3", "OK", 3408, 65536, "0000:C1:00.0", ())
    assert (busy.id, busy.hbm_used_mb, busy.hbm_total_mb) == (2, 41052, 65536)
    assert busy.processes == (NpuProcess(1333928, None, 37709),)


def test_the_version_of_the_driver_is_read() -> None:
    assert parse_info(BUILT).version == "26.0.rc1"
    assert parse_info("nothing").version is None


def test_the_fleets_card_under_its_driver_is_read() -> None:
    npus = parse_info(BUILT).npus
    assert [npu.id for npu in npus] == list(range(8))
    assert {npu.name for npu in npus} == {"910B4"}
    assert npus[2].processes == (NpuProcess(21011, "VLLM::Worker_TP", 56893),)
    assert npus[5].health == "Warning"
    assert [npu.id for npu in npus if npu.processes] == [2, 3]


def test_a_phy_id_column_and_a_fifth_process_column_change_nothing() -> None:
    npu = one((DATA / "info-26.0.rc1-a3.rows.txt").read_text())
    assert (npu.id, npu.chip, npu.hbm_used_mb) == (0, 0, 63274)
    assert npu.processes == (NpuProcess(632268, "python3.1", 197),)


def test_rows_without_headers_and_with_a_warning_are_read() -> None:
    npu = one((DATA / "info-24.1.rc2-warning.rows.txt").read_text())
    assert (npu.id, npu.name, npu.health) == (3, "xxx", "Warning")
    assert (npu.hbm_used_mb, npu.hbm_total_mb) == (0, 32768)


def test_a_card_that_the_process_table_does_not_name_has_unknown_holders() -> None:
    assert one((DATA / "info-24.1.rc2-warning.rows.txt").read_text()).processes is None
    cut = IDLE_AND_BUSY.split("+---------------------------+---------------+---")[0]
    assert all(npu.processes is None for npu in parse_info(cut).npus)


@pytest.mark.parametrize("hbm", ["41052/ 65536", "41052 / 65536", "41052/65536", "41052   /   65536"])
def test_spaces_around_the_slash_do_not_matter(hbm: str) -> None:
    assert (one(card(hbm=hbm)).hbm_used_mb, one(card(hbm=hbm)).hbm_total_mb) == (41052, 65536)


@pytest.mark.parametrize("power", ["-", "NA", "97.9"])
def test_power_may_be_missing(power: str) -> None:
    assert one(card(power=power)).hbm_used_mb == 3408


@pytest.mark.parametrize("name", ["910B4", "910B4-1", "910B2C", "910ProB", "Ascend910", "Ascend 910 9382"])
def test_names_keep_their_suffix_and_say_nothing_about_memory(name: str) -> None:
    assert (one(card(name=name)).name, one(card(name=name)).hbm_total_mb) == (name, 65536)


@pytest.mark.parametrize("health", ["OK", "Warning", "Alarm", "Critical", "UNKNOWN"])
def test_every_health_is_kept_as_printed(health: str) -> None:
    assert one(card(health=health)).health == health


def test_what_a_card_does_not_say_is_unknown_and_never_zero() -> None:
    npu = one(card(name="NA", health="NA", bus="NA", hbm="NA   / NA"))
    assert npu == Npu(0, 0, None, None, None, None, None, ())


def test_a_row_that_was_cut_off_is_not_half_read() -> None:
    cut = IDLE_AND_BUSY[: IDLE_AND_BUSY.index("41052/ 65536") + 9]
    assert [npu.id for npu in parse_info(cut).npus] == [0]


def test_a_card_without_hbm_column_has_unknown_hbm() -> None:
    rows = (
        "| 1       310P3       | OK            | NA           40                0     / 0    |\n"
        "| 0       0           | 0000:01:00.0  | 0            1554 / 44280                   |\n"
    )
    for text in (HEADER_310P + rows, rows):
        npu = one(text)
        assert (npu.id, npu.health, npu.hbm_used_mb, npu.hbm_total_mb) == (1, "OK", None, None)


def test_two_chips_of_one_npu_are_two_entries() -> None:
    text = (
        "| 0     Ascend910 | OK | 195.9  40  0    / 0 |\n| 0     0 | 0000:9D:00.0 | 0  0 / 0  3274/ 65536 |\n"
        "| 0     Ascend910 | OK | -      41  0    / 0 |\n| 1     1 | 0000:9F:00.0 | 0  0 / 0  2874/ 65536 |\n"
        "| 0       1 | 77 | python3 | 9000 | NA |\n"
    )
    first, second = parse_info(text).npus
    assert (first.chip, first.bus_id, first.processes) == (0, "0000:9D:00.0", ())
    assert (second.chip, second.bus_id) == (1, "0000:9F:00.0")
    assert second.processes == (NpuProcess(77, "python3", 9000),)


def test_ids_need_neither_start_at_zero_nor_follow_each_other() -> None:
    text = card().replace("| 0     910B4", "| 4     910B4").replace("NPU 0", "NPU 4")
    assert (one(text).id, one(text).processes) == (4, ())


def test_process_names_may_be_empty_cut_or_have_spaces_and_pids_may_be_missing() -> None:
    rows = "| 0 0 | 7 | | 5 |\n| 0 0 | 8 | VLLMWorker_TP | 6 |\n| 0 0 | 9 | my tool | NA |\n"
    rows += "| 0 0 | NA | x | 1 | NA |\n"
    assert one(card() + rows).processes == (
        NpuProcess(7, None, 5),
        NpuProcess(8, "VLLMWorker_TP", 6),
        NpuProcess(9, "my tool", None),
        NpuProcess(None, "x", 1),
    )


def test_the_same_pid_on_several_chips_is_reported_on_each() -> None:
    rows = "| 0       0 | 632268 | python3 | 130 |\n| 2       0 | 632268 | python3 | 40000 |\n"
    first, second = parse_info(IDLE_AND_BUSY + rows).npus
    assert NpuProcess(632268, "python3", 130) in (first.processes or ())
    assert NpuProcess(632268, "python3", 40000) in (second.processes or ())


def test_a_process_table_without_chip_column_counts_for_the_npu() -> None:
    text = card() + "| NPU ID | Process id | Process name | Process memory(MB) |\n| 0 | 12 | python3 | 3000 |\n"
    assert one(text).processes == (NpuProcess(12, "python3", 3000),)


def test_noise_before_and_between_the_tables_is_passed_over() -> None:
    noise = "DrvMngGetConsoleLogLevel failed. (g_conLogLevel=3)\n"
    assert parse_info(noise + IDLE_AND_BUSY.replace("\n", "\n" + noise)) == parse_info(IDLE_AND_BUSY)


def test_a_card_that_does_not_answer_is_absent() -> None:
    assert parse_info("Failed to query npu chip: 0 info.\n").npus == ()


def test_mapping_keeps_the_controller_apart() -> None:
    mapping = parse_mapping((DATA / "subcommands.txt").read_text())
    assert mapping == (ChipMapping(0, 0, 0, "Ascend xxx"), ChipMapping(0, 1, None, "Mcu"))


@given(st.text(alphabet="|0123456789 /NA-:.abC\n+=", max_size=400))
def test_no_text_makes_the_parser_fail(text: str) -> None:
    parse_info(text)
    parse_mapping(text)


@given(st.sets(st.sampled_from(ROWS), max_size=6))
def test_rows_that_were_lost_never_give_a_card_the_memory_of_another(lost: set[int]) -> None:
    left = "\n".join(line for number, line in enumerate(BUILT.splitlines()) if number not in lost)
    whole = {(npu.id, npu.hbm_used_mb) for npu in parse_info(BUILT).npus}
    assert {(npu.id, npu.hbm_used_mb) for npu in parse_info(left).npus} <= whole
