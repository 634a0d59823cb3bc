"""YAML and Python examples in the how-to guides are valid."""

import ast
import re
from pathlib import Path

import numpy as np
import pytest

import hwnas
from hwnas import tasks
from hwnas.fleet.fleet_file import read_fleet
from hwnas.fleet.service_file import read_service
from hwnas.hardware.backends.base import backend_of
from hwnas.models.families import family_of
from hwnas.models.spaces.files import load_space
from hwnas.training.data.arrays import read_arrays
from hwnas.workflows.config.compose import compose

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def _python(page: str, first: str) -> str:
    """Return the Python block of a page that begins with a line."""
    text = (HOW_TO / page).read_text()
    blocks: list[str] = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    return next(block for block in blocks if first in block)


def _write_examples(page: str, folder: Path) -> None:
    """Write the blocks of a page that begin with the name of a file."""
    text = (HOW_TO / page).read_text()
    for name, content in re.findall(
        r"^```\w+\n[#;] (\S+\.(?:yaml|ini))\n(.*?)^```", text, re.M | re.S
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_search_space_example_loads(tmp_path: Path) -> None:
    _write_examples("own-search-space.md", tmp_path)
    space = load_space(tmp_path / "my.yaml")
    family_of(space)
    assert space.options("resolution") == (32, 48, 64)


def test_target_example_composes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_examples("own-board.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    config = compose("search", ["--config-dir", "mydir", "+target=myboard"])
    assert config.cost == "vela"
    backend = backend_of(config.target)  # Vela compiles a network with that file
    assert backend.user_file() == Path("mydir", "my.ini")


def test_service_and_fleet_examples_load(tmp_path: Path) -> None:
    _write_examples("fleet/plan.md", tmp_path)
    service = read_service(tmp_path / "service.yaml")
    assert read_fleet(tmp_path / "fleet.yaml", service).devices["next"].sketch


def test_array_file_example_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"images": np.zeros((4, 8, 8), np.uint8), "labels": np.array([0, 1, 0, 1])}
    data |= {f"test_{name}": values for name, values in data.items()}
    exec(_python("own-images.md", "np.savez("), data)
    arrays = read_arrays(Path("mine.npz"), tasks.get("classification"))
    assert {*arrays.images} == {"train", "test"}


API = re.findall(
    r"^```python\n(.*?)^```",
    (HOW_TO.parent / "reference" / "python" / "index.md").read_text(),
    re.M | re.S,
)


@pytest.mark.parametrize("code", API)
def test_api_example_calls_existing_functions(code: str) -> None:
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    called = [ast.unparse(call.func) for call in calls]
    names = [name.partition(".")[2] for name in called if name.startswith("hwnas.")]
    assert names
    assert all(callable(getattr(hwnas, name)) for name in names)
