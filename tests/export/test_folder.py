from pathlib import Path

import pytest

from hwnas.core import files
from hwnas.core.errors import RunError
from hwnas.export.folder import (
    BUILDING,
    PROOF,
    building,
    check_free,
    differences,
    digests,
    keep,
    sweep,
)


def test_folder_exists_only_after_keep(tmp_path: Path) -> None:
    with building(tmp_path / "out", "a") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "out" / "a").exists()
        path = keep(folder, tmp_path / "out", "a")
    assert path == tmp_path / "out" / "a"
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["a", "x"]


def test_interrupted_build_leaves_nothing(tmp_path: Path) -> None:
    def interrupted_build() -> None:
        with building(tmp_path / "out", "npu/a") as folder:
            (folder / "x").write_text("x")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        interrupted_build()
    assert not any((tmp_path / "out").iterdir())


def test_only_failed_folders_are_replaced(tmp_path: Path) -> None:
    check_free(tmp_path, "a")
    (tmp_path / "a").mkdir()
    with pytest.raises(RunError, match="already exists: remove it, or choose another dir"):
        check_free(tmp_path, "a")
    for content in ("first", "second"):
        with building(tmp_path, "b") as folder:
            (folder / "x").write_text(content)
            keep(folder, tmp_path, "b.failed")
    assert (tmp_path / "b.failed" / "x").read_text() == "second"


def test_sweep_removes_killed_builds_but_not_running_ones(tmp_path: Path) -> None:
    killed, complete, current, busy = (
        tmp_path / name for name in ("killed", "done", "own", "busy")
    )
    for root in (killed, complete, current, busy):
        (root / BUILDING / "id").mkdir(parents=True)
        (root / files.LOCK).touch()
    (complete / "id").mkdir()
    lock = files.lock_folder(busy)
    sweep(current, beside=False)
    assert not (current / BUILDING).exists()
    assert (killed / BUILDING).is_dir()
    sweep(current, beside=True)
    lock.close()
    assert not killed.exists()
    assert (complete / "id").is_dir()
    assert not (complete / BUILDING).exists()
    assert (busy / BUILDING).is_dir()


def test_differences_list_changed_files(tmp_path: Path) -> None:
    for name in ("a", "b", PROOF, ".git/HEAD"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    before = digests(tmp_path)
    assert set(before) == {"a", "b"}
    assert differences(before, digests(tmp_path)) == []
    (tmp_path / "a").unlink()
    (tmp_path / "b").write_text("c")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "new").touch()
    (tmp_path / "away").symlink_to("/")
    changes = differences(before, digests(tmp_path))
    assert changes == [
        "a is missing", "b was changed", "away is not part of the export",
        "sub/new is not part of the export",
    ]  # fmt: skip
    for i in range(9):
        (tmp_path / f"{i}.pyc").touch()
    assert differences(before, digests(tmp_path))[5:] == ["8 more"]
