"""Rules about the balancer's section."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from urllib.parse import urlsplit

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules.rule import Complaint, Severity, rule

LONGEST_CONNECT = 5.0
SHORTEST_READ = 60.0
# The key guards these; everything else an instance serves is open (V:docs/usage/security.md).
GUARDED = ("/v1/", "/v2/", "/inference/")


@rule("connect-timeout-long", "0.9", Severity.WARNING)
def connect_timeout_long(fleet: Fleet) -> Iterator[Complaint]:
    """A powered-off machine never answers: the user waits this long before another backend is tried."""
    given = fleet.inventory.balancer.connect_timeout
    if given > LONGEST_CONNECT:
        message = f"users of a dead machine wait {given:g} s before anything happens"
        yield Complaint("balancer.connect_timeout", message, "connect_timeout: 2")


@rule("read-timeout-short", "0.9", Severity.WARNING)
def read_timeout_short(fleet: Fleet) -> Iterator[Complaint]:
    """An instance may be silent for minutes before the first token of a long prompt."""
    given = fleet.inventory.balancer.read_timeout
    if given < SHORTEST_READ:
        yield Complaint("balancer.read_timeout", f"{given:g} s cuts long prompts", "read_timeout: 3600")


@rule("unguarded-route", "0.4", Severity.ERROR)
def unguarded_route(fleet: Fleet) -> Iterator[Complaint]:
    """vLLM checks the key on /v1, /v2 and /inference only: any other path is inference for everyone."""
    for path in fleet.inventory.balancer.paths:
        if not f"{path.rstrip('/')}/".startswith(GUARDED):
            yield Complaint("balancer.paths", f"vLLM does not ask for the key on {path}", "paths: [/v1/]")


@rule("public-plain-http", "0.28", Severity.WARNING)
def public_plain_http(fleet: Fleet) -> Iterator[Complaint]:
    """On a public address over plain HTTP the key travels in clear text."""
    url = fleet.inventory.balancer.public_url
    if url is not None and urlsplit(url).scheme == "http" and _public(urlsplit(url).hostname or ""):
        message = f"the key travels in clear text to {url}"
        yield Complaint("balancer.public_url", message, "give balancer.tls, or put HTTPS in front")


def _public(host: str) -> bool:
    """Whether a host is, or may be, outside the private networks."""
    try:
        return ipaddress.ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith((".local", ".internal", ".lan", ".localhost"))
