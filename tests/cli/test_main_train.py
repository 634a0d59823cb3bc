"""The verb ``train`` on the command line."""

import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file, save_file

from hwnas.__main__ import run
from hwnas.models.spaces import SearchSpace
from hwnas.training.checkpoints import Checkpoint
from tests.conftest import SHARED_WEIGHTS, last_of, space_yaml
from tests.training.fakes import equal_tensors

ROOT = Path(__file__).parents[2]
TINY = ("search_space=tiny", "train.epochs=2")
SMALLEST = ("genotype=smallest", "run.dir=r")


@pytest.fixture(autouse=True)
def _change_to_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hwnas"])


def _error_line(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    (line,) = captured.err.strip().splitlines()
    assert "Traceback" not in captured.out + captured.err
    return line


def _summary(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(folder, "summary.json").read_text())
    assert content["format"] == 1
    return content


def test_train_help_lists_options_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    for word in ("dataset=NAME", "search_space=", "train.epochs=", "genotype=", "torchrun"):
        assert word in printed
    assert "+target" not in printed


@pytest.mark.slow
def test_supernet_is_trained_once_and_reused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *TINY, "train.ema=0.9", "run.dir=r"]) == 0
    printed = capsys.readouterr().out
    for word in ("smallest subnet", "median of 10 random", "largest subnet", "images x subnets/s"):
        assert word in printed
    summary = _summary("r")
    checkpoint = Path(summary["checkpoint"])
    assert checkpoint.is_file()
    assert (summary["steps"], len(summary["accuracy_random"])) == (32, 10)
    assert summary["images_x_subnets_per_second"] > 0
    low, high = summary["accuracy_largest"][2:]
    assert low <= summary["accuracy_largest"][0] <= high
    with Path("r/log.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 33))
    assert [i for i, row in enumerate(rows) if row["accuracy_largest"]] == [15, 31]
    assert json.loads(Path("r/manifest.json").read_text())["status"] == "finished"
    mtime_ns = checkpoint.stat().st_mtime_ns
    assert run(["train", *TINY, "train.ema=0.9", "train.tensorboard=true"]) == 0
    assert "Trained by an earlier command." in capsys.readouterr().out
    options = (*SHARED_WEIGHTS, "train.ema=0.9", "n_trials=2")
    assert run(["search", "+target=npu", *TINY, *options, "run.dir=s"]) == 0
    copied = Path("s", json.loads(Path("s/manifest.json").read_text())["checkpoint"])
    assert copied.read_bytes() == checkpoint.read_bytes()
    assert checkpoint.stat().st_mtime_ns == mtime_ns


@pytest.mark.slow
def test_interrupted_training_resumes_to_same_weights(tmp_path: Path) -> None:
    options = ("search_space=tiny", "train.epochs=12", "train.ema=0.9")
    assert run(["train", *options, "run.supernets=whole"]) == 0
    (uninterrupted,) = Path("whole").rglob("*.safetensors")
    command = [sys.executable, "-m", "hwnas", "train", *options, "run.supernets=cut"]
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    codes = []
    for number in (signal.SIGKILL, signal.SIGINT):
        process = subprocess.Popen(
            [*command, f"run.dir=r{number}"], env=os.environ | {"PYTHONPATH": paths},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while not Path(f"r{number}/log.csv").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(number)
        stderr = process.communicate(timeout=300)[1]
        codes.append(process.returncode)
        assert process.returncode in (-signal.SIGKILL, 130, 0)
        if process.returncode == 130:
            assert stderr.endswith(f"Nothing is lost. Continue with:\n  hwnas resume r{number}\n")
    assert run(["train", *options, "run.supernets=cut"]) == 0
    assert any(codes), "both trainings ended before their signal"
    (cut,) = Path("cut").rglob("*.safetensors")
    assert equal_tensors(Checkpoint(uninterrupted).weights(), Checkpoint(cut).weights())


@pytest.mark.slow
def test_network_is_trained_from_scratch_or_supernet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["train", *TINY, "genotype=largest", "run.dir=scratch"]) == 0
    printed = capsys.readouterr().out
    assert "validation split (360 images)" in printed
    assert "test split (360 images)" in printed
    options = json.dumps(_summary("scratch")["genotype"])
    tuned = ("train.from_supernet=true", "train.fine_tuning_epochs=3", "run.dir=tuned")
    assert run(["train", *TINY, f"genotype={options}", *tuned]) == 0
    scratch, fine = _summary("scratch"), _summary("tuned")
    assert scratch["id"] == fine["id"]
    assert (scratch["start"], fine["start"]) == ("scratch", "supernet")
    assert (scratch["steps"], fine["steps"]) == (32, 48)
    assert scratch["checkpoint"] != fine["checkpoint"]
    for figure in (scratch["accuracy_validation"], scratch["accuracy_test"]):
        assert figure[2] <= figure[0] <= figure[3]
    assert len(list(Path("runs/supernets").rglob("supernet.safetensors"))) == 1


def test_network_at_chance_level_is_noted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    short = ("search_space=tiny", "train.epochs=1", "train.lr=1e-9", "genotype=smallest")
    assert run(["train", *short, "run.dir=r"]) == 0
    (note,) = _summary("r")["notes"]
    assert note.startswith("Not significantly better than the majority class, ")
    assert " on 360 validation images): " in note
    assert f"{_summary('r')['id']} (0." in note
    assert note in " ".join(capsys.readouterr().out.split())


def test_balanced_classes_are_judged_by_balanced_accuracy() -> None:
    short = ("search_space=tiny", "train.epochs=1", "genotype=smallest")
    assert run(["train", *short, "train.class_weights=balanced", "run.dir=r"]) == 0
    summary = _summary("r")
    assert {"balanced_accuracy_validation", "balanced_accuracy_test"} <= summary.keys()
    assert "accuracy_test" not in summary


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.batch_size=5000"], "larger than the training split of 1077 images"),
        (["search_space=mbconv_exits"], "train one network from scratch (train genotype=largest)"),
        (["train.batch_size=1"], "train.batch_size must be a whole number in [2, "),
        (["train.optimiser=adam"], "Did you mean 'adamw'?"),
        (["train.epoch=3"], "Did you mean 'train.epochs'"),
        (["train.device=cudda"], "train.device=cudda cannot be used here"),
        (["train.from_supernet=true"], "choose it, as genotype=largest"),
        (["train.fine_tuning_epochs=9"], "no effect without train.from_supernet=true"),
        (["genotype=bigest"], "Allowed: smallest, largest"),
        (['genotype={"resolution": 8'], "not JSON"),
        (['genotype={"resolution": 9}'], "choice 'resolution' is 9; allowed: 8, 12"),
        (["+target=npu"], "target"),
        (["run.resume=nowhere"], "no such folder"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert message in _error_line(capsys, *last_of("train", "search_space=tiny", *arguments))
    assert not Path("runs/supernets").exists()


@pytest.mark.slow
def test_checkpoint_of_other_training_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for lr in ("0.1", "0.2"):
        assert run(["train", *TINY, f"train.lr={lr}", f"run.dir=r{lr}"]) == 0
        paths.append(Path(_summary(f"r{lr}")["checkpoint"]))
    paths[1].write_bytes(paths[0].read_bytes())
    capsys.readouterr()
    line = _error_line(capsys, "train", *TINY, "train.lr=0.2")
    assert f"Checkpoint {paths[1]} has another train.lr: 0.1 instead of 0.2." in line
    paths[1].write_bytes(paths[0].read_bytes()[:5000])
    assert "cannot be read" in _error_line(capsys, "train", *TINY, "train.lr=0.2")


@pytest.mark.slow
def test_resumed_run_keeps_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *TINY, "run.dir=r"]) == 0
    assert run(["train", "run.resume=r"]) == 0
    assert len(Path("r/log.csv").read_text().splitlines()) == 33
    capsys.readouterr()
    assert "train.lr differs" in _error_line(capsys, "train", "run.resume=r", "train.lr=0.4")
    assert "hwnas resume r " in _error_line(capsys, "train", *TINY, "run.dir=r")


