"""`rollout --adopt`: a fleet built by hand as in the first report is taken over under load, and nobody notices."""

from __future__ import annotations

import subprocess
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
import yaml

from tests.lab.conftest import Lab, a_lab

pytestmark = pytest.mark.matrix

IMAGE = "quay.io/ascend/vllm-ascend:qwen3.8-a2"
MODEL = "Qwen3.8-27B-W8A8"
NAMES = ("qwen38-tp2-0", "qwen38-tp2-1")
# As the report has it (its section 5.1), the key in the arguments and all.
RUN = f"""
docker run -d --name qwen38-tp2-$i --privileged \
  -v /usr/local/dcmi:/usr/local/dcmi:ro -v /data/models:/models:ro \
  -v /usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi:ro -v /usr/local/Ascend/driver:/usr/local/Ascend/driver:ro \
  -p $((8000 + i)):$((8000 + i)) -e ASCEND_RT_VISIBLE_DEVICES=$((2 * i)),$((2 * i + 1)) {IMAGE} \
  vllm serve /models/{MODEL} --served-model-name {MODEL} --host 0.0.0.0 --port $((8000 + i)) --api-key $KEY \
  --tensor-parallel-size 2 --max-model-len 262144 --max-num-seqs 32 --trust-remote-code \
  --speculative-config '{{"method":"mtp","num_speculative_tokens":4}}' >/dev/null
cat >/etc/systemd/system/qwen38-tp2-$i.service <<U
[Unit]
After=docker.service
Requires=docker.service
[Service]
ExecStart=/usr/bin/docker start -a qwen38-tp2-$i
ExecStop=/usr/bin/docker stop qwen38-tp2-$i
Restart=on-failure
[Install]
WantedBy=multi-user.target
U
docker stop -t 5 qwen38-tp2-$i >/dev/null
systemctl daemon-reload
systemctl enable --quiet --now qwen38-tp2-$i
"""
BALANCER = """
mkdir -p /usr/local/lb/logs
cat >/usr/local/lb/nginx.conf <<U
pid /run/by-hand.pid;
error_log /usr/local/lb/logs/error.log;
events { worker_connections 1024; }
http {
  access_log /usr/local/lb/logs/access.log;
  upstream all { hash \\$http_x_session_id; %s }
  server { listen 0.0.0.0:%d; location /v1/ { proxy_pass http://all; proxy_buffering off; proxy_read_timeout 600s; } }
}
U
cat >/etc/systemd/system/openresty-qwen.service <<U
[Service]
ExecStart=/usr/sbin/nginx -c /usr/local/lb/nginx.conf -g 'daemon off;'
Restart=on-failure
RestartSec=5
[Install]
WantedBy=multi-user.target
U
systemctl daemon-reload
systemctl enable --quiet --now openresty-qwen
"""


