"""How a search ends where something is missing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hwnas.api import ending
from hwnas.api.front import Front
from hwnas.results import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def _front(folder: RunFolder, failed: dict[str, str]) -> Front:
    context: Any = SimpleNamespace(target="npu")
    return Front(context, folder, [], [], None, failed)


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ({}, "None of the networks that fit its budget was finished"),
        ({"abc": "no answer."}, "None of 1 networks that may be on the front could be verified, "),
    ],
)
def test_a_target_of_which_none_is_verified_says_why(
    folder: RunFolder, failed: dict[str, str], words: str
) -> None:
    line = ending._none_verified(_front(folder, failed), folder, 2)
    assert line.startswith(f"npu: {words}")
    assert line.endswith(f"search run.resume={folder.path}")
