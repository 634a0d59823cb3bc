"""Families of installed packages and spaces of users, without changes of hwnas."""

import csv
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from hwnas.__main__ import run
from hwnas.core.errors import SpaceError
from hwnas.models import families, spaces
from hwnas.models.spaces import Option, SearchSpace
from tests.conftest import SHARED_WEIGHTS, space_yaml

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "experiments" / "own_family"
QUICK = ("train.epochs=1", *SHARED_WEIGHTS, "n_trials=6", "run.dir=run")
FAMILY = """
from hwnas.models.families.base import TrainingRecipe as Recipe

class Mine:
    recipe = Recipe("sgd", 0.1, 0.0)
    def check(self, space): ...
    def resolution(self, space, genotype): return 8
    def lower(self, space, genotype, task): return ()
    def build(self, space, genotype, task): ...
    def supernet(self, space, task): ...

mine = Mine()

class Half:
    def check(self, space): ...
    lower = resolution = check

class Needs:
    def __init__(self, what): ...
"""


def _install_family(
    folder: Path, *points: str, package: str = "mine", version: str = "1.0"
) -> None:
    """Write the files of an installed package with these entry points into a folder."""
    (folder / "mine_family.py").write_text(FAMILY)
    (folder / "broken_family.py").write_text("import there_is_no_such_package\n")
    info = folder / f"{package}-{version}.dist-info"
    info.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    (info / "METADATA").write_text(metadata)
    lines = "\n".join([f"[{families.GROUP}]", *points])
    (info / "entry_points.txt").write_text(f"{lines}\n")


@pytest.mark.parametrize("value", ["mine_family:Mine", "mine_family:mine"])
def test_family_is_found_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    _install_family(tmp_path, f"mine = {value}", version="1.2.3")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert type(families.get("mine")).__name__ == "Mine"
    assert type(families.get("mbconv")).__name__ == "BuiltInFamily"
    assert families.plugin_identity("mine") == ("mine", "1.2.3")
    assert families.plugin_identity("mbconv") == ()
    with pytest.raises(SpaceError, match=r"Unknown family 'nine'.*'mine'.*Allowed: .*mbconv, .*"):
        families.get("nine")


def test_packages_are_read_once_per_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each digest of a network needs them, hundreds of times in a search."""
    _install_family(tmp_path, "mine = mine_family:Mine")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert families.plugin_identity("mine")
    monkeypatch.setattr(families, "entry_points", None)
    assert families.plugin_identity("mine")
    assert families.plugin_identity("resnet") == ()


@pytest.mark.parametrize(
    ("point", "name", "message"),
    [
        (
            "mine = broken_family:Mine",
            "mine",
            "Entry point 'mine = broken_family:Mine' of package mine cannot be loaded: "
            "ModuleNotFoundError: No module named 'there_is_no_such_package'",
        ),
        ("mine = mine_family:Theirs", "mine", "cannot be loaded: AttributeError: "),
        ("mine = mine_family:Needs", "mine", "cannot be loaded: TypeError: "),
        ("mine = mine_family:Half", "mine", "is no family: it lacks recipe, build, supernet. "),
        ("mine = mine_family:FAMILY", "mine", "cannot be loaded: AttributeError"),
        (
            "mbconv = mine_family:Mine",
            "mbconv",
            "'mbconv' is a family of hwnas. Choose",
        ),
    ],
)
def test_invalid_entry_point_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str, name: str, message: str
) -> None:
    _install_family(tmp_path, point)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpaceError) as error:
        families.get(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_duplicate_family_names_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install_family(tmp_path, "mine = mine_family:Mine")
    _install_family(tmp_path, "mine = mine_family:mine", package="other")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SpaceError, match=r"Several families are named 'mine'.* of package other"):
        families.get("mine")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the installed example."""
    folder = tmp_path_factory.mktemp("own_family")
    shutil.copytree(EXAMPLE, folder / "source")  # keeps the checkout free of build files
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    arguments = ["--target", str(folder / "site"), str(folder / "source")]
    command = [sys.executable, "-m", "pip", "install", *options, *arguments]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "site"


@pytest.mark.slow
def test_example_passes_family_contract(installed: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(installed)])}
    process = subprocess.run(
        [*command, str(EXAMPLE / "test_plain.py")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stdout
    assert "passed" in process.stdout


@pytest.mark.slow
def test_search_with_example_family(
    installed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    arguments = ["search", "+target=npu", f"search_space={EXAMPLE / 'plain.yaml'}", *QUICK]
    assert run(arguments) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "Unknown family 'plain'. Allowed: mbconv" in line
    monkeypatch.syspath_prepend(str(installed))
    assert run(arguments) == 0
    assert (tmp_path / "run" / "front.csv").read_text().count("\n") > 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight_bits": 4}, ""),
        ({"stage0_conv0.weight_bits": 4}, ""),
        ({"stages.0.weight_bits": 4}, "Unknown name 'stages.0.weight_bits'.*: .*stage0_conv0"),
        ({"stages.1.blocks.0.weight_bits": 4}, "Unknown name 'stages.1.blocks.0.weight_bits'"),
        ({"exits.0.active": 1, "exits.0.at": 0}, "has exits, but .* 'plain' has no operator .*'st"),
    ],
)
def test_options_of_stages_require_matching_operators(
    installed: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Option], message: str
) -> None:
    """The operators of the example have other names."""
    monkeypatch.syspath_prepend(str(installed))
    plain = spaces.load_space(EXAMPLE / "plain.yaml")
    space = replace(plain, fixed={**plain.fixed, **options})
    if not message:
        families.family_of(space)
        return
    with pytest.raises(SpaceError, match=message) as error:
        families.family_of(space)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_custom_space_of_known_family_is_searched(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = space_yaml(tiny)
    raw["choices"]["stages.0.width"] = [5, 9]
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(raw))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])
    assert run(["search", "+target=npu", "search_space=mine.yaml", *QUICK]) == 0
    with (tmp_path / "run" / "front.csv").open(newline="") as file:
        assert {row["stages.0.width"] for row in csv.DictReader(file)} <= {"5", "9"}
