"""Folders that are written as a whole."""

from pathlib import Path

import pytest

from hwnas.core import files
from hwnas.core.errors import RunError


def test_folder_may_be_a_link_to_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    with files.atomic_folder(tmp_path / "link", remove_stale=True) as building:
        (building / "a").write_text("b")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "a").read_text() == "b"


def test_mount_point_is_refused_before_the_work() -> None:
    with pytest.raises(RunError, match=r"run\.dir=/dev/shm/?result|run\.dir=/dev/shm/result"):
        files.check_new_folder(Path("/dev/shm"), "run.dir")
