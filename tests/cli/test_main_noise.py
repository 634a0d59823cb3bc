"""Searches and profiles of images without a signal."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.__main__ import run
from hwnas.training.data.splits import StreamedSplit

NO_NETWORK = "No network is better than the majority class, 'normal'"


def _write_noise(folder: Path, **counts: int) -> Path:
    """Write grey noise images per class."""
    rng = np.random.default_rng(0)
    for name, n in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = rng.integers(0, 256, (8, 8), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.png")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["accuracy", "balanced_accuracy"])
def test_noise_gives_no_recommended_network_and_no_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str
) -> None:
    images, folder = _write_noise(tmp_path / "images", normal=57, defect=8), tmp_path / "run"
    options = [
        "dataset=images", f"dataset.path={images}", "+target=npu", "search_space=tiny",
        f"objectives=[{objective},latency_ms]", "accuracy=trained", "trained.fidelities=[1]",
        "n_trials=2", "finish.epochs=0", "study.workers=1", f"run.dir={folder}",
        f"run.supernets={tmp_path / 'networks'}",
    ]  # fmt: skip
    assert run(["search", *options]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "'normal' has 41 training images, 'defect' has 5" in output
    assert f"{NO_NETWORK} ({'balanced ' * (objective != 'accuracy')}accuracy 0." in output
    assert output.count(NO_NETWORK) == 1
    assert "Recommended" not in output
    assert "hwnas export" not in output
    front = json.loads((folder / "front.json").read_text())
    assert sorted(front["guessing"]) == sorted(row["id"] for row in front["members"])
    assert NO_NETWORK in (folder / "report.html").read_text().replace("&#x27;", "'")
    assert run(["why", str(folder)]) == 0
    assert NO_NETWORK in capsys.readouterr().out
    assert run(["export", str(folder), f"dir={tmp_path / 'export'}"]) == 2
    message = capsys.readouterr().err
    assert f"{NO_NETWORK[0].lower()}{NO_NETWORK[1:]}" in message
    assert message.strip().endswith("force=true.")
    assert not (tmp_path / "export").exists()
    assert run(["export", str(folder), f"dir={tmp_path / 'export'}", "force=true"]) == 0
    (card,) = (tmp_path / "export").glob("*/MODEL_CARD.md")
    assert "the network is **not** significantly better" in " ".join(card.read_text().split())


def test_profile_decodes_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = _write_noise(tmp_path / "images", normal=12, defect=12)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(StreamedSplit, "in_memory", None)
    options = [f"dataset.path={images}", "search_space=tiny"]
    given = ["+target=npu", "dataset=images", "genotype=smallest", *options]
    assert run(["profile", *given]) == 0
