from pathlib import Path

import pytest

from hwnas.core.errors import ConfigError
from hwnas.workflows.config.arguments import named, of_target


def test_folder_needs_no_name(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    given = ["--config-dir", "mine", str(odd), "+target=board", "-h"]
    assert named(given, "export") == ["--config-dir", "mine", f"export={odd}", *given[3:]]
    with pytest.raises(ConfigError, match="One folder at a time, got a, b"):
        named(["a", "b"], "export")


def test_what_a_target_of_a_search_is() -> None:
    search = ["+target=[npu,cpu]", "cpu.target.threads=2", "seed=1", "--config-dir", "mine"]
    assert of_target(search, 0) == ["+target=npu", "--config-dir", "mine"]
    assert of_target(search, 1) == ["+target=cpu", "target.threads=2", "--config-dir", "mine"]
    for said in (["--config-dir=mine"], ["-cd", "mine"]):
        assert of_target([*said, "+target=board", "seed=1"], 0) == ["+target=board", *said]
        assert of_target(["+target=board", *said], 0) == ["+target=board", *said]
    board = ["+target=raspi4", "rpc.tracker=HOST:1", "budget=none"]
    assert of_target(board, 0) == board[:2]
