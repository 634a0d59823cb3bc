"""Configurations composed from Python: with other users of Hydra, threads and unusual keys."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hydra
import pytest
from hydra import version
from hydra.core.global_hydra import GlobalHydra

from hwnas.core.errors import ConfigError
from hwnas.workflows.config.arguments import as_arguments
from hwnas.workflows.config.compose import compose, with_resumed


def test_global_hydra_state_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("learning: fast\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base="1.2"):
        outer = GlobalHydra.instance().hydra
        assert compose("compare", ["runs=[a,b]"]).runs == ["a", "b"]
        assert GlobalHydra.instance().hydra is outer
        assert not version.base_at_least("1.3")
        assert hydra.compose("mine") == {"learning": "fast"}


def test_compose_is_thread_safe() -> None:
    with ThreadPoolExecutor(4) as threads:
        names = threads.map(lambda i: compose("compare", [f"runs=[a{i},b]"]).runs[0], range(8))
        assert [*names] == [f"a{i}" for i in range(8)]


@pytest.mark.parametrize(
    "key", ["acc (%)", "a:b", " x=1, {y} [z]", "back\\slash", "a\tb", "lat_ms"]
)
def test_mapping_keys_are_preserved(key: str) -> None:
    arguments = as_arguments({"runs": "a", "objectives": {key: "max"}})
    assert compose("compare", arguments).objectives == {key: "max"}


@pytest.mark.parametrize("key", ["größe", "it's", ""])
def test_unsupported_mapping_keys_raise(key: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a key here: allowed are letters from a to z"):
        as_arguments({"objectives": {key: "max"}})


@pytest.mark.parametrize(
    ("options", "fidelities"),
    [
        (["dataset=digits"], [1, 4]),
        (["dataset=digits", "train.epochs=2"], [1, 2]),
        (["dataset=fashion_mnist"], [1, 2]),
        (["dataset=fashion_mnist", "trained.fidelities=[3]"], [3]),
    ],
)
def test_data_sets_replace_default_epochs_of_candidates(
    options: list[str], fidelities: list[int]
) -> None:
    assert compose("search", ["+target=npu", *options]).trained.fidelities == fidelities


def test_data_set_file_chooses_task(tmp_path: Path) -> None:
    (tmp_path / "dataset").mkdir()
    text = "# @package _global_\ndataset: {name: gauges, path: photos, task: regression}\n"
    (tmp_path / "dataset" / "gauges.yaml").write_text(text)
    arguments = [f"--config-dir={tmp_path}", "+target=npu", "dataset=gauges"]
    assert compose("search", arguments).dataset.task == "regression"


@pytest.mark.parametrize(("sampler", "n_startup_trials"), [("pareto", 10), ("tpe", 20), ("gp", 20)])
def test_startup_trials_of_samplers(sampler: str, n_startup_trials: int) -> None:
    composed = compose("search", ["+target=npu", f"sampler={sampler}"])
    assert composed.sampler.n_startup_trials == n_startup_trials


@pytest.mark.parametrize("option", ["train.from_supernet=true", "train.fine_tuning_epochs=20"])
def test_options_of_train_are_refused_by_search(option: str) -> None:
    with pytest.raises(ConfigError, match="has no effect on a search"):
        compose("search", ["+target=npu", option])


def test_run_dir_of_resumed_run_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"run\.dir=runs/b has no effect: runs/a is resumed"):
        with_resumed(["run.resume=runs/a", "run.dir=runs/b"])


def test_option_of_target_without_target_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"target\.runtime: no target is given\. Add \+target=NAME"
    ):
        compose("split", ["export=runs/export/a", "target.runtime=onnxruntime"])
