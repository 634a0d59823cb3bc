"""Generated pages of the documentation are up to date."""

import json
import runpy
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hwnas.core import package
from hwnas.core.options import iter_options, option_sentences
from hwnas.workflows.config import SCHEMAS

ROOT = Path(__file__).parents[2]
GENERATED: dict[Path, str] = dict(runpy.run_path(str(ROOT / "docs" / "generate"))["pages"]())
EXAMPLES = {
    "search-space": [*(ROOT / "search_spaces").rglob("*.yaml")],
    "target": [*(ROOT / "conf" / "target").glob("*.yaml")],
    "service": [ROOT / "experiments" / "fleet" / "service.yaml"],
    "fleet": [ROOT / "experiments" / "fleet" / "fleet.yaml"],
}


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: path.name)
def test_generated_page_is_up_to_date(path: Path) -> None:
    assert path.read_text() == GENERATED[path], "run: python docs/generate"


def test_no_generated_page_is_obsolete() -> None:
    pages = {*(ROOT / "docs" / "reference" / "cli").iterdir()}
    assert pages <= {*GENERATED}, "run: python docs/generate"


@pytest.mark.parametrize("verb", SCHEMAS)
def test_every_option_has_description(verb: str) -> None:
    sentences = option_sentences(SCHEMAS[verb])
    options = iter_options(SCHEMAS[verb])
    missing = [option.name for option in options if not sentences[option.name]]
    assert missing == [], f"add a comment '#:' to {missing} in the schema"


@pytest.mark.parametrize("kind", EXAMPLES)
def test_shipped_files_match_their_schema(kind: str) -> None:
    schema = _schema(kind)
    for path in EXAMPLES[kind]:
        jsonschema.validate(yaml.safe_load(path.read_text()), schema)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("search-space", {"family": "mbconv", "choices": {"resolution": []}}),
        ("target", {"defaults": ["npu"], "clock_mhz": 0}),
        ("target", {"name": "mine"}),
        ("service", {"fronts": ["a"], "classes": {"c": {"p99_ms": 0, "regions": ["r"]}}}),
        ("fleet", {"devices": {"d": {"region": "r", "buy": "borrowed", "quota": 1}}}),
    ],
)
def test_schema_rejects_invalid_content(kind: str, content: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, _schema(kind))


def _schema(kind: str) -> dict[str, Any]:
    text = GENERATED[ROOT / "docs" / "reference" / "schema" / f"{kind}.json"]
    schema: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


def test_every_target_budget_and_dataset_is_documented() -> None:
    for group, page in (("target", "targets"), ("budget", "budgets"), ("dataset", "datasets")):
        text = GENERATED[ROOT / "docs" / "reference" / f"{page}.md"]
        for name in package.entries(package.ROOT / "conf" / group):
            assert f"`{name}`" in text
