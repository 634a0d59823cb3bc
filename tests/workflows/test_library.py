"""``import hwnas`` as its users write it."""

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
from hwnas.workflows.notebook_progress import NotebookProgress, progress_display
from hwnas.workflows.python_data import save_data
from hwnas.workflows.results import FrontTable, SearchResult
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
def _elsewhere(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all tests work in one folder, where networks that were trained are found again."""
    monkeypatch.chdir(tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SearchResult]:
    before = optuna.logging.get_verbosity()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        optuna.logging.set_verbosity(optuna.logging.DEBUG)  # as the user's program wants it
        result = hwnas.search(**QUICK, run__dir="found")
    yield result
    optuna.logging.set_verbosity(before)


def test_importing_loads_nothing_heavy() -> None:
    script = "import sys, hwnas; print(*sys.modules); hwnas.Quantity; assert 'search' in dir(hwnas)"
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert {"torch", "numpy", "hydra", "pyarrow"}.isdisjoint(loaded)


def test_front_and_candidates_are_tables(found: SearchResult) -> None:
    assert found.candidates.num_rows == 5
    front = found.front
    assert set(front["id"].to_pylist()) <= set(found.candidates["id"].to_pylist())
    assert front["verified_accuracy_int8"].null_count == 0
    html = found._repr_html_()
    assert front["id"][0].as_py() in html
    assert "data:image/png;base64" in html
    assert hwnas.load(found.path) == SearchResult(found.path)
    assert "<p>1 &lt; 2</p>" in SearchResult(found.path, ("1 < 2",))._repr_html_()


def test_candidates_of_a_search_that_goes_on_are_those_of_its_study(
    found: SearchResult, tmp_path: Path
) -> None:
    shutil.copy(found.path / "study.db", tmp_path)
    shutil.copy(found.path / "manifest.json", tmp_path)
    edit(tmp_path, "status", "running")
    three = pyarrow.parquet.read_table(found.path / "candidates.parquet").slice(0, 3)
    pyarrow.parquet.write_table(three, tmp_path / "candidates.parquet")  # of before it was resumed
    ids = hwnas.load(tmp_path).candidates["id"]
    assert ids.to_pylist() == found.candidates["id"].to_pylist()


def test_what_the_terminal_would_show_is_noted(
    found: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = SimpleNamespace(table=SimpleNamespace(from_another_machine="of another machine"))
    front = SimpleNamespace(
        context=SimpleNamespace(device=table), against=SimpleNamespace(sentences=["Twice as fast."])
    )
    fronts: Any = [front]
    outcome = SearchOutcome(RunFolder(found.path), {}, fronts, missed=["npu: None fits."])
    monkeypatch.setattr("hwnas.workflows.search.run.search_for_front", lambda *_: outcome)
    foreign = "Searched with a latency table of another machine: of another machine."
    assert hwnas.search(target="npu").messages == ("Twice as fast.", "npu: None fits.", foreign)


def test_front_has_the_columns_of_every_row(
    found: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [{"id": "a", "wide.depth": 2}, {"id": "b", "deep.kernel": 3}]
    monkeypatch.setattr(results, "read_front", lambda path: {"members": members})
    columns = {"id": ["a", "b"], "wide.depth": [2, None], "deep.kernel": [None, 3]}
    assert found.front.all.to_pydict() == columns
    assert found.front.column_names == ["id"]


def test_front_shows_the_columns_that_are_used_most(found: SearchResult) -> None:
    front = found.front
    costs = ["latency_ms", "energy_mj", "sram_kib", "flash_kib"]
    interval = ["accuracy", "accuracy_low", "accuracy_high"]
    assert front.column_names == ["id", *interval, *costs]
    assert pa.table(front).column_names == front.column_names
    rows = [row for row in front.all.to_pylist() if row["verified_on_front"]]
    assert front["accuracy"].to_pylist() == [row["verified_accuracy_int8"] for row in rows]
    assert len(front["verified_on_front"]) == len(front) == len(rows)
    assert "accuracy (int8, test)" in front._repr_html_()
    assert "latency [ms]" in front._repr_html_()


def test_best_network_within_limits(found: SearchResult) -> None:
    rows = found.front.to_pylist()
    assert found.best()["accuracy"] == max(row["accuracy"] for row in rows)
    fastest = min(row["latency_ms"] for row in rows)
    assert found.best(latency_ms=fastest)["latency_ms"] == fastest
    with pytest.raises(ConfigError, match=f"within latency_ms=.*best value is {fastest:.4g}"):
        found.best(latency_ms=fastest / 2)
    with pytest.raises(ConfigError, match="latency"):
        found.best(latency=1.0)


def test_best_network_is_on_the_front() -> None:
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
    some = FrontTable(table_of_front, ["b", "c"], "the majority class")
    assert some.best({})["id"] == "a"
    words = "2 of 3 networks of the front left out: not significantly better than the majority"
    with pytest.raises(ConfigError, match=rf"within latency_ms=2\..*relax a limit\. {words}"):
        some.best({"latency_ms": 2})
    with pytest.raises(ConfigError, match=r"No network can be chosen\. 3 of 3 networks"):
        FrontTable(table_of_front, [*"abc"], "the majority class").best({})
    none = FrontTable(table.append_column("verified_on_front", [[False] * 3]))
    with pytest.raises(ConfigError, match="No network is on the front after verification"):
        none.best({})


def test_plot_draws_into_axes_of_the_caller(found: SearchResult) -> None:
    axes = Figure().subplots()
    assert found.plot(ax=axes) is axes.figure
    assert axes.get_ylabel() == "accuracy"
    assert axes.get_legend() is not None


def test_front_has_only_networks_on_the_front_and_counts_the_others(
    found: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = [{"id": name, "verified_on_front": name == "b"} for name in "abc"]
    monkeypatch.setattr(results, "read_front", lambda path: {"members": members})
    assert found.front["id"].to_pylist() == ["b"]
    assert "2 more verified networks are not on the front: front.all." in repr(found.front)
    assert "2 more verified networks" in found.front._repr_html_()
    monkeypatch.setattr(results, "read_front", lambda path: {"members": members[::2]})
    assert len(found.front) == 0


def test_progress_shows_each_phase(capsys: pytest.CaptureFixture[str]) -> None:
    display = progress_display(True)
    assert display is not None
    with display.phase("Search", 10) as advance:
        advance(4)
        advance(6)
    assert capsys.readouterr().out.splitlines()[-1].startswith("Search: 10/10 in 0:00:00")
    assert progress_display(None) is progress_display(False) is None
    assert progress_display(display) is display
    wrong: Any = print
    with pytest.raises(ConfigError, match="progress="):
        progress_display(wrong)


def test_notebook_updates_a_bar_in_place() -> None:
    shown: list[tuple[str, str]] = []
    progress = NotebookProgress(lambda text, content: shown.append((text, content)), 0.0)
    with progress.phase("Load <data>", 1) as advance:
        advance(1)
    with progress.phase("Search", 10, 5) as advance:
        advance(1)
    assert "Load &lt;data&gt;: in" in shown[-1][1]
    assert any('<progress value="6" max="10">' in content for _, content in shown)


def test_picture_is_drawn_without_a_global_backend(found: SearchResult) -> None:
    drawn: Any = found.plot()
    (axes,) = drawn.axes
    assert axes.get_ylabel() == "accuracy"
    assert drawn._repr_png_().startswith(b"\x89PNG")  # notebooks ask for it
    script = (
        "import sys; from hwnas.analysis import comparison_figures, figures; print(*sys.modules)"
    )
    loaded = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert "matplotlib" in loaded
    assert "matplotlib.pyplot" not in loaded  # notebooks choose how it draws


def test_why_is_text_and_markdown(found: SearchResult) -> None:
    member = found.front["id"][0].as_py()
    assert member in str(found.why())
    told = found.why(member[:6])
    assert told.headline.startswith(f"{member}: on the front")
    assert f"**{told.headline}**" in told.to_markdown()
    assert "| accuracy" in told.to_markdown()


def test_export_proves_itself(found: SearchResult) -> None:
    (export,) = found.export(pick="most_accurate", dir="models")
    assert export.path.parent == Path("models")
    assert {"model.int8.tflite", "proof.json"} <= {file.name for file in export.files}
    assert export.proof["source"]["run"] == str(found.path)
    assert any("same class as torch" in line for line in export.verify())
    assert export.proof["model"]["name"] in export._repr_html_()


def test_nothing_is_printed_and_nothing_left_behind(
    found: SearchResult, capfd: pytest.CaptureFixture[str]
) -> None:
    known = {*ConfigStore.instance().repo}
    compared = hwnas.compare([found], n_bootstrap=0)
    assert compared.table("points").num_rows >= len(found.front)
    assert compared.messages
    assert capfd.readouterr() == ("", "")
    assert not GlobalHydra.instance().is_initialized()
    assert {*ConfigStore.instance().repo} == known
    assert optuna.logging.get_verbosity() == optuna.logging.DEBUG


def test_one_network_is_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read = loading._image_data
    monkeypatch.setattr(
        loading, "_image_data", lambda *made: replace(read(*made), notes=("Look at your images.",))
    )
    trained = hwnas.train(search_space="tiny", genotype="smallest", train={"epochs": 2})
    value, _, low, high = trained.summary["accuracy_test"]
    assert low < value < high
    assert trained.log.num_rows == trained.summary["steps"] > 0
    assert f"{value:.5g}" in trained._repr_html_()
    assert trained.messages == ("Look at your images.", f"Run folder: {trained.path}")
    assert "<p>Look at your images.</p>" in trained._repr_html_()


def test_targets_that_need_no_table_have_none() -> None:
    with pytest.raises(hwnas.HwnasError, match="needs no latency table"):
        hwnas.profile(target="npu")
    layers = hwnas.profile(target="npu", search_space="tiny", genotype="random", seed=2).layers
    assert layers is not None
    other = hwnas.profile(target="npu", search_space="tiny", genotype="random").layers
    assert other is not None
    assert layers.title != other.title


def test_same_search_as_by_the_command_line(found: SearchResult) -> None:
    options = found.manifest["arguments"]
    arguments = [a for a in options if not a.startswith("run.dir")]
    assert run(["search", *arguments, "run.dir=by_command"]) == 0
    again = hwnas.load("by_command")
    assert again.candidates.equals(found.candidates)
    assert again.manifest["digests"] == found.manifest["digests"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": "npu", "n_trial": 3}, "Unknown option 'n_trial'. Did you mean 'n_trials'?"),
        ({"target": "npz"}, "Unknown target 'npz'. Did you mean 'npu'?"),
        ({"target": "npu", "train": {"epoch": 3}}, "'train.epoch'"),
        ({"n_trials": 3}, "No target. Give one"),
        ({"target": "npu", "dataset": Path("nowhere")}, "nowhere"),
        ({"target": "npu", "dataset": (np.zeros((4, 8, 8)), np.zeros(4))}, "only one class, '0'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hwnas.HwnasError) as raised:
        hwnas.search(**options)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_one_run_may_be_compared_and_a_pattern() -> None:
    with pytest.raises(
        hwnas.HwnasError, match=r"runs=nowhere/\*: no run folder or CSV file matches"
    ):
        hwnas.compare("nowhere/*")
    with pytest.raises(hwnas.HwnasError, match="runs=nowhere: no such"):
        hwnas.compare(Path("nowhere"))


@pytest.mark.slow
def test_own_arrays_and_data_sets_of_torch_are_the_same_data() -> None:
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


def test_images_of_torch_without_channels_are_not_turned(tmp_path: Path) -> None:
    images = np.arange(2 * 8 * 9, dtype=np.uint8).reshape(2, 8, 9)
    tensors = TensorDataset(torch.from_numpy(images), torch.tensor([0, 1]))
    assert save_data(tensors, tmp_path) == save_data((images, [0, 1]), tmp_path)


@pytest.mark.parametrize(("recorded", "workers"), [([], 1), (["study.workers=2"], 2)])
def test_a_resumed_run_has_no_more_processes_than_it_was_told(
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


class Depth:
    """The deeper, the better."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> hwnas.Score:
        self.asked.append(genotype.id)
        depth = sum(int(v) for name, v in genotype.options if name.endswith("depth"))
        accuracy: Any = np.float32(1 - 0.5**depth)  # as numpy and torch compute
        return hwnas.Score(hwnas.Quantity(accuracy, "modelled"))


class Widths:
    """The wider, the dearer."""

    max_cost_queries: int | None = None

    def cost(self, genotype: Genotype) -> hwnas.Cost:
        width = sum(int(v) for name, v in genotype.options if name.endswith("width"))
        cost = hwnas.Quantity(0.001 * width, "modelled")
        figures = dict.fromkeys(("latency_ms", "energy_mj"), cost)
        return hwnas.Cost(figures)


@pytest.mark.slow
def test_own_evaluator_and_cost_model(capsys: pytest.CaptureFixture[str]) -> None:
    evaluator = Depth()
    options = QUICK | {"n_trials": 6}
    first = hwnas.search(**options, evaluator=evaluator, cost_model=Widths())
    rows = first.candidates.to_pylist()
    assert {row["id"] for row in rows} == {*evaluator.asked}
    assert all(row["latency_ms"] == 0.001 * _width(row) for row in rows)
    assert first.front["verified_latency_ms_source"][0].as_py() == "compiler-estimate"
    assert first.manifest["own"] == {
        "evaluator": f"{__name__}.Depth",
        "cost_model": f"{__name__}.Widths",
    }
    more = hwnas.search(resume=first.path, n_trials=7, evaluator=Depth(), cost_model=Widths())
    assert more.candidates.num_rows == 7
    assert more.candidates["id"].to_pylist()[:6] == [row["id"] for row in rows]
    assert run(["search", f"run.resume={first.path}"]) == 2
    words = f"that search used a custom evaluator of class {__name__}.Depth"
    assert words in capsys.readouterr().err
    with pytest.raises(hwnas.HwnasError, match="that search used a custom"):
        hwnas.search(resume=first.path, evaluator=Depth())
    (export,) = first.export(pick="most_accurate")
    assert export.proof["checks"]


def test_a_cost_model_that_says_too_little_is_refused_in_words() -> None:
    with pytest.raises(hwnas.HwnasError, match=r"cost_model= returns no .*sram_kib"):
        hwnas.search(**QUICK | {"budget": "edge"}, cost_model=Widths())


def _width(row: dict[str, Any]) -> int:
    return sum(v for name, v in row.items() if name.endswith("width") and v is not None)


def test_runs_without_objects_do_not_take_any(found: SearchResult) -> None:
    with pytest.raises(hwnas.HwnasError, match="had no custom evaluator"):
        hwnas.search(resume=found.path, evaluator=Depth())
    with pytest.raises(hwnas.HwnasError, match=r"study\.workers=2: a custom evaluator"):
        hwnas.search(**QUICK, evaluator=Depth(), study__workers=2)
