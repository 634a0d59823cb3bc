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


def test_folder_is_there_only_when_it_is_kept(tmp_path: Path) -> None:
    with building(tmp_path / "out", "a") as folder:
        (folder / "x").write_text("x")
        assert not (tmp_path / "out" / "a").exists()
        place = keep(folder, tmp_path / "out", "a")
    assert place == tmp_path / "out" / "a"
    assert [path.name for path in (tmp_path / "out").rglob("*")] == ["a", "x"]


def test_nothing_is_left_of_what_was_not_kept(tmp_path: Path) -> None:
    def stopped() -> None:
        with building(tmp_path / "out", "npu/a") as folder:
            (folder / "x").write_text("x")
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stopped()
    assert not any((tmp_path / "out").iterdir())


def test_what_is_there_is_not_replaced_unless_it_failed(tmp_path: Path) -> None:
    check_free(tmp_path, "a")
    (tmp_path / "a").mkdir()
    with pytest.raises(RunError, match="already exists: remove it, or choose another dir"):
        check_free(tmp_path, "a")
    for content in ("first", "second"):
        with building(tmp_path, "b") as folder:
            (folder / "x").write_text(content)
            keep(folder, tmp_path, "b.failed")
    assert (tmp_path / "b.failed" / "x").read_text() == "second"


def test_what_killed_exports_left_is_removed_but_not_what_others_build(tmp_path: Path) -> None:
    killed, done, own, busy = (tmp_path / name for name in ("killed", "done", "own", "busy"))
    for root in (killed, done, own, busy):
        (root / BUILDING / "id").mkdir(parents=True)
        (root / files.LOCK).touch()
    (done / "id").mkdir()
    held = files.lock_folder(busy)
    sweep(own, beside=False)
    assert not (own / BUILDING).exists()
    assert (killed / BUILDING).is_dir()
    sweep(own, beside=True)
    held.close()
    assert not killed.exists()
    assert (done / "id").is_dir()
    assert not (done / BUILDING).exists()
    assert (busy / BUILDING).is_dir()


def test_every_file_is_accounted_for(tmp_path: Path) -> None:
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
    found = differences(before, digests(tmp_path))
    assert found == [
        "a is missing", "b was changed", "away is not part of the export",
        "sub/new is not part of the export",
    ]  # fmt: skip
    for i in range(9):
        (tmp_path / f"{i}.pyc").touch()
    assert differences(before, digests(tmp_path))[5:] == ["8 more"]
