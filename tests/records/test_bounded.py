import os
from pathlib import Path

import pytest

from hwnas.errors import RunError
from hwnas.records import read_json
from hwnas.records.bounded import Damaged, content


def test_pipes_devices_folders_and_large_files_are_no_content(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "folder", tmp_path / "large"):
        with pytest.raises(Damaged):
            content(path, 1000)


def test_error_says_file_place_and_what_is_allowed(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"x": [1, "2"]}')
    with pytest.raises(RunError) as caught:
        read_json(dict[str, list[int]], path, RunError)
    assert str(caught.value) == f"{path} cannot be read: 'x[1]' is '2'; allowed: a whole number."