@pytest.mark.slow
def test_resumed_network_keeps_its_start(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "search_space=tiny",
        "train.epochs=1",
        "genotype=smallest",
        "train.from_supernet=true",
    )
    assert run(["train", *options, "train.fine_tuning_epochs=1", "run.dir=r"]) == 0
    before = _summary("r")
    capsys.readouterr()
    for other in ("train.fine_tuning_epochs=2", "train.from_supernet=false"):
        line = _error_line(capsys, "train", "run.resume=r", other)
        assert f"{other.partition('=')[0]} differs" in line
    assert _summary("r") == before


def test_int8_network_reports_precision_of_figures(
    capsys: pytest.CaptureFixture[str], tiny: SearchSpace
) -> None:
    raw = space_yaml(tiny)
    raw["fixed"] |= {"precision": "int8"}
    Path("int8.yaml").write_text(yaml.safe_dump(raw))
    assert run(["train", "search_space=int8.yaml", "train.epochs=3", *SMALLEST]) == 0
    printed = capsys.readouterr().out
    for expected in ("test split (360 images), in float32", "images), in int8 as calibrated"):
        assert expected in printed
    summary = _summary("r")
    assert summary["accuracy_validation_int8"] != summary["accuracy_validation"]
    assert summary["accuracy_test_int8"][0] == pytest.approx(summary["accuracy_test"][0], abs=0.1)


