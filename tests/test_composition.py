"""Configurations composed in programs that use Hydra themselves, and by threads."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hydra
from hydra import version
from hydra.core.global_hydra import GlobalHydra

from hwnas.api.composition import compose


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
