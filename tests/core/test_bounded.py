import os
from pathlib import Path

import pytest

from hwnas.core.errors import RunError
from hwnas.core.safe_read import CorruptFileError, read_bytes
from hwnas.core.typed_files import read_json


def test_pipe_device_folder_and_large_file_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    with (tmp_path / "large").open("wb") as file:
        file.truncate(1 << 40)
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path / "folder", tmp_path / "large"):
        with pytest.raises(CorruptFileError):
            read_bytes(path, 1000)


def test_error_names_file_field_and_allowed_values(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"x": [1, "2"]}')
    with pytest.raises(RunError) as error:
        read_json(dict[str, list[int]], path, RunError)
    assert str(error.value) == f"{path} cannot be read: 'x[1]' is '2'; allowed: a whole number."
