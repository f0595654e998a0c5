"""docs/inventory.md is generated, complete and current."""

from __future__ import annotations

from fleetctl.fleet.lint import RULES
from fleetctl.fleet.reference import _sections, document
from fleetctl.fleet.schema import Inventory
from tests.unit.fleet.build import SHIPPED


def test_every_key_of_every_section_has_a_description() -> None:
    silent = [
        f"{path}.{name}"
        for path, model in _sections("", Inventory)
        for name, field in model.model_fields.items()
        if not field.description
    ]
    assert silent == []


def test_every_key_and_every_rule_is_on_the_page() -> None:
    page = document()
    for _, model in _sections("", Inventory):
        for name in model.model_fields:
            assert f"`{name}`" in page
    for rule in RULES.values():
        assert f"| `{rule.id}` | {rule.severity.value} | {rule.reason} |" in page


def test_the_page_in_docs_is_current() -> None:
    page = SHIPPED.parent / "docs" / "inventory.md"
    assert page.read_text(encoding="utf-8") == document(), "run: python -m fleetctl.fleet.reference > docs/inventory.md"
