"""A page of another origin calls the balancer in a real browser: streaming, headers, and every kind of error."""

from __future__ import annotations

import http.server
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.conftest import Start, table
from tests.live.servers import Backend, eventually, free_port

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium")

PAGE = """<!doctype html><script>
const base = "http://127.0.0.1:PORT";
const headers = {"Authorization": "Bearer sk-x", "Content-Type": "application/json", "X-Session-ID": "page",
                 "X-Stainless-Os": "Linux", "X-Stainless-Arch": "x64"};
async function stream() {
  const answer = await fetch(base + "/v1/chat/completions", {method: "POST", headers, body: "{}"});
  const reader = answer.body.getReader(), times = [];
  let text = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) break;
    times.push(performance.now());
    text += new TextDecoder().decode(value);
  }
  return {status: answer.status, upstream: answer.headers.get("X-Upstream-Addr"),
          id: answer.headers.get("X-Request-Id"), reads: times.length, spread: times.at(-1) - times[0], text};
}
async function error(path, body) {
  const answer = await fetch(base + path, {method: "POST", headers, body});
  return {status: answer.status, json: await answer.json()};
}
async function run() {
  const result = {};
  try {
    result.stream = await stream();
    result.missing = await error("/nowhere", "{}");
    result.large = await error("/v1/chat/completions", "x".repeat(1200000));
    await fetch("/break", {method: "POST"});
    result.broken = await error("/v1/chat/completions", "{}");
    await fetch("/empty", {method: "POST"});
    result.nobody = await error("/v1/chat/completions", "{}");
  } catch (failure) { result.failure = String(failure); }
  await fetch("/result", {method: "POST", body: JSON.stringify(result)});
}
run();
</script>"""


class Site:
    """The page's own origin: serves it, lets it change the backends, and takes its result."""

    def __init__(self, balancer_port: int, actions: dict[str, Any]) -> None:
        self.result: dict[str, Any] = {}
        site, page = self, PAGE.replace("PORT", str(balancer_port)).encode()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(page if self.path == "/" else b"", "text/html")

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                if self.path == "/result":
                    site.result = json.loads(body)
                else:
                    actions[self.path]()
                self._send(b"", "text/plain")

            def _send(self, body: bytes, kind: str) -> None:
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.port = free_port()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def profile() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="fleetctl-browser-")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_a_page_of_another_origin_streams_and_reads_every_error(
    start: Start, backends: list[Backend], profile: str
) -> None:
    balancer = start(table(backends), body_limit="1m")
    for backend in backends:
        backend.behaviour.chunks, backend.behaviour.chunk_gap = 8, 0.1

    def break_all() -> None:
        for backend in backends:
            backend.behaviour.drop = True

    site = Site(balancer.port, {"/break": break_all, "/empty": lambda: balancer.set_peers([])})
    browser = subprocess.Popen(
        [
            str(CHROMIUM),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={profile}",
            f"http://localhost:{site.port}/",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        result = eventually(lambda: site.result, 40, 0.1)
    finally:
        browser.terminate()
        browser.wait(20)
        site.server.shutdown()
        site.server.server_close()
    assert "failure" not in result, result
    streamed = result["stream"]
    assert streamed["status"] == 200
    assert streamed["upstream"] in {backend.address for backend in backends}
    assert len(streamed["id"]) == 32
    assert "[DONE]" in streamed["text"]
    assert streamed["reads"] >= 6
    assert streamed["spread"] > 400, "milliseconds: the chunks came one by one"
    for name, status in (("missing", 404), ("large", 413), ("broken", 502), ("nobody", 503)):
        assert result[name]["status"] == status
        assert result[name]["json"]["error"]["code"] == status
