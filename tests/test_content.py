"""The wheel contains all content and works in any folder."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from hwnas.core import package
from tests.conftest import SHARED_WEIGHTS

ROOT = Path(__file__).parents[1]


def test_checkout_provides_content() -> None:
    assert (package.ROOT / "conf" / "search.yaml").is_file()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_contains_only_package_and_content(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("conf", "search_spaces", "latency_tables"):
        for path in (ROOT / folder).rglob("*.*"):
            assert f"hwnas/_content/{path.relative_to(ROOT)}" in names
    for path in (ROOT / "hwnas" / "analysis" / "page" / "assets").iterdir():
        assert f"hwnas/analysis/page/assets/{path.name}" in names
    top_folders = {name.split("/")[0] for name in names}
    assert top_folders == {"hwnas", "hwnas-0.1.0.dist-info"}


@pytest.mark.slow
def test_wheel_runs_in_other_folder(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # The dependencies are those of the environment that runs the tests.
    site = next(path for path in sys.path if path.endswith("site-packages"))
    (venv_site,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (venv_site / "dependencies.pth").write_text(site + "\n")
    work = tmp_path / "work"
    work.mkdir()
    command = [str(tmp_path / "venv" / "bin" / "hwnas"), "search", "+target=npu"]
    quick = [
        "search_space=tiny",
        "train.epochs=1",
        *SHARED_WEIGHTS,
        "n_trials=10",
    ]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    completed = subprocess.run(
        [*command, *quick], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stderr
    assert len(list(work.glob("runs/search/*/front.csv"))) == 1
    script = "import hwnas.core.package; print(hwnas.core.package.ROOT)"
    printed = subprocess.run(
        [str(python), "-c", script], cwd=work, env=environment, capture_output=True, text=True,
        check=True,
    ).stdout  # fmt: skip
    assert Path(printed.strip()) == venv_site / "hwnas" / "_content"
