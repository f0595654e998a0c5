"""What is asked, of whom, in which order. Pure: the requests of a run as values.

Every request only reads or computes: what would change an engine (pause, reset) is asked with GET, which it refuses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.instance import Instance
from fleetctl.observe import prompts
from fleetctl.verify.asks import Ask, Key
from fleetctl.verify.check import Where

CAPS = (1, 8, 33)
"""Values of max_tokens: with speculation several tokens come at once, and the last ones have to be thrown away."""

TEMPERATURES = ("t0", "t0-again", "t0.5", "t1")
THINKING_TOKENS = 1024
STREAM_TOKENS = 96
SESSION_REPEATS = 10
SESSIONS = 4
CHAT = "/v1/chat/completions"

# GET, so that a route that is open after all changes nothing; an engine answers 405 to those that want a POST.
UNGUARDED = (
    "/metrics",
    "/version",
    "/load",
    "/ping",
    "/server_info",
    "/is_paused",
    "/pause",
    "/resume",
    "/sleep",
    "/reset_prefix_cache",
    "/collective_rpc",
    "/invocations",
    "/tokenize",
    "/detokenize",
    "/docs",
    "/openapi.json",
    "/v1/../metrics",
    "/v1/%2e%2e/invocations",
)
ORIGIN = "https://verify.fleetctl.example"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


@dataclass(frozen=True)
class Door:
    """One way to a backend: where it stands, its address, and the headers that choose the backend."""

    where: Where
    url: str
    headers: tuple[tuple[str, str], ...] = ()

    def ask(self, who: str, kind: str, path: str, **fields: Any) -> Ask:
        headers = (*self.headers, *fields.pop("headers", ()))
        return Ask(self.where, who, kind, f"{self.url}{path}", headers=headers, **fields)

    def chat(self, who: str, kind: str, body: Mapping[str, Any], seconds: int = 30, **fields: Any) -> Ask:
        return self.ask(who, kind, CHAT, body=body, seconds=seconds, **fields)


def direct(instance: Instance) -> Door:
    return Door(Where.DIRECT, f"http://{instance.address}")


def chat(model: str, text: str, max_tokens: int, **fields: Any) -> dict[str, Any]:
    """A completion that does not think and does not sample, unless `fields` say so."""
    base = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    }
    return {**base, **fields}


def auth(door: Door, who: str, model: str) -> Iterator[Ask]:
    """With the key, without one, with a wrong one; listing and computing."""
    tiny = chat(model, "1+1=", 1)
    yield door.ask(who, "models", "/v1/models")
    for key in (Key.NONE, Key.WRONG):
        yield door.ask(who, f"models-{key.value}", "/v1/models", key=key)
        yield door.chat(who, f"chat-{key.value}", tiny, seconds=10, key=key)


def gate(instance: Instance, model: str) -> Iterator[Ask]:
    """The first round of an instance: one that fails here is not asked anything else."""
    door = direct(instance)
    yield door.ask(instance.id, "health", "/health", key=Key.NONE)
    yield from auth(door, instance.id, model)
    yield door.ask(instance.id, "version", "/version", key=Key.NONE)
    yield metrics(instance, "metrics-before")
    yield door.chat(instance.id, "completion", chat(model, "1+1=", 2), seconds=20)


def metrics(instance: Instance, kind: str) -> Ask:
    """With the key: a later vLLM may ask for it there too."""
    return direct(instance).ask(instance.id, kind, "/metrics")


def behaviour(door: Door, who: str, fleet: Fleet, seed: int) -> Iterator[Ask]:
    """What an instance has to do with requests, whichever door they come through."""
    model, engine = fleet.inventory.model.name, fleet.engine
    trained = not fleet.inventory.model.random_weights
    for prompt in prompts.PROMPTS if trained else ():
        yield door.chat(who, f"prompt:{prompt.id}", prompts.body(prompt, model))
    sea = "Write one sentence about the sea."
    yield door.chat(who, "t0", chat(model, sea, 24))
    yield door.chat(who, "t0-again", chat(model, sea, 24))
    yield door.chat(who, "t0.5", chat(model, sea, 24, temperature=0.5, seed=seed))
    yield door.chat(who, "t1", chat(model, sea, 24, temperature=1.0, seed=seed + 1))
    for cap in CAPS:
        yield door.chat(who, f"cap:{cap}", chat(model, "Count from 1 to 500.", cap, ignore_eos=True))
    if engine.get("reasoning-parser"):
        thinking = {"enable_thinking": True}
        yield door.chat(
            who, "reasoning", chat(model, "What is 6 + 7?", THINKING_TOKENS, chat_template_kwargs=thinking), 45
        )
    if trained and engine.get("enable-auto-tool-choice"):
        text = "What is the weather in Paris now? Use the tool."
        yield door.chat(who, "tool", chat(model, text, 256, tools=[WEATHER], tool_choice="auto"))


def stream(door: Door, who: str, model: str) -> Ask:
    options = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    return door.chat(who, "stream", chat(model, "Count from 1 to 500.", STREAM_TOKENS, **options))


def front(door: Door, state_url: str | None, fleet: Fleet) -> Iterator[Ask]:
    """What belongs to the balancer itself: its own word, what it keeps shut, and what a browser needs."""
    balancer = fleet.inventory.balancer
    yield door.ask("balancer", "health", "/health", key=Key.NONE)
    if state_url is not None:
        yield Ask(door.where, "balancer", "state", state_url, Key.NONE)
    for path in UNGUARDED:
        yield door.ask("balancer", f"open:{path}", path)
    origin = (("Origin", origin_of(fleet)),)
    yield door.ask("balancer", "cors:answer", "/v1/models", headers=origin)
    yield door.ask("balancer", "cors:401", "/v1/models", headers=origin, key=Key.NONE)
    yield door.ask("balancer", "cors:404", "/not-there", headers=origin)
    wanted = f"authorization, content-type, {balancer.session_headers[0].lower()}"
    preflight = (
        *origin,
        ("Access-Control-Request-Method", "POST"),
        ("Access-Control-Request-Headers", wanted),
    )
    yield door.ask("balancer", "cors:preflight", CHAT, headers=preflight, key=Key.NONE, method="OPTIONS")


def origin_of(fleet: Fleet) -> str:
    first = fleet.inventory.balancer.cors_origins[0]
    return ORIGIN if first == "*" else first


def route(door: Door, fleet: Fleet, sessions: Sequence[str], kind: str) -> list[Ask]:
    """One cheap request a session: who answers is all that is wanted."""
    header = fleet.inventory.balancer.session_headers[0]
    return [door.ask(name, kind, "/v1/models", headers=((header, name),)) for name in sessions]


def sticky(door: Door, fleet: Fleet, session: str, kind: str) -> list[Ask]:
    """The same session ten times, each a real completion."""
    body = chat(fleet.inventory.model.name, "1+1=", 1)
    headers = ((fleet.inventory.balancer.session_headers[0], session),)
    return [door.chat(f"{session}#{n}", kind, body, headers=headers, seconds=20) for n in range(1, SESSION_REPEATS + 1)]
