"""Pages, pictures and versions of the documentation."""

import re
from pathlib import Path

import pytest
import yaml

import hwnas

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_exist_and_have_alternative_text(page: Path) -> None:
    for text, path in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text()):
        assert len(text) > 20, f"{page}: describe {path} in words"
        assert (page.parent / path).exists(), path


def test_versions_agree() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == hwnas.__version__
    assert f"## {hwnas.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_referenced_experiments_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"`(experiments/\w+)`", page.read_text()):
            assert (ROOT / name).is_dir(), f"{page}: {name}"
