"""The Python API of ``hwnas``."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import optuna
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

import hwnas
from hwnas.__main__ import run
from hwnas.core.errors import ConfigError
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import Genotype
from hwnas.tasks.base import Incumbent
from hwnas.training.data import loading
from hwnas.workflows import results
from hwnas.workflows.front_table import FrontTable
from hwnas.workflows.notebook_progress import NotebookProgress, progress_display
from hwnas.workflows.python_data import save_data
from hwnas.workflows.reporter import RecordingReporter
from hwnas.workflows.results import SearchResult
from hwnas.workflows.search.front import SearchOutcome
from tests.core.unusable import edit

QUICK: dict[str, Any] = {
    "target": "npu",
    "search_space": "tiny",
    "budget": "none",
    "trained": {"fidelities": [1]},
    "finish__epochs": 0,
    "n_trials": 5,
}


@pytest.fixture(autouse=True)
def _share_working_directory(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run all tests in one folder, so that trained networks are reused."""
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchResult]:
    before = optuna.logging.get_verbosity()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        optuna.logging.set_verbosity(optuna.logging.DEBUG)  # set by the calling program
        result = hwnas.search(**QUICK, run__dir="result")
    yield result
    optuna.logging.set_verbosity(before)


def test_import_is_lightweight() -> None:
    script = "import sys, hwnas; print(*sys.modules); hwnas.Quantity; assert 'search' in dir(hwnas)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert {"torch", "numpy", "hydra", "pyarrow"}.isdisjoint(loaded)


def test_front_and_candidates_are_tables(result: SearchResult) -> None:
    assert result.candidates.num_rows == 5
    front = result.front
    assert set(front["id"].to_pylist()) <= set(result.candidates["id"].to_pylist())
    assert front["verified_accuracy_int8"].null_count == 0
    html = result._repr_html_()
    assert front["id"][0].as_py() in html
    assert "data:image/png;base64" in html
    assert hwnas.load(result.path) == SearchResult(result.path)
    assert "<p>1 &lt; 2</p>" in SearchResult(result.path, ("1 < 2",))._repr_html_()


def test_running_search_reads_candidates_from_study(result: SearchResult, tmp_path: Path) -> None:
    shutil.copy(result.path / "study.db", tmp_path)
    shutil.copy(result.path / "manifest.json", tmp_path)
    edit(tmp_path, "status", "running")
    three = pyarrow.parquet.read_table(result.path / "candidates.parquet").slice(0, 3)
    pyarrow.parquet.write_table(three, tmp_path / "candidates.parquet")  # from before the resume
    ids = hwnas.load(tmp_path).candidates["id"]
    assert ids.to_pylist() == result.candidates["id"].to_pylist()