@pytest.fixture(scope="module")
def by_hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Two machines with two instances each that somebody has set up by hand."""
    for lab in a_lab(tmp_path_factory, "adopt", "10.255.225", [69, 67], instances={"per_machine": 2}):
        listen = int(lab.on(69, "ss -Hltnp | grep nginx").split()[3].rsplit(":", 1)[1])
        port = f"ss -Hltnp 'sport = :{listen}'"
        lab.on(69, f"kill $({port} | grep -o 'pid=[0-9]*' | cut -d= -f2 | sort -u) || true")
        lab.on(69, f"while {port} | grep -q .; do sleep 0.2; done")
        lab.on(67, "for u in $(ls /etc/systemd/system | grep minimax); do systemctl disable --now $u; "
                   "rm /etc/systemd/system/$u; done; docker rm -f $(docker ps -aq); systemctl daemon-reload")  # fmt: skip
        for what in (f"docker save {IMAGE}", "tar -C /data -c models"):
            into = "docker load" if what.startswith("docker") else "tar -C /data -x"
            source, target = lab.container(69), lab.container(67)
            line = f"docker exec {source} {what} | docker exec -i {target} {into}"
            subprocess.run(["sh", "-c", line], check=True, stdout=subprocess.DEVNULL)
        for machine in (69, 67):
            lab.on(machine, f"KEY={lab.key}\nfor i in 0 1; do\n{RUN}\ndone")
        servers = " ".join(f"server 10.255.225.{m}:{p};" for m in (69, 67) for p in (8000, 8001))
        lab.on(69, BALANCER % (servers, listen))
        wait_answers(lab)
        yield lab


def wait_answers(lab: Lab) -> None:
    lab.wait("the fleet answers", lambda: all(lab.ask(f"s{n}")[0] == 200 for n in range(8)))


class Users(threading.Thread):
    """Short requests and streams of several seconds, without a pause, until told to stop."""

    def __init__(self, lab: Lab, number: int, stream: bool) -> None:
        super().__init__(daemon=True)
        self.lab, self.number, self.stream = lab, number, stream
        self.url = f"{lab.url}/v1/chat/completions"
        self.seen: Counter[str] = Counter()
        self.enough = threading.Event()

    def run(self) -> None:
        turn = 0
        while not self.enough.is_set():
            turn += 1
            self.seen[self.once(f"u{self.number}-{turn % 5}")] += 1

    def once(self, session: str) -> str:
        tokens, stream = (200, "true") if self.stream else (5, "false")
        body = (
            f'{{"model": "{MODEL}", "max_tokens": {tokens}, "ignore_eos": true, "stream": {stream}, '
            '"messages": [{"role": "user", "content": "hello"}]}'
        )
        headers = ["-H", f"X-Session-ID: {session}", "-H", "Content-Type: application/json"]
        done = subprocess.run(
            ["curl", "-sSN", "-m", "60", "-K", "-", *headers, "-d", body, "-w", "\\n%{http_code}", self.url],
            input=f'header = "Authorization: Bearer {self.lab.key}"\n',
            capture_output=True,
            text=True,
            check=False,
        )
        text, _, code = done.stdout.rpartition("\n")
        whole = "data: [DONE]" in text if self.stream else '"finish_reason"' in text
        return "good" if (done.returncode, code, whole) == (0, "200", True) else f"{done.returncode} {code} {whole}"


def with_users(lab: Lab, *words: str) -> None:
    """A command under load; fails when a single request does."""
    users = [Users(lab, number, stream=number % 2 == 0) for number in range(4)]
    for user in users:
        user.start()
    try:
        lab.run(*words)
    finally:
        for user in users:
            user.enough.set()
        for user in users:
            user.join(90)
    seen = sum((user.seen for user in users), Counter())
    assert set(seen) == {"good"}, seen
    assert seen["good"] > 20


def test_what_is_by_hand_is_foreign_without_the_flag(by_hand: Lab) -> None:
    refused = by_hand.run("rollout", "--yes", code=1)
    assert "--adopt" in refused.err
    assert by_hand.ask("s1")[0] == 200


def test_a_fleet_by_hand_is_taken_over_and_no_request_is_lost(by_hand: Lab) -> None:
    lab = by_hand
    plan = lab.run("rollout", "--adopt", "--dry-run").out
    assert "taken over: 69: qwen38-tp2-0, qwen38-tp2-1; 67: qwen38-tp2-0, qwen38-tp2-1" in plan
    before = lab.on(67, f"stat -L -c '%i' /data/models/{MODEL}/config.json")
    with_users(lab, "rollout", "--adopt", "--yes")
    assert lab.on(67, f"stat -L -c '%i' /data/models/{MODEL}/config.json") == before, "the model was copied again"
    assert set(lab.states().values()) == {"serving"}
    assert lab.status()["verdict"] == "ok"
    assert "nothing to do" in lab.run("rollout", "--yes").out
    for machine in (69, 67):
        saved = lab.on(machine, "ls /var/lib/fleetctl/adopt/saved/*/")
        for name in NAMES:
            assert f"{name}.service" in saved
            assert f"{name}.container.json" in saved
    assert "openresty-qwen.service" in lab.on(69, "ls /var/lib/fleetctl/adopt/saved/*/")


def test_the_balancer_that_was_taken_over_comes_back_as_ours(by_hand: Lab) -> None:
    by_hand.on(69, "systemctl restart openresty-qwen")
    wait_answers(by_hand)
    assert "/etc/fleetctl/adopt/balancer/nginx.conf" in by_hand.on(
        69, "tr '\\0' ' ' </proc/$(systemctl show -p MainPID --value openresty-qwen)/cmdline"
    )


def test_ports_are_renamed_and_no_request_is_lost(by_hand: Lab) -> None:
    document = yaml.safe_load(by_hand.inventory.read_text())
    document["instances"]["port"] = 8100
    by_hand.inventory.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))
    with_users(by_hand, "rollout", "--yes")
    assert by_hand.ask("s1")[1].rsplit(":", 1)[1] in ("8100", "8101")
    assert "nothing to do" in by_hand.run("rollout", "--yes").out
    assert by_hand.status()["verdict"] == "ok"
