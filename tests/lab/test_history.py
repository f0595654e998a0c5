"""The first report's own history: 69, 68, 67, 66 join with 4, 8, 12, 16 backends, verified between."""

from __future__ import annotations

import pytest
import yaml

from .conftest import Lab

ORDER = (69, 68, 67, 66)
HOMES = {"abc": "67:8000", "user-1": "69:8003", "张三": "67:8002"}


def grow(lab: Lab) -> None:
    net = lab.status()["machines"][0]["instances"][0]["address"].rsplit(".", 1)[0]
    for stage, machine in enumerate(ORDER, 1):
        lab.run("add-machine", str(machine), "--yes")
        document = lab.status()
        assert document["balancer"]["backends"] == document["balancer"]["up"] == stage * 4
        assert {one["state"] for m in document["machines"] if m["id"] == machine for one in m["instances"]} == {
            "serving"
        }
    for session, home in HOMES.items():
        assert lab.ask(session) == (200, f"{net}.{home}")


def test_the_report_grows_from_4_to_16_as_root_with_privileged_containers(report_lab: Lab) -> None:
    grow(report_lab)
    assert report_lab.status()["verdict"] == "ok"
    assert "--privileged" in report_lab.on(67, "systemctl cat qwen38-tp2-0.service")


def test_what_ran_before_is_gone_and_its_definition_is_saved(report_lab: Lab) -> None:
    left = report_lab.on(66, "docker ps -a --format '{{.Names}}'; ls /etc/systemd/system")
    assert "sd35-npu" not in left
    saved = report_lab.on(66, "find /var/lib/fleetctl -name 'sd35-npu-*'")
    assert "sd35-npu-0.service" in saved
    assert "minimax-h3.service" in report_lab.on(68, "find /var/lib/fleetctl -name '*.service'")


def test_a_second_rollout_changes_nothing(report_lab: Lab) -> None:
    before = report_lab.on(67, "docker ps -q --no-trunc; sha256sum /etc/systemd/system/qwen38*")
    done = report_lab.run("rollout", "--mtp", "4", "--yes")
    assert "nothing to do" in done.out
    assert report_lab.on(67, "docker ps -q --no-trunc; sha256sum /etc/systemd/system/qwen38*") == before


def test_status_json_has_the_documented_shape(report_lab: Lab) -> None:
    document = report_lab.status()
    assert document["schema"] == 1
    one = document["machines"][2]["instances"][0]
    assert one["id"] == "67/0"
    assert one["npus"] == [0, 1]
    assert one["port"] == 8000
    assert one["unit"] == {"active": "active", "enabled": "enabled", "restarts": 0}
    assert one["health"] == {"http": 200, "model": "Qwen3.8-27B-W8A8"}
    assert (one["balancer"], one["mtp"], one["drift"]) == ("up", 4, False)
    assert document["balancer"]["up"] == 16


def test_status_is_whole_when_piped_and_fits_80_columns(report_lab: Lab) -> None:
    lines = report_lab.run("status").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("serving" in line for line in lines) == 17
    assert "…" not in "".join(lines)


def test_only_v1_is_proxied_and_the_key_is_checked(report_lab: Lab) -> None:
    assert report_lab.ask("x", "/invocations")[0] == 404
    assert report_lab.ask("x", "/metrics")[0] == 404
    assert report_lab.ask("x", key="wrong-key-000")[0] == 401


def test_a_stopped_instance_moves_its_own_sessions_only(report_lab: Lab) -> None:
    homes = {session: report_lab.ask(session)[1] for session in HOMES}
    report_lab.run("stop", "67/0", "--reason", "test", "--yes")
    code, now = report_lab.ask("abc")
    assert code == 200
    assert now != homes["abc"]
    assert all(report_lab.ask(session)[1] == homes[session] for session in ("user-1", "张三"))
    assert report_lab.states()["67/0"] == "stopped"
    assert "stopped on purpose" in report_lab.run("status").out
    assert "nothing to do" in report_lab.run("rollout", "--yes").out
    report_lab.run("start", "67/0", "--yes")
    assert report_lab.ask("abc")[1] == homes["abc"]


@pytest.mark.parametrize("name", ["67/2", "67:8002", "address", "67/qwen38-tp2-2"])
def test_one_instance_is_restarted_by_each_of_its_names(report_lab: Lab, name: str) -> None:
    def ids() -> dict[str, str]:
        return dict(line.split() for line in report_lab.on(67, "docker ps --format '{{.Names}} {{.ID}}'").splitlines())

    before = ids()
    word = report_lab.status()["machines"][2]["instances"][2]["address"] if name == "address" else name
    report_lab.run("restart", word, "--yes")
    after = ids()
    assert after["qwen38-tp2-2"] != before["qwen38-tp2-2"]
    assert {k: v for k, v in after.items() if k != "qwen38-tp2-2"} == {
        k: v for k, v in before.items() if k != "qwen38-tp2-2"
    }
    assert report_lab.states()["67/2"] == "serving"


