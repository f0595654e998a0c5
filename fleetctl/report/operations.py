"""What a person types: looking, logs, restarts, and calls from outside and inside. Pure."""

from __future__ import annotations

import json

from fleetctl.report.document import Code, Section, Text
from fleetctl.report.material import Material
from fleetctl.report.words import Words

SHELL = "sh"
KEY = "$FLEET_API_KEY"
SESSION = "your-user-session-id"


def operations(material: Material, words: Words) -> Section:
    one = material.instances[-1]
    settings = material.fleet.inventory.balancer
    look = [
        (words("do.status"), "fleetctl status"),
        (words("do.verify"), "fleetctl verify"),
        (words("do.history"), "fleetctl history"),
        (words("do.route"), f"fleetctl route {SESSION}"),
        (words("do.status_here"), f"systemctl status {one.name}.service {settings.unit}.service"),
    ]
    logs = [
        (words("do.log_follow"), f"fleetctl logs {one.id} -f"),
        (words("do.log_access"), "fleetctl logs balancer --access"),
        (words("do.log_error"), "fleetctl logs balancer --error"),
        (words("do.log_hour"), f"fleetctl logs {one.id} --since 1h"),
    ]
    change = [
        (words("do.restart"), f"fleetctl restart {one.id}"),
        (words("do.restart_machine"), f"fleetctl restart {one.machine}"),
        (words("do.stop"), f"fleetctl stop {one.id} --reason 'why'"),
        (words("do.start"), f"fleetctl start {one.id}"),
        (words("do.drain"), f"fleetctl drain {one.id}; fleetctl undrain {one.id}"),
        (words("do.restart_balancer"), "fleetctl balancer reload"),
        (words("do.rollout"), "fleetctl rollout --dry-run; fleetctl rollout"),
        (words("do.rollback"), "fleetctl rollback"),
    ]
    parts = tuple(
        Section(id, words(f"section.{id}"), (Code("\n".join(f"# {why}\n{line}" for why, line in lines), SHELL),))
        for id, lines in (("do-status", look), ("do-logs", logs), ("do-restart", change))
    )
    return Section("operations", words("section.operations"), (Text(words("operations.lead")),), parts)


def calls(material: Material, words: Words) -> Section:
    fleet, settings = material.fleet, material.fleet.inventory.balancer
    address = fleet.machines[settings.machine].address
    host = f"[{address}]" if ":" in address else address
    inside = f"{'https' if settings.tls else 'http'}://{host}:{settings.listen}"
    public = settings.public_url.rstrip("/") if settings.public_url else None
    outside = (
        (Text(words("calls.outside")), Code(_curl(material, words, public), SHELL))
        if public
        else (Text(words("calls.no_public")),)
    )
    python = (
        "import os\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url="{public or inside}/v1", api_key=os.environ["FLEET_API_KEY"])\n'
        f'answer = client.chat.completions.create(\n    model="{fleet.inventory.model.name}",\n'
        f'    messages=[{{"role": "user", "content": "{words("calls.hello")}"}}],\n    max_tokens=512,\n'
        f'    extra_headers={{"{settings.session_headers[0]}": "{SESSION}"}},\n)\n'
        "print(answer.choices[0].message.content)"
    )
    parts = (
        Section("call-outside", words("section.call-outside"), outside),
        Section("call-inside", words("section.call-inside"), (Code(_curl(material, words, inside), SHELL),)),
        Section("call-python", words("section.call-python"), (Code(python, "python"),)),
    )
    return Section("calls", words("section.calls"), (Text(words("calls.lead")),), parts)


def _curl(material: Material, words: Words, url: str) -> str:
    body = {
        "model": material.fleet.inventory.model.name,
        "messages": [{"role": "user", "content": words("calls.hello")}],
        "max_tokens": 512,
    }
    header = material.fleet.inventory.balancer.session_headers[0]
    return (
        f"curl {url}/v1/chat/completions \\\n  -H 'Content-Type: application/json' \\\n"
        f"  -H \"Authorization: Bearer {KEY}\" \\\n  -H '{header}: {SESSION}' \\\n"
        f"  -d '{json.dumps(body, ensure_ascii=False)}'"
    )
