"""No key and no public address gets into a report, in whatever form it was written; addresses of the cluster stay."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest

from fleetctl.fleet.fleet import Fleet
from fleetctl.plan.history import Command, OnMachine
from fleetctl.report import html, markdown
from fleetctl.report.build import build
from fleetctl.report.mask import ADDRESS, HOST, SECRET, Masker, of
from fleetctl.report.material import Software
from tests.unit.report.world import SOFTWARE, WHEN, material

SENTINEL = 'planted<&"key>0123456789'
PUBLIC = "http://models.example.com:2219"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at 8.8.8.8:2219", f"at {ADDRESS}:2219"),
        ("10.255.254.69:8000 192.168.1.1 172.16.0.9 100.64.3.4 127.0.0.1 0.0.0.0 0.0.0.1", None),
        ("2001:4860:4860::8888", ADDRESS),
        ("[2001:4860:4860::8888]:80", f"[{ADDRESS}]:80"),
        ("fd00::1 and ::1", None),
        ("26.0.rc1 6.8.0-124", None),
        ("2026-08-29T20:49:00Z", None),
        ("01:02:03", None),
        ("key sk-abcdefghij gone", f"key {SECRET} gone"),
        ("Authorization: Bearer abcdef123456", f"Authorization: Bearer {SECRET}"),
        ('-H "Authorization: Bearer $FLEET_API_KEY"', None),
        ("MY_TOKEN=abcdefgh", f"MY_TOKEN={SECRET}"),
        ("DB_PASSWORD: hunter22", f"DB_PASSWORD: {SECRET}"),
        ('VLLM_API_KEY=$(cat "$0")', None),
        ("max_tokens: 4096 tokens=1234", None),
        ("http://user:pass@10.0.0.1/", f"http://{SECRET}@10.0.0.1/"),
    ],
)
def test_addresses_and_shapes_of_keys(text: str, shown: str | None) -> None:
    assert Masker()(text) == (text if shown is None else shown)


def test_a_version_that_a_machine_reported_is_no_address() -> None:
    masker = Masker(versions=["openresty/1.31.1.1", "24.1.0.2", "25.0.rc1"])
    assert masker("openresty/1.31.1.1, CANN 24.1.0.2, 1.31.1.2") == f"openresty/1.31.1.1, CANN 24.1.0.2, {ADDRESS}"


def test_a_documentation_address_is_masked_like_any_public_one() -> None:
    assert Masker()("203.0.113.9") == ADDRESS


def test_the_public_host_is_masked_as_a_word_and_not_within_others() -> None:
    masker = Masker(hosts=["models.example.com"])
    assert masker("https://models.example.com:443/v1") == f"https://{HOST}:443/v1"
    assert masker("https://Models.Example.com/") == f"https://{HOST}/"
    assert masker("notmodels.example.community") == "notmodels.example.community"


def test_the_host_that_was_measured_is_masked_too_and_the_machines_own_names_are_not(fleet: Fleet) -> None:
    """`bench --url` may name another way in than balancer.public_url."""
    urls = ["https://lb.example.org:443", "http://10.255.254.69:2219", "http://localhost:1", "http://[half"]
    masker = of(fleet, [], urls)
    assert masker("at https://lb.example.org:443 and 10.255.254.69 and localhost") == (
        f"at https://{HOST}:443 and 10.255.254.69 and localhost"
    )
    first = fleet.machines[69].model_copy(update={"address": "node69.cluster"})
    named = Fleet(
        fleet.inventory.model_copy(update={"machines": [first, *list(fleet.machines.values())[1:]]}), fleet.path
    )
    assert of(named, [], ["http://node69.cluster:2219"])("node69.cluster") == "node69.cluster"


def test_what_a_run_was_measured_through_is_nowhere_in_a_report(fleet: Fleet) -> None:
    one = material(fleet)
    run = one.runs[0].run
    header = replace(run.header, url="https://lb.example.org:443")
    shown = replace(one, runs=(replace(one.runs[0], run=replace(run, header=header)),))
    assert "lb.example.org" not in html.render(build(shown, "en"))


def test_a_planted_key_is_nowhere_in_either_language_or_form(fleet: Fleet) -> None:
    """In a version, an interface, an error, a user's name, a reason, a parameter: wherever a machine could say it."""
    public = fleet.inventory.balancer.model_copy(update={"public_url": PUBLIC})
    settings = fleet.inventory.instances.model_copy(update={"env": {"EXTRA": SENTINEL}})
    exposed = replace(fleet, inventory=fleet.inventory.model_copy(update={"balancer": public, "instances": settings}))
    wrong = Command("x", WHEN, f"me@{SENTINEL}", f"stop 67/0 --reason {SENTINEL}", outcome="failed")
    wrong.machines[67] = OnMachine(1, 0, "failed", "67/0 stop", f"it said {SENTINEL} to 93.184.216.34")
    one = material(exposed)
    broken = replace(one.checks[0], seen=f"0 of 4; 67: {SENTINEL}", problems=(SENTINEL,))
    told = Software({**SOFTWARE.versions, "os": SENTINEL, "docker": f"29 {SENTINEL}"}, (("eth9", "93.184.216.34/24"),))
    planted = replace(
        one, history=(*one.history, wrong), checks=(broken, *one.checks[1:]), software={69: told}, problems=(SENTINEL,)
    )
    for language in ("zh", "en"):
        made = build(planted, language, [SENTINEL])
        page = html.render(made)
        text, figures = markdown.render(made, "r")
        for printed in (page, text, *figures.values()):
            for form in (
                "planted",
                base64.b64encode(SENTINEL.encode()).decode(),
                "93.184.216.34",
                "models.example.com",
            ):
                assert form not in printed
        assert page.count(SECRET) > 5
        assert HOST in text
