"""Lints of a fleet: what is allowed to be written, and known to go wrong.

Pure; `fleetctl check` shows every finding, and an error stops a rollout. The rules are in `rules/`, one file for
each part of the inventory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fleetctl.fleet.fleet import Fleet
from fleetctl.fleet.rules import balancer, engine, environment, image, machine, model
from fleetctl.fleet.rules.rule import RULES, Complaint, Rule, Severity
from fleetctl.fleet.rules.weights import WEIGHT_RULES, Weights

__all__ = [
    "CONFIG_RULES",
    "RULES",
    "WEIGHT_RULES",
    "Finding",
    "Rule",
    "Severity",
    "lint",
    "lint_config",
    "lint_weights",
]

# Importing these files is what puts their rules on the list.
PARTS = (balancer, engine, environment, image, machine)
CONFIG_RULES = {
    "max-model-len-vs-config": Severity.ERROR,
    "quantization-vs-config": Severity.ERROR,
    "media-domains-open": Severity.WARNING,
    "config-missing": Severity.ERROR,
    "config-unreadable": Severity.ERROR,
}


@dataclass(frozen=True)
class Finding:
    """One rule that a fleet breaks; `where` is the key of the inventory it is about."""

    rule: str
    severity: Severity
    where: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.where}: {self.message} [{self.rule}]\n  fix: {self.fix}"


def lint(fleet: Fleet) -> list[Finding]:
    """What the inventory, with the overrides of the release, says that is known to go wrong; errors first."""
    found = (_finding(rule.id, rule.severity, complaint) for rule in RULES.values() for complaint in rule.check(fleet))
    return sorted(found, key=_order)


def lint_config(fleet: Fleet, config_json: str | None, described: bool | None = None) -> list[Finding]:
    """What the model's own config.json contradicts.

    `config_json` is the text of the file, None where there is none; `described` says whether
    quant_model_description.json is beside it, None where that is not known.
    """
    if config_json is None:
        # Models of Mistral's own format have a params.json.
        if fleet.engine.get("config-format") == "mistral":
            return []
        complaint = Complaint("model.path", "there is no config.json", "copy the model again")
        return [_finding("config-missing", Severity.ERROR, complaint)]
    config = model.read(config_json)
    if config is None:
        complaint = Complaint("model.path", "config.json there is not a JSON object", "copy the model again")
        return [_finding("config-unreadable", Severity.ERROR, complaint)]
    return sorted(_against(fleet, config, described), key=_order)


def lint_weights(fleet: Fleet, weights: Weights) -> list[Finding]:
    """What is wrong with the weights on the source, from the headers of their files."""
    found = (
        _finding(rule.id, rule.severity, complaint)
        for rule in WEIGHT_RULES.values()
        for complaint in rule.check(fleet, weights)
    )
    return sorted(found, key=_order)


def _against(fleet: Fleet, config: dict[str, object], described: bool | None) -> Iterator[Finding]:
    checks: tuple[tuple[str, Iterable[Complaint]], ...] = (
        ("max-model-len-vs-config", model.max_model_len_vs_config(fleet, config)),
        ("quantization-vs-config", model.quantization_vs_config(fleet, config, described)),
        ("media-domains-open", model.media_domains_open(fleet, config)),
    )
    for rule, complaints in checks:
        yield from (_finding(rule, CONFIG_RULES[rule], complaint) for complaint in complaints)


def _finding(rule: str, severity: Severity, complaint: Complaint) -> Finding:
    return Finding(rule, severity, complaint.where, complaint.message, complaint.fix)


def _order(finding: Finding) -> tuple[int, str, str]:
    return list(Severity).index(finding.severity), finding.where, finding.rule
