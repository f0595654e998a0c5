"""What must not stand in a report: keys and public addresses. Applied to every text of the document, always. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterable
from html import escape
from urllib.parse import quote, urlsplit

from fleetctl.fleet.fleet import Fleet

SECRET = "***"
ADDRESS = "x.x.x.x"
HOST = "public.host.masked"
# Shapes of keys that somebody pasted into a reason, an error or a flag.
KEYS = re.compile(r"\b(?:sk|hf|ghp|glpat|xox[abp])[-_][A-Za-z0-9_-]{6,}")
BEARER = re.compile(r"(?i)\b(bearer\s+)(?!\$|\\\$)([^\s\"']{8,})")
WORDS = r"(?:API[-_]?KEY|TOKEN(?!S)|SECRET|PASSWORD|PASSWD|CREDENTIALS?)"
ASSIGNED = re.compile(rf"(?i)\b([A-Za-z0-9_-]*{WORDS}[A-Za-z0-9_]*\s?[=:]\s?)(?!\$|os\.)([^\s\"'$]{{4,}})")
URL_LOGIN = re.compile(r"(://)[^\s/@]+:[^\s/@]+@")
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")


class Masker:
    """`secrets`: values that are replaced wherever they stand, in any form; `hosts`: public names; `versions`: what the
    machines run, where four numbers (openresty/1.31.1.1) are no address.

    Addresses of private, link-local and loopback networks (RFC 1918, 4193, 6598) stay: the report is about them.
    """

    def __init__(self, secrets: Iterable[str] = (), hosts: Iterable[str] = (), versions: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if secret for form in _forms(secret)}
        self._secrets = sorted(forms, key=len, reverse=True)
        self._hosts = [re.compile(rf"(?i)(?<![\w.-]){re.escape(host)}(?![\w-])") for host in hosts if host]
        self._versions = {found for text in versions for found in IPV4.findall(text)}

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, SECRET)
        text = KEYS.sub(SECRET, text)
        text = BEARER.sub(rf"\1{SECRET}", text)
        text = ASSIGNED.sub(rf"\1{SECRET}", text)
        text = URL_LOGIN.sub(rf"\1{SECRET}@", text)
        for host in self._hosts:
            text = host.sub(HOST, text)
        return IPV6.sub(_address, IPV4.sub(self._four_numbers, text))

    def _four_numbers(self, match: re.Match[str]) -> str:
        return match[0] if match[0] in self._versions else _address(match)


def of(fleet: Fleet, secrets: Iterable[str], urls: Iterable[str] = (), versions: Iterable[str] = ()) -> Masker:
    """For a fleet: the host of its public_url is masked too, and those of `urls` (ways in that were measured), when
    they are names and not those of its machines."""
    own = {"localhost", *(machine.address for machine in fleet.machines.values())}
    hosts = {_host(url) for url in (fleet.inventory.balancer.public_url, *urls) if url}
    return Masker(secrets, sorted(host for host in hosts - own if host and not _is_address(host)), versions)


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _forms(secret: str) -> set[str]:
    """As written, in JSON, in HTML, in a URL."""
    return {secret, json.dumps(secret)[1:-1], escape(secret), escape(secret, quote=False), quote(secret, safe="")}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _address(match: re.Match[str]) -> str:
    try:
        found = ipaddress.ip_address(match[0])
    except ValueError:
        return match[0]
    shared = isinstance(found, ipaddress.IPv4Address) and found in ipaddress.ip_network("100.64.0.0/10")
    local = any(found in network for network in _LOCAL if network.version == found.version)
    if local or shared or found.is_loopback or found.is_link_local or found.is_unspecified:
        return match[0]
    return ADDRESS


_LOCAL = tuple(
    ipaddress.ip_network(text) for text in ("0.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
