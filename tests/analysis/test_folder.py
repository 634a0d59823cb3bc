"""Points that a comparison reads from run folders."""

from collections.abc import Mapping
from pathlib import Path

from hwnas.analysis import run_fronts
from hwnas.analysis.fronts import ComparedRun
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row, RunFolder
from hwnas.hardware.derived_metrics import RATIOS
from hwnas.models.spaces import Genotype

FAST, SLOWER = (Genotype("s", (("size", size),)) for size in (1, 2))
CONFIG = {
    "search_space": "s", "seed": 0, "n_trials": 2, "budget": {}, "sampler": {"name": "tpe"},
    "target": {"name": "a"}, "dataset": {"name": "digits"}, "cost": "measured",
}  # fmt: skip


def _columns(*names: str) -> Row:
    """Return columns of figures with the value 0.5."""
    return {n: v for name in names for n, v in Quantity(0.5, "measured").columns(name).items()}


def _ratios(genotype: Genotype) -> dict[str, float]:
    ratio = 0.8 if genotype is FAST else 1.0
    return dict(zip(RATIOS, (ratio, ratio - 0.1, ratio + 0.1), strict=True))


def _write(
    path: Path, objectives: list[str], more: Mapping[Genotype, Row], **manifest_entries: object
) -> None:
    """Write the files of a finished search of two networks, without its study."""
    run, candidates, members = RunFolder(path), [], []
    for trial, genotype in enumerate((FAST, SLOWER)):
        identity = {"trial": trial, "id": genotype.id, "state": "complete", "reason": ""}
        row = {**identity, **genotype.to_dict(), **_columns(*objectives)}
        candidates.append(row)
        stays = {"verified_fits_budget": True, "verified_on_front": genotype is FAST}
        members.append({**row, **stays, **more[genotype]})
    run.write_parquet("candidates.parquet", candidates)
    directions = {name: "max" if name == "accuracy" else "min" for name in objectives}
    run.write_json("front.json", {"objectives": directions, "members": members})
    manifest = {
        "format": 2,
        "verb": "search",
        "status": "finished",
        "arguments": [],
        "objectives": objectives,
    }
    run.write_json("manifest.json", {**manifest, "config": CONFIG, **manifest_entries})


def test_verified_points_exclude_int8_slower_than_float32(tmp_path: Path) -> None:
    more = {
        genotype: _columns("verified_accuracy_int8", "verified_latency_ms")
        | {f"verified_{name}": ratio for name, ratio in _ratios(genotype).items()}
        for genotype in (FAST, SLOWER)
    }
    _write(tmp_path, ["accuracy", "latency_ms"], more)
    run = run_fronts.read_run_folder(tmp_path)
    assert len(run.members) == len(run.scored) == 2
    assert [point.id for point in run.verified or ()] == [FAST.id]


def test_joint_points_exclude_int8_slower_on_one_target(tmp_path: Path) -> None:
    names = [f"verified_{t}.{name}" for t in "ab" for name in ("accuracy_int8", "latency_ms")]
    more = {genotype: _columns(*names) for genotype in (FAST, SLOWER)}
    targets = {t: {"config": CONFIG | {"target": {"name": t}}} for t in "ab"}
    _write(tmp_path, ["accuracy", "a.latency_ms", "b.latency_ms"], more, targets=targets)
    for genotype in (FAST, SLOWER):
        record = {"genotype": genotype.to_dict(), "figures": {}, "files": {}}
        content = {**record, "details": _ratios(genotype)}
        (tmp_path / "b" / "models").mkdir(parents=True, exist_ok=True)
        RunFolder(tmp_path / "b").write_json(f"models/{genotype.id}.json", content)
    run = run_fronts.read_run_folder(tmp_path)
    assert len(run.scored) == 2
    assert [point.id for point in run.verified or ()] == [FAST.id]


def test_folder_and_file_of_the_same_name_are_different_runs() -> None:
    runs = [ComparedRun("a", {}, [], path=path) for path in ("runs/a", "runs/a.csv")]
    assert [run.name for run in run_fronts.named(runs)] == ["a", "a.csv"]