def test_messages_contain_terminal_notes(
    result: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SimpleNamespace(table=SimpleNamespace(from_another_machine="of another machine"))
    front = SimpleNamespace(
        context=SimpleNamespace(device=table), against=SimpleNamespace(sentences=["Twice as fast."])
    )
    fronts: Any = [front]
    outcome = SearchOutcome(RunFolder(result.path), {}, fronts, missed=["npu: None fits."])
    monkeypatch.setattr("hwnas.workflows.search.run.search_for_front", lambda *_: outcome)
    foreign = "Searched with a latency table of another machine: of another machine."
    assert hwnas.search(target="npu").messages == ("Twice as fast.", "npu: None fits.", foreign)


def test_front_has_columns_of_all_rows(
    result: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [{"id": "a", "wide.depth": 2}, {"id": "b", "deep.kernel": 3}]
    monkeypatch.setattr(results, "read_front", lambda path: {"members": members})
    columns = {"id": ["a", "b"], "wide.depth": [2, None], "deep.kernel": [None, 3]}
    assert result.front.all.to_pydict() == columns
    assert result.front.column_names == ["id"]


def test_front_shows_main_columns(result: SearchResult) -> None:
    front = result.front
    costs = ["latency_ms", "energy_mj", "sram_kib", "flash_kib"]
    interval = ["accuracy", "accuracy_low", "accuracy_high"]
    assert front.column_names == ["id", *interval, *costs]
    assert pa.table(front).column_names == front.column_names
    rows = [row for row in front.all.to_pylist() if row["verified_on_front"]]
    assert front["accuracy"].to_pylist() == [row["verified_accuracy_int8"] for row in rows]
    assert len(front["verified_on_front"]) == len(front) == len(rows)
    assert "accuracy (int8, test)" in front._repr_html_()
    assert "latency [ms]" in front._repr_html_()


def test_best_returns_network_within_limits(result: SearchResult) -> None:
    rows = result.front.to_pylist()
    assert result.best()["accuracy"] == max(row["accuracy"] for row in rows)
    fastest = min(row["latency_ms"] for row in rows)
    assert result.best(latency_ms=fastest)["latency_ms"] == fastest
    with pytest.raises(ConfigError, match=f"within latency_ms=.*best value is {fastest:.4g}"):
        result.best(latency_ms=fastest / 2)
    with pytest.raises(ConfigError, match="latency"):
        result.best(latency=1.0)


def test_best_returns_network_on_front() -> None:
    columns = {"accuracy": [0.9, 0.8, 0.7], "latency_ms": [3.0, 2.0, 1.0], "flash_kib": [5, 6, 7]}
    verified = {f"verified_{name}": values for name, values in columns.items()}
    table = pa.table({"id": [*"abc"], **columns, **verified})
    front = FrontTable(table.append_column("verified_on_front", [[False, True, True]]))
    assert front.best({})["id"] == "b"
    with pytest.raises(
        ConfigError,
        match=r"within flash_kib=6 with latency_ms=1. The best value with latency_ms=1 is 7:",
    ):
        front.best({"latency_ms": 1, "flash_kib": 6})
    table_of_front = table.append_column("verified_on_front", [[True] * 3])
    with_chance_level = FrontTable(table_of_front, ["b", "c"], "the majority class")
    assert with_chance_level.best({})["id"] == "a"
    message = "2 of 3 networks of the front left out: not significantly better than the majority"
    with pytest.raises(ConfigError, match=rf"within latency_ms=2\..*relax a limit\. {message}"):
        with_chance_level.best({"latency_ms": 2})
    with pytest.raises(ConfigError, match=r"No network can be chosen\. 3 of 3 networks"):
        FrontTable(table_of_front, [*"abc"], "the majority class").best({})
    empty = FrontTable(table.append_column("verified_on_front", [[False] * 3]))
    with pytest.raises(ConfigError, match="No network is on the front after verification"):
        empty.best({})


def test_best_of_several_targets_is_that_of_the_worst_target() -> None:
    table = pa.table({
        "id": [*"ab"], "npu.accuracy": [0.9, 0.85], "cpu.accuracy": [0.8, 0.84],
        "energy_mj": pa.nulls(2, pa.float64()),
    })  # fmt: skip
    front = FrontTable(table)
    assert front.best({})["id"] == "b"
    with pytest.raises(ConfigError, match="Unknown figure 'energy_mj'"):
        front.best({"energy_mj": 1})


def test_plot_uses_given_axes(result: SearchResult) -> None:
    axes = Figure().subplots()
    assert result.plot(ax=axes) is axes.figure
    assert axes.get_ylabel() == "accuracy"
    assert axes.get_legend() is not None


def test_front_counts_networks_off_the_front(
    result: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [{"id": name, "verified_on_front": name == "b"} for name in "abc"]
    monkeypatch.setattr(results, "read_front", lambda path: {"members": members})
    assert result.front["id"].to_pylist() == ["b"]
    assert "Verified networks off the front: 2, in front.all." in repr(result.front)
    assert "Verified networks off the front: 2" in result.front._repr_html_()
    monkeypatch.setattr(results, "read_front", lambda path: {"members": members[::2]})
    assert len(result.front) == 0


def test_progress_shows_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    display = progress_display(True)
    assert display is not None
    with display.phase("Search", 10) as advance:
        advance(4)
        advance(6)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Search: 10/10 in 0:00:00")
    assert progress_display(None) is progress_display(False) is None
    assert progress_display(display) is display
    invalid: Any = print
    with pytest.raises(ConfigError, match="progress="):
        progress_display(invalid)


def test_notebook_progress_updates_in_place() -> None:
    updates: list[tuple[str, str]] = []
    progress = NotebookProgress(lambda text, content: updates.append((text, content)), 0.0)
    with progress.phase("Load <data>", 1) as advance:
        advance(1)
    with progress.phase("Search", 10, 5) as advance:
        advance(1)
    assert "Load &lt;data&gt;: in" in updates[-1][1]
    assert any('<progress value="6" max="10">' in content for _, content in updates)


def test_notebook_shows_the_time_left_of_all_phases() -> None:
    class Work:
        def begin(self, name: str, n_steps: int) -> float:
            return 100.0 * n_steps

        def left_s(self, phase_s: float) -> float:
            return phase_s + 3600

    shown: list[str] = []
    progress = NotebookProgress(lambda text, content: shown.append(text), 0.0)
    reporter = RecordingReporter(progress)
    reporter.expect(Work())
    with reporter.phase("Search", 6, 5), reporter.phase("Train", 3):
        pass
    assert [text for text in shown if not text.endswith("in 0:00:00")] == [
        "Search: 5/6 0:00:00, 1:01:40 left",
        "Train: 0/3 0:00:00, 1:01:40 left",
    ]


def test_plot_uses_no_global_backend(result: SearchResult) -> None:
    figure: Any = result.plot()
    (axes,) = figure.axes
    assert axes.get_ylabel() == "accuracy"
    assert figure._repr_png_().startswith(b"\x89PNG")  # called by notebooks
    script = (
        "import sys; from hwnas.analysis import comparison_figures, figures; print(*sys.modules)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert "matplotlib" in loaded
    assert "matplotlib.pyplot" not in loaded  # notebooks choose the backend


def test_why_is_text_and_markdown(result: SearchResult) -> None:
    member = result.front["id"][0].as_py()
    assert member in str(result.why())
    explanation = result.why(member[:6])
    assert explanation.headline.startswith(f"{member}: on the front")
    assert f"**{explanation.headline}**" in explanation.to_markdown()
    assert "| accuracy" in explanation.to_markdown()


def test_export_has_proof_and_verifies(result: SearchResult) -> None:
    (export,) = result.export(pick="most_accurate", dir="models")
    assert export.path.parent == Path("models")
    assert {"model.int8.tflite", "proof.json"} <= {file.name for file in export.files}
    assert export.proof["source"]["run"] == str(result.path)
    assert any("same class as torch" in line for line in export.verify())
    assert export.proof["model"]["name"] in export._repr_html_()


def test_api_prints_nothing_and_restores_state(
    result: SearchResult, capfd: pytest.CaptureFixture[str]
) -> None:
    stored_configs = {*ConfigStore.instance().repo}
    compared = hwnas.compare([result], n_bootstrap=0)
    assert compared.table("points").num_rows >= len(result.front)
    assert compared.messages
    assert capfd.readouterr() == ("", "")
    assert not GlobalHydra.instance().is_initialized()
    assert {*ConfigStore.instance().repo} == stored_configs
    assert optuna.logging.get_verbosity() == optuna.logging.DEBUG


def test_train_single_network(monkeypatch: pytest.MonkeyPatch) -> None:
    image_data = loading._image_data
    monkeypatch.setattr(
        loading,
        "_image_data",
        lambda *arguments: replace(image_data(*arguments), notes=("Look at your images.",)),
    )
    trained = hwnas.train(search_space="tiny", genotype="smallest", train={"epochs": 2})
    value, _, low, high = trained.summary["accuracy_test"]
    assert low < value < high
    assert trained.log.num_rows == trained.summary["steps"] > 0
    assert f"{value:.5g}" in trained._repr_html_()
    assert trained.messages == ("Look at your images.", f"Run folder: {trained.path}")
    assert "<p>Look at your images.</p>" in trained._repr_html_()


def test_profile_of_estimated_target_gives_layers() -> None:
    with pytest.raises(hwnas.HwnasError, match="needs no latency table"):
        hwnas.profile(target="npu")
    layers = hwnas.profile(target="npu", search_space="tiny", genotype="random", seed=2).layers
    assert layers is not None
    other = hwnas.profile(target="npu", search_space="tiny", genotype="random").layers
    assert other is not None
    assert layers.title != other.title


@pytest.mark.slow
def test_api_search_equals_command_line_search(result: SearchResult) -> None:
    options = result.manifest["arguments"]
    arguments = [a for a in options if not a.startswith("run.dir")]
    assert run(["search", *arguments, "run.dir=by_command"]) == 0
    by_command = hwnas.load("by_command")
    assert by_command.candidates.equals(result.candidates)
    assert by_command.manifest["digests"] == result.manifest["digests"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "npu", "n_trial": 3}, "Unknown option 'n_trial'. Did you mean 'n_trials'?"),
        ({"target": "npz"}, "Unknown target 'npz'. Did you mean 'npu'?"),
        ({"target": "npu", "train": {"epoch": 3}}, "'train.epoch'"),
        ({"n_trials": 3}, "No target. Give one"),
        ({"target": "npu", "dataset": Path("nowhere")}, "nowhere"),
        ({"target": "npu", "dataset": (np.zeros((4, 8, 8)), np.zeros(4))}, "only one class, '0'"),
    ],
)
def test_invalid_options_raise_one_line_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hwnas.HwnasError) as error:
        hwnas.search(**options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_compare_accepts_path_and_pattern() -> None:
    with pytest.raises(
        hwnas.HwnasError, match=r"runs=nowhere/\*: no run folder or CSV file matches"
    ):
        hwnas.compare("nowhere/*")
    with pytest.raises(hwnas.HwnasError, match="runs=nowhere: no such"):
        hwnas.compare(Path("nowhere"))


@pytest.mark.slow
def test_arrays_and_torch_data_sets_are_equivalent() -> None:
    digits = load_digits()
    images, labels = np.round(digits.images * 255 / 16).astype(np.uint8), digits.target
    options = QUICK | {"n_trials": 2, "dataset__shift": 0.125}
    first = hwnas.search(**options, dataset=(images, labels))
    tensors = TensorDataset(torch.from_numpy(images)[:, None], torch.from_numpy(labels))
    second = hwnas.search(**options, dataset=tensors)
    assert first.manifest["digests"] == second.manifest["digests"]
    assert first.candidates.equals(second.candidates)
    assert first.manifest["images"]["test"] == 360  # a fifth
    assert first.manifest["task"]["classes"] == [str(i) for i in range(10)]
    more = hwnas.search(resume=first.path, n_trials=3)  # the run knows where its data are
    assert more.candidates.num_rows == 3


def test_torch_images_without_channels_are_not_transposed(tmp_path: Path) -> None:
    images = np.arange(2 * 8 * 9, dtype=np.uint8).reshape(2, 8, 9)
    tensors = TensorDataset(torch.from_numpy(images), torch.tensor([0, 1]))
    assert save_data(tensors, tmp_path) == save_data((images, [0, 1]), tmp_path)


@pytest.mark.parametrize(("recorded", "workers"), [([], 1), (["study.workers=2"], 2)])
def test_resume_keeps_number_of_workers(
    recorded: list[str], workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(configs: list[Any], *_: object) -> None:
        assert configs[0].study.workers == workers
        raise hwnas.HwnasError("asked")

    monkeypatch.setattr("hwnas.workflows.search.run.search_for_front", search)
    monkeypatch.setattr(
        "hwnas.workflows.python_api.with_resumed", lambda given: ["+target=npu", *recorded]
    )
    with pytest.raises(hwnas.HwnasError, match="asked"):
        hwnas.search(resume="run")


@pytest.mark.parametrize(
    ("options", "workers"),
    [({}, 1), ({"minutes": 5}, None), ({"study": {"workers": None}}, None)],
)
def test_default_number_of_workers_is_not_recorded(
    options: dict[str, Any], workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(configs: list[Any], arguments: list[str], *_: object) -> None:
        assert configs[0].study.workers == workers
        assert "study.workers=1" not in arguments, "a resumed search with a limit uses all cores"
        raise hwnas.HwnasError("asked")

    monkeypatch.setattr("hwnas.workflows.search.run.search_for_front", search)
    with pytest.raises(hwnas.HwnasError, match="asked"):
        hwnas.search(target="npu", **options)


def test_group_of_options_is_no_value() -> None:
    images = np.zeros((20, 8, 8), np.uint8)
    for option in ("out", Path("out")):
        with pytest.raises(hwnas.HwnasError, match=r"run has options of its own.*run\.dir"):
            hwnas.search(target="npu", dataset=(images, [0, 1] * 10), run=option)


class DepthEvaluator:
    """Evaluator whose accuracy grows with depth."""

    def __init__(self) -> None:
        self.genotype_ids: list[str] = []

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> hwnas.Score:
        self.genotype_ids.append(genotype.id)
        depth = sum(int(v) for name, v in genotype.options if name.endswith("depth"))
        accuracy: Any = np.float32(1 - 0.5**depth)  # as numpy and torch compute
        return hwnas.Score(hwnas.Quantity(accuracy, "modelled"))


class WidthCostModel:
    """Cost model whose costs grow with width."""

    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> hwnas.Cost:
        width = sum(int(v) for name, v in genotype.options if name.endswith("width"))
        cost = hwnas.Quantity(0.001 * width, "modelled")
        figures = dict.fromkeys(("latency_ms", "energy_mj"), cost)
        return hwnas.Cost(figures)


@pytest.mark.slow
def test_custom_evaluator_and_cost_model(capsys: pytest.CaptureFixture[str]) -> None:
    evaluator = DepthEvaluator()
    options = QUICK | {"n_trials": 6, "minutes": 9}  # with a limit, other searches use all cores
    first = hwnas.search(**options, evaluator=evaluator, cost_model=WidthCostModel())
    rows = first.candidates.to_pylist()
    assert {row["id"] for row in rows} == {*evaluator.genotype_ids}
    assert all(row["latency_ms"] == 0.001 * _width(row) for row in rows)
    assert first.front["verified_latency_ms_source"][0].as_py() == "compiler-estimate"
    assert first.manifest["own"] == {
        "evaluator": f"{__name__}.DepthEvaluator",
        "cost_model": f"{__name__}.WidthCostModel",
    }
    more = hwnas.search(
        resume=first.path, n_trials=7, evaluator=DepthEvaluator(), cost_model=WidthCostModel()
    )
    assert more.candidates.num_rows == 7
    assert more.candidates["id"].to_pylist()[:6] == [row["id"] for row in rows]
    assert run(["search", f"run.resume={first.path}"]) == 2
    message = f"that search used a custom evaluator of class {__name__}.DepthEvaluator"
    assert message in capsys.readouterr().err
    with pytest.raises(hwnas.HwnasError, match="that search used a custom"):
        hwnas.search(resume=first.path, evaluator=DepthEvaluator())
    (export,) = first.export(pick="most_accurate")
    assert export.proof["checks"]


def test_incomplete_cost_model_raises() -> None:
    with pytest.raises(hwnas.HwnasError, match=r"cost_model= returns no .*sram_kib"):
        hwnas.search(**QUICK | {"budget": "edge"}, cost_model=WidthCostModel())


def _width(row: dict[str, Any]) -> int:
    return sum(v for name, v in row.items() if name.endswith("width") and v is not None)


def test_resume_rejects_new_custom_evaluator(result: SearchResult) -> None:
    with pytest.raises(hwnas.HwnasError, match="had no custom evaluator"):
        hwnas.search(resume=result.path, evaluator=DepthEvaluator())
    with pytest.raises(hwnas.HwnasError, match=r"study\.workers=2 is not possible with evaluator="):
        hwnas.search(**QUICK, evaluator=DepthEvaluator(), study__workers=2)
