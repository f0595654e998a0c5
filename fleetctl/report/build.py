"""The whole report: sections in order, then every text masked. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from fleetctl.report import findings, mask, measured, operations, overview, service, stages, verified
from fleetctl.report.document import Report
from fleetctl.report.material import Material
from fleetctl.report.words import Words

LANGUAGES = ("zh", "en")


def build(material: Material, language: str, secrets: Iterable[str] = ()) -> Report:
    """`secrets`: values that must not stand in it, such as the key: masked in every text, as public addresses are."""
    words = Words(language)
    fleet = material.fleet
    n, used = len(material.instances), sum(len(one.devices) for one in material.instances)
    title = words("title", npus=used, n=n, model=fleet.inventory.model.name)
    release = material.release
    lead = (
        words("lead.fleet", fleet=fleet.name, when=material.when),
        words("lead.state", verdict=words(f"fleet.{material.status['verdict']}"), n=material.serving, all=n),
        words("lead.release", number=release.number, when=release.when) if release else words("lead.no_release"),
    )
    makers = (
        overview.goals,
        overview.environment,
        overview.picture,
        service.service,
        service.balancer,
        verified.verification,
        stages.stages,
        operations.operations,
        operations.calls,
        findings.problems,
        measured.measured,
        measured.speculation,
        service.units_section,
        findings.findings,
        findings.about,
    )
    report = Report(language, title, lead, tuple(maker(material, words) for maker in makers))
    versions = [version for known in material.software.values() for version in known.versions.values()]
    versions += [facts.driver for facts in material.facts.values() if facts.driver]
    return report.changed(mask.of(fleet, secrets, [one.run.header.url for one in material.runs], versions))