def test_everything_comes_back_by_itself_and_what_was_stopped_stays_stopped(report_lab: Lab) -> None:
    lab = report_lab
    lab.run("stop", "66/3", "--yes")
    lab.on(66, "kill -9 $(docker inspect -f '{{.State.Pid}}' qwen38-tp2-0)")
    lab.on(66, "docker exec qwen38-tp2-1 sh -c 'echo exit0 >/run/fault'")
    lab.on(66, "docker kill qwen38-tp2-2")
    lab.on(68, "docker exec qwen38-tp2-1 sh -c 'echo exit1 >/run/fault'")
    lab.wait("they are seen to be down", lambda: lab.states()["66/0"] != "serving")
    lab.wait_serving("66/0", "66/1", "66/2", "68/1")
    lab.on(68, "systemctl stop docker.service docker.socket && systemctl start docker.service")
    lab.wait_serving("68/0", "68/1", "68/2", "68/3")
    lab.run("lab", "fault", "reboot", "66")
    lab.wait_serving("66/0", "66/1", "66/2")
    assert lab.states()["66/3"] == "stopped"
    lab.run("start", "66/3", "--yes")
    lab.wait("all 16 in rotation", lambda: lab.status()["balancer"]["up"] == 16)


def test_each_device_mode_fails_with_the_ids_of_the_other(report_lab: Lab) -> None:
    lab = report_lab
    image = lab.on(67, "docker inspect -f '{{.Config.Image}}' qwen38-tp2-0").strip()
    lab.run("stop", "67/1", "--yes")
    mounts = "-v /usr/local/dcmi:/usr/local/dcmi:ro -v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi:ro"
    mounts += " -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro -v /data/models:/models:ro"
    serve = f"{image} vllm serve /models/Qwen3.8-27B-W8A8 --served-model-name Qwen3.8-27B-W8A8"
    mapped = "--device /dev/davinci2 --device /dev/davinci3 --device /dev/davinci_manager --device /dev/devmm_svm --device /dev/hisi_hdc"
    wrong = f"docker run --rm {mapped} {mounts} -e ASCEND_RT_VISIBLE_DEVICES=2,3 {serve} 2>&1; echo rc=$?"
    said = lab.on(67, wrong)
    assert "EE1001" in said
    assert "rc=1" in said
    # Privileged, the container's own numbers 0,1 are 67/0's NPUs, which are taken.
    wrong = f"docker run --rm --privileged {mounts} -e ASCEND_RT_VISIBLE_DEVICES=0,1 {serve} 2>&1; echo rc=$?"
    said = lab.on(67, wrong)
    assert "rc=1" in said
    assert "507899" in said or "drvErr=87" in said
    lab.run("start", "67/1", "--yes")


def changes_mode(lab: Lab, mode: str) -> str:
    """Machine 66 is rolled to the other device mode while the rest serves; the text of one of its units."""
    document = yaml.safe_load(lab.inventory.read_text())
    document["accelerator"]["device_mode"] = mode
    other = lab.inventory.with_name(f"{mode}.yaml")
    other.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    lab.run("rollout", "--machines", "66", "--yes", inventory=other)
    document = lab.run("status", "-o", "json", inventory=other).json
    assert document["balancer"]["up"] == 16
    assert {one["state"] for m in document["machines"] if m["id"] == 66 for one in m["instances"]} == {"serving"}
    return lab.on(66, "systemctl cat qwen38-tp2-2.service")


def test_as_root_the_other_device_mode_serves_too(report_lab: Lab) -> None:
    text = changes_mode(report_lab, "mapped")
    assert "--privileged" not in text
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1" in text


def test_the_report_grows_as_the_sudo_user_through_a_jump_host_with_mapped_devices(mapped_lab: Lab) -> None:
    grow(mapped_lab)
    text = mapped_lab.on(67, "systemctl cat qwen38-tp2-2.service")
    assert "--privileged" not in text
    assert "ASCEND_RT_VISIBLE_DEVICES=0,1" in text
    assert "nothing to do" in mapped_lab.run("rollout", "--yes").out


def test_as_the_sudo_user_the_other_device_mode_serves_too(mapped_lab: Lab) -> None:
    assert "--privileged" in changes_mode(mapped_lab, "privileged")
