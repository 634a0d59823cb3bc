"""YAML files in the how-to guides are read by the commands that they are for."""

import re
from pathlib import Path

import ethosu.vela
import pytest

from hwnas.fleet.fleet_file import read_fleet
from hwnas.fleet.service_file import read_service
from hwnas.hardware.backends.base import backend_of
from hwnas.models.families import family_of
from hwnas.models.spaces.files import load_space
from hwnas.workflows.config.compose import compose

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"


def _write_examples(page: str, folder: Path) -> None:
    """Write the blocks of a page that begin with the name of a file."""
    text = (HOW_TO / page).read_text()
    for name, content in re.findall(r"^```yaml\n# (\S+\.yaml)\n(.*?)^```", text, re.M | re.S):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_search_space(tmp_path: Path) -> None:
    _write_examples("own-search-space.md", tmp_path)
    space = load_space(tmp_path / "my.yaml")
    family_of(space)
    assert space.options("resolution") == (32, 48, 64)


def test_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_examples("own-board.md", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert ethosu.vela.__file__ is not None
    shipped = Path(ethosu.vela.__file__).parents[1] / "config_files" / "Arm" / "vela.ini"
    ini = shipped.read_text().replace("Ethos_U55_High_End_Embedded", "My_Board")
    Path("mydir", "vela.ini").write_text(ini.replace("core_clock=500e6", "core_clock=200e6"))
    config = compose("search", ["--config-dir", "mydir", "+target=myboard"])
    assert config.cost == "vela"
    backend = backend_of(config.target)  # Vela compiles a network with that file
    assert backend.user_file() == Path("mydir", "vela.ini")


def test_service_and_fleet(tmp_path: Path) -> None:
    _write_examples("fleet/plan.md", tmp_path)
    service = read_service(tmp_path / "service.yaml")
    assert read_fleet(tmp_path / "fleet.yaml", service).devices["next"].sketch