@pytest.mark.slow
def test_tensorboard_logs_are_written(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run(["train", *TINY, "train.tensorboard=true", "run.dir=r"]) == 0
    events = EventAccumulator("r/tensorboard").Reload()
    names = {"lr", "gradient_norm", "loss/largest", "loss/smallest", "accuracy/largest"}
    assert names <= set(events.Tags()["scalars"])
    assert [event.step for event in events.Scalars("accuracy/largest")] == [16, 32]


def test_missing_tensorboard_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = _error_line(capsys, "train", *TINY, "train.tensorboard=true")
    assert "pip install tensorboard" in line


@pytest.mark.slow
def test_supernet_starts_from_given_weights(capsys: pytest.CaptureFixture[str]) -> None:
    tiny = "search_space=tiny"
    assert run(["train", *TINY, "run.dir=a", "run.supernets=x"]) == 0
    weights = _summary("a")["checkpoint"]
    init_option = f"train.init_from={weights}"
    assert run(["train", tiny, init_option, "train.epochs=0", "run.dir=b", "run.supernets=y"]) == 0
    assert "Nothing was trained" in capsys.readouterr().out
    assert _summary("a")["accuracy_random"] == _summary("b")["accuracy_random"]
    assert run(["train", *TINY, init_option, "run.dir=c", "run.supernets=y"]) == 0
    assert _summary("c")["accuracy_random"] != _summary("a")["accuracy_random"]
    assert _summary("c")["checkpoint"] != weights
    capsys.readouterr()
    other = _error_line(capsys, "train", "search_space=mbconv_small", init_option)
    assert "does not fit the network of search_space=mbconv_small: " in other
    assert "weights are missing" in other
    state, ends = load_file(weights), ("model.classifier.", "model.headless.")
    classifier_rows = {
        name: w[:4].contiguous() for name, w in state.items() if name.startswith(ends)
    }
    save_file(state | classifier_rows, "four.safetensors")
    four = "train.init_from=four.safetensors"
    assert "has a classifier with another number" in _error_line(
        capsys, "train", tiny, four, "train.epochs=0"
    )
    assert "give trained weights with train.init_from=FILE" in _error_line(
        capsys, "train", tiny, "train.epochs=0"
    )


@pytest.mark.parametrize(
    "verb", [["train", "genotype=smallest"], ["search", "+target=npu", "accuracy=trained"]]
)
def test_single_network_rejects_supernet_weights(
    capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    line = _error_line(
        capsys, *verb, "search_space=tiny", "train.init_from=x.pth", "train.epochs=0"
    )
    assert "train.init_from=x.pth has weights of a supernet" in line
    assert not list(Path().glob("runs/*/*"))


@pytest.mark.parametrize("verb", [["train"], ["search", "+target=npu", "accuracy=supernet"]])
def test_missing_weights_are_reported_before_output(
    capsys: pytest.CaptureFixture[str], verb: list[str]
) -> None:
    line = _error_line(capsys, *verb, "search_space=tiny", "train.init_from=missing.pth")
    assert "train.init_from=missing.pth: file not found" in line
    assert not list(Path().glob("runs/*/*"))
