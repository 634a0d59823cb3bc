"""A run on digits and an export, written at commit 075ebfc, remain readable."""

import shutil
import sys
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.manifest import accuracy_source, read_manifest

OLD_RUN_ZIP = Path(__file__).with_name("old_run.zip")


@pytest.fixture(scope="module")
def old_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old_files")
    shutil.unpack_archive(OLD_RUN_ZIP, folder)
    return folder


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def test_run_is_read(old_files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest = read_manifest(old_files / "run")
    assert manifest["format"] == 2
    assert accuracy_source(manifest) == "trained"
    assert run(["why", f"run={old_files / 'run'}", "id=front"]) == 0
    assert "805385a6b93a" in capsys.readouterr().out
    assert run(["compare", f"runs=[{old_files / 'run'}]", f"run.dir={tmp_path / 'out'}"]) == 0


def test_export_is_verified(old_files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(old_files / "export")]) == 0
    assert "All repeated checks passed." in capsys.readouterr().out


@pytest.mark.slow
def test_missing_networks_are_reported_and_trained_again_on_resume(
    old_files: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["export", f"run={old_files / 'run'}", f"dir={tmp_path / 'out'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert run(["resume", str(old_files / "run")]) == 0  # trains them again
