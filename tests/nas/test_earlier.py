"""Earlier searches from which another one starts, or near which a kit is written."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from optuna.samplers import RandomSampler

from hwnas.analysis import run_fronts, tables
from hwnas.analysis.fronts import ComparedRun, spanned
from hwnas.core import database
from hwnas.core.errors import RunError, SpaceError
from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row, RunFolder
from hwnas.models.spaces import SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import StudyConfig
from hwnas.nas.run import Run, check_resumable
from hwnas.nas.shared_study import Membership, SharedStudy
from hwnas.workflows import profile_kit
from hwnas.workflows.components import SearchComponents
from tests.analysis.synthetic import PAIR
from tests.core.unusable import edit

MS = ("latency_ms",)
OF_BOTH = ("a.latency_ms", "b.latency_ms")


def _config(target: str, storage: str | None) -> Row:
    return {
        "search_space": "tiny", "seed": 0, "n_trials": 3, "budget": {}, "sampler": {"name": "tpe"},
        "target": {"name": target}, "dataset": {"name": "digits"}, "cost": "measured",
        "objectives": ["accuracy", *MS], "study": {"storage": storage, "name": "hwnas"},
    }  # fmt: skip


def _searched(path: Path, file: Path, space: SearchSpace, costs: Sequence[str]) -> list[Candidate]:
    """Write what a search of three networks leaves behind, its study in a file."""
    objectives, run = ("accuracy", *costs), RunFolder(path)
    is_shared = file.parent != path
    config = _config("a", database.sqlite_url(file) if is_shared else None)
    manifest = {
        "format": 2,
        "verb": "search",
        "arguments": [],
        "status": "finished",
        "config": config,
    }
    own = {target: {"config": _config(target, None)} for target in "ab"}
    if costs is OF_BOTH:
        manifest |= {"objectives": objectives, "targets": own}
        part = {**manifest, **own["b"], "part_of": ".."}
        run.write_json("b/manifest.json", {n: v for n, v in part.items() if n != "targets"})
    run.write_json("manifest.json", manifest)
    joined = Membership(StudyConfig(), database.sqlite_url(file), "hwnas", objectives, {})
    study, sampler = SharedStudy(joined, space), RandomSampler(seed=0)
    for _ in range(3):
        trial = study.ask(sampler, 3)
        assert trial is not None
        x = trial.number + 1.0
        figures = {name: Quantity(x, "measured", x - 0.5, x + 0.5) for name in objectives}
        candidate = Candidate(trial.number, space.genotype(trial.params), figures)
        study.tell(trial, candidate, {})
    study.close()
    run.write_parquet("candidates.parquet", [c.row(space, "accuracy") for c in study.candidates])
    return study.candidates


def _first(path: Path, space: SearchSpace) -> list[str]:
    config: Any = SimpleNamespace(start_from=str(path), study=StudyConfig())
    networks: Any = SimpleNamespace(space=space)
    none: Any = None
    return [genotype.id for genotype in SearchComponents(config, networks, none).first]


def _near(
    path: Path, space: SearchSpace, target: str, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, float]]:
    """Return what a kit near a search is chosen from: ids with their latency."""
    known: list[Candidate] = []
    config: Any = SimpleNamespace(front_of=path, n=4, target=SimpleNamespace(name=target))
    parts: Any = SimpleNamespace(space=space, lower=None)
    monkeypatch.setattr("hwnas.hardware.backends.offline.backend.load_device", lambda target: None)
    monkeypatch.setattr(
        profile_kit, "next_to_measure", lambda device, found, *_: known.extend(found)
    )
    profile_kit._next(config, parts)
    return [(candidate.id, candidate.figures["latency_ms"].value) for candidate in known]


@pytest.mark.parametrize("is_there", [True, False])
def test_search_in_a_database_is_started_from(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    known = _searched(tmp_path / "run", tmp_path / "shared.db", tiny, MS)
    if not is_there:
        (tmp_path / "shared.db").unlink()
    ids = [candidate.id for candidate in known]
    assert _first(tmp_path / "run", tiny) == ids
    near = _near(tmp_path / "run", tiny, "c", monkeypatch)
    assert near == [(name, i + 1.0) for i, name in enumerate(ids)]
    assert (tmp_path / "shared.db").exists() == is_there, "made by reading"


def test_search_for_several_targets_is_started_from(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    seen = _searched(run, run / "study.db", tiny, OF_BOTH)
    ids = [c.id for c in seen]
    near = [(name, i + 1.0) for i, name in enumerate(ids)]
    for path in (run, run / "b"):
        assert _first(path, tiny) == ids
        assert _near(path, tiny, "b", monkeypatch) == near
    figures = {name: Quantity(9.0, "modelled") for name in ("accuracy", *MS)}
    believed = Candidate(0, seen[0].genotype, figures)
    RunFolder(run / "b").write_parquet("candidates.parquet", [believed.row(tiny, "accuracy")])
    assert _near(run / "b", tiny, "b", monkeypatch) == [(ids[0], 9.0)], "as the search went by"
    with pytest.raises(
        RunError, match=r"front_of=.*run: .* for the targets a, b, not for c. .* front_of=.*run/a"
    ):
        _near(run, tiny, "c", monkeypatch)


def test_earlier_search_of_which_trials_may_lack_is_refused(
    tiny: SearchSpace, small: SearchSpace, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _searched(run, run / "study.db", tiny, MS)
    with pytest.raises(
        SpaceError, match="is of search space 'tiny', but this search uses mbconv_small"
    ):
        _first(run, small)
    text = (run / "manifest.json").read_text()
    edit(run, "status", "running")
    assert len(_first(run, tiny)) == 3
    (run / "study.db").unlink()
    with pytest.raises(RunError, match=r"start_from=.*: .* not finished, .*Restore .* run.resume="):
        _first(run, tiny)
    with pytest.raises(RunError, match=r"from a backup, or start a new search\.$"):
        check_resumable(Run.load(run, "run.resume"))
    (run / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=rf"from a backup, or .* start_from={run}$"):
        check_resumable(Run.load(run, "run.resume"))
    assert len(_first(run, tiny)) == 3


def _believe(path: Path, space: SearchSpace, read: Sequence[Candidate]) -> None:
    """Write what the end of a search leaves: another accuracy, beside what was read."""
    rows = []
    for candidate in read:
        figures = {**candidate.figures, "accuracy": Quantity(9.0, "modelled", 8.0, 10.0)}
        told = {"accuracy_read": candidate.figures["accuracy"].value}
        rows.append(replace(candidate, figures=figures, details=told).row(space, "accuracy"))
    RunFolder(path).write_parquet("candidates.parquet", rows)


def _accuracies(run: ComparedRun) -> list[Quantity]:
    return [point.figures["accuracy"] for point in run.scored]


def test_figures_as_searched_are_those_that_were_read_of_finished_searches_too(
    tiny: SearchSpace, tmp_path: Path
) -> None:
    run, box = tmp_path / "run", spanned(np.array([[1.0, 1.0], [3.0, 3.0]]), PAIR)
    known = _searched(run, run / "study.db", tiny, MS)
    read = [candidate.figures["accuracy"] for candidate in known]
    _believe(run, tiny, known)
    finished, text = run_fronts.read_run_folder(run), (run / "manifest.json").read_text()
    edit(run, "status", "running")
    going = run_fronts.read_run_folder(run)
    assert _accuracies(finished) == _accuracies(going) == read
    assert tables.convergence([finished], box, PAIR) == tables.convergence([going], box, PAIR)
    assert {c.figures["accuracy"].value for c in finished.candidates} == {9.0}
    (run / "manifest.json").write_text(text)
    (run / "study.db").unlink()
    without = run_fronts.read_run_folder(run)
    assert _accuracies(without) == [Quantity(figure.value, "modelled") for figure in read]
    assert without.notes[-1] == "accuracy as observed has no intervals in candidates.parquet"


def test_figures_as_searched_of_one_of_several_targets_are_those_that_were_read(
    tiny: SearchSpace, tmp_path: Path
) -> None:
    known = _searched(tmp_path, tmp_path / "study.db", tiny, OF_BOTH)
    plain = [
        replace(c, figures={n: c.figures["accuracy"] for n in ("accuracy", *MS)}) for c in known
    ]
    _believe(tmp_path / "b", tiny, plain)
    found = run_fronts.read_run_folder(tmp_path / "b")
    assert _accuracies(found) == [c.figures["accuracy"] for c in known]
    assert {c.figures["accuracy"].value for c in found.candidates} == {9.0}
