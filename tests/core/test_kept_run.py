"""A run on digits and an export of commit 075ebfc remain readable."""

import shutil
import sys
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core.manifest import accuracy_source, read_manifest

KEPT = Path(__file__).with_name("kept_run.zip")


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kept")
    shutil.unpack_archive(KEPT, folder)
    return folder


@pytest.fixture(autouse=True)
def _arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def test_run_is_read(kept: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest = read_manifest(kept / "run")
    assert manifest["format"] == 2
    assert accuracy_source(manifest) == "trained"
    assert run(["why", f"run={kept / 'run'}", "id=front"]) == 0
    assert "805385a6b93a" in capsys.readouterr().out
    assert run(["compare", f"runs=[{kept / 'run'}]", f"run.dir={tmp_path / 'out'}"]) == 0


def test_export_is_verified(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["verify", str(kept / "export")]) == 0
    assert "All repeated checks passed." in capsys.readouterr().out


@pytest.mark.slow
def test_missing_networks_are_reported_in_one_line(
    kept: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for arguments in (
        ["export", f"run={kept / 'run'}", f"dir={tmp_path / 'out'}"],
        ["search", f"run.resume={kept / 'run'}"],
    ):
        assert run(arguments) == 2
        assert capsys.readouterr().err.count("\n") == 1
