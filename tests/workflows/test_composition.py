"""Configurations composed from Python: beside others' use of Hydra, by threads, of odd keys."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hydra
import pytest
from hydra import version
from hydra.core.global_hydra import GlobalHydra

from hwnas.core.errors import ConfigError
from hwnas.workflows.config.arguments import as_arguments
from hwnas.workflows.config.compose import compose


def test_hydra_stays_as_the_program_around_has_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("learning: fast\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.2"):
        around = GlobalHydra.instance().hydra
        assert compose("compare", ["runs=[a,b]"]).runs == ["a", "b"]
        assert GlobalHydra.instance().hydra is around
        assert not version.base_at_least("1.3")
        assert hydra.compose("mine") == {"learning": "fast"}


def test_threads_compose_at_once() -> None:
    with ThreadPoolExecutor(4) as threads:
        found = threads.map(lambda i: compose("compare", [f"runs=[a{i},b]"]).runs[0], range(8))
        assert [*found] == [f"a{i}" for i in range(8)]


@pytest.mark.parametrize(
    "key", ["acc (%)", "a:b", " x=1, {y} [z]", "back\\slash", "a\tb", "lat_ms"]
)
def test_keys_of_mappings_are_taken_as_they_are_written(key: str) -> None:
    given = as_arguments({"runs": "a", "objectives": {key: "max"}})
    assert compose("compare", given).objectives == {key: "max"}


@pytest.mark.parametrize("key", ["größe", "it's", ""])
def test_keys_that_hydra_cannot_read_are_refused_in_words(key: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a key here: allowed are letters from a to z"):
        as_arguments({"objectives": {key: "max"}})
