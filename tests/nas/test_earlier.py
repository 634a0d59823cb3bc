"""Earlier searches used by ``start_from`` and ``front_of``."""

import shutil
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
from hwnas.nas import earlier
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


def _write_run(path: Path, file: Path, space: SearchSpace, costs: Sequence[str]) -> list[Candidate]:
    """Write the run folder of a search of three networks, with its study in a file."""
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
    target_configs = {target: {"config": _config(target, None)} for target in "ab"}
    if costs is OF_BOTH:
        manifest |= {"objectives": objectives, "targets": target_configs}
        part = {**manifest, **target_configs["b"], "part_of": ".."}
        run.write_json("b/manifest.json", {n: v for n, v in part.items() if n != "targets"})
    run.write_json("manifest.json", manifest)
    membership = Membership(StudyConfig(), database.sqlite_url(file), "hwnas", objectives, {})
    study, sampler = SharedStudy(membership, space), RandomSampler(seed=0)
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


def _start_ids(path: Path, space: SearchSpace, folder: Path | None = None) -> list[str]:
    """Return the first genotypes of a search in ``folder`` that starts from another one."""
    supernets = str(path.parent / "supernets")
    run = SimpleNamespace(dir=None if folder is None else str(folder), supernets=supernets)
    config: Any = SimpleNamespace(start_from=str(path), study=StudyConfig(), run=run)
    networks: Any = SimpleNamespace(space=space)
    none: Any = None
    parts = SearchComponents(config, networks, none)
    parts.keep_first()
    return [genotype.id for genotype in parts.first]


def _candidates_near(
    path: Path, space: SearchSpace, target: str, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, float]]:
    """Return the candidates for a kit near a search: ids with latencies."""
    known: list[Candidate] = []
    config: Any = SimpleNamespace(front_of=path, n=4, target=SimpleNamespace(name=target))
    parts: Any = SimpleNamespace(space=space, lower=None)
    monkeypatch.setattr("hwnas.hardware.backends.offline.backend.load_device", lambda target: None)
    monkeypatch.setattr(
        profile_kit, "next_to_measure", lambda device, candidates, *_: known.extend(candidates)
    )
    profile_kit._next_networks(config, parts)
    return [(candidate.id, candidate.figures["latency_ms"].value) for candidate in known]


@pytest.mark.parametrize("is_there", [True, False])
def test_search_starts_from_run_in_database(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_there: bool
) -> None:
    known = _write_run(tmp_path / "run", tmp_path / "shared.db", tiny, MS)
    if not is_there:
        (tmp_path / "shared.db").unlink()
    ids = [candidate.id for candidate in known]
    assert _start_ids(tmp_path / "run", tiny) == ids
    near = _candidates_near(tmp_path / "run", tiny, "c", monkeypatch)
    assert near == [(name, i + 1.0) for i, name in enumerate(ids)]
    assert (tmp_path / "shared.db").exists() == is_there, "created by reading"


def test_search_starts_from_run_for_several_targets(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    known = _write_run(run, run / "study.db", tiny, OF_BOTH)
    ids = [c.id for c in known]
    near = [(name, i + 1.0) for i, name in enumerate(ids)]
    for path in (run, run / "b"):
        assert _start_ids(path, tiny) == ids
        assert _candidates_near(path, tiny, "b", monkeypatch) == near
    figures = {name: Quantity(9.0, "modelled") for name in ("accuracy", *MS)}
    estimated = Candidate(0, known[0].genotype, figures)
    RunFolder(run / "b").write_parquet("candidates.parquet", [estimated.row(tiny, "accuracy")])
    assert _candidates_near(run / "b", tiny, "b", monkeypatch) == [(ids[0], 9.0)], (
        "as the search used them"
    )
    with pytest.raises(
        RunError, match=r"front_of=.*run: .* for the targets a, b, not for c. .* front_of=.*run/a"
    ):
        _candidates_near(run, tiny, "c", monkeypatch)


def test_incomplete_earlier_search_is_refused(
    tiny: SearchSpace, small: SearchSpace, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    _write_run(run, run / "study.db", tiny, MS)
    with pytest.raises(
        SpaceError, match="is of search space 'tiny', but search_space is mbconv_small"
    ):
        _start_ids(run, small)
    text = (run / "manifest.json").read_text()
    edit(run, "status", "running")
    assert len(_start_ids(run, tiny)) == 3
    (run / "study.db").unlink()
    with pytest.raises(
        RunError, match=r"start_from=.*: .* not finished, .*Restore .* hwnas resume "
    ):
        _start_ids(run, tiny)
    with pytest.raises(RunError, match=r"from a backup, or start a new search\.$"):
        check_resumable(Run.load(run, "run.resume"), StudyConfig())
    (run / "manifest.json").write_text(text)
    with pytest.raises(RunError, match=rf"from a backup, or .* start_from={run}$"):
        check_resumable(Run.load(run, "run.resume"), StudyConfig())
    assert len(_start_ids(run, tiny)) == 3


def test_resumed_search_has_its_first_networks_in_its_folder(
    tiny: SearchSpace, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ids = [c.id for c in _write_run(run, run / "study.db", tiny, MS)]
    assert _start_ids(run, tiny, tmp_path / "next") == ids
    shutil.rmtree(run)
    assert _start_ids(run, tiny, tmp_path / "next") == ids
    with pytest.raises(RunError, match="no such folder"):
        _start_ids(run, tiny, tmp_path / "another")


def test_note_on_search_with_other_data(tiny: SearchSpace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _write_run(run, run / "study.db", tiny, MS)
    edit(run, "digests", {"data": "one"})
    before = Run.load(run, "start_from")
    assert not earlier.note_on_data(before, "one")
    (note,) = earlier.note_on_data(before, "other")
    assert "had other data" in note


def test_another_study_is_not_resumed(tiny: SearchSpace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _write_run(run, run / "study.db", tiny, MS)
    url = "sqlite:////tmp/other.db"
    with pytest.raises(RunError, match=r"in this folder, not in a database"):
        check_resumable(Run.load(run, "run.resume", url), StudyConfig(storage=url))
    shared = tmp_path / "shared"
    _write_run(shared, tmp_path / "shared.db", tiny, MS)
    url = database.sqlite_url(tmp_path / "shared.db")
    check_resumable(Run.load(shared, "run.resume", url), StudyConfig(url, "hwnas"))
    with pytest.raises(RunError, match=r"in the study 'hwnas', not in 'new'"):
        check_resumable(Run.load(shared, "run.resume", url), StudyConfig(url, "new"))


def _write_posteriors(path: Path, space: SearchSpace, observed: Sequence[Candidate]) -> None:
    """Write the final candidates: estimated accuracies beside the observed ones."""
    rows = []
    for candidate in observed:
        figures = {**candidate.figures, "accuracy": Quantity(9.0, "modelled", 8.0, 10.0)}
        details = {"accuracy_read": candidate.figures["accuracy"].value}
        rows.append(replace(candidate, figures=figures, details=details).row(space, "accuracy"))
    RunFolder(path).write_parquet("candidates.parquet", rows)


def _accuracies(run: ComparedRun) -> list[Quantity]:
    return [point.figures["accuracy"] for point in run.scored]


def test_finished_search_keeps_observed_accuracies(tiny: SearchSpace, tmp_path: Path) -> None:
    run, box = tmp_path / "run", spanned(np.array([[1.0, 1.0], [3.0, 3.0]]), PAIR)
    known = _write_run(run, run / "study.db", tiny, MS)
    observed = [candidate.figures["accuracy"] for candidate in known]
    _write_posteriors(run, tiny, known)
    finished, text = run_fronts.read_run_folder(run), (run / "manifest.json").read_text()
    edit(run, "status", "running")
    running = run_fronts.read_run_folder(run)
    assert _accuracies(finished) == _accuracies(running) == observed
    assert tables.convergence([finished], box, PAIR) == tables.convergence([running], box, PAIR)
    assert {c.figures["accuracy"].value for c in finished.candidates} == {9.0}
    (run / "manifest.json").write_text(text)
    (run / "study.db").unlink()
    without = run_fronts.read_run_folder(run)
    assert _accuracies(without) == [Quantity(figure.value, "modelled") for figure in observed]
    assert without.notes[-1] == "accuracy before fine-tuning has no intervals in candidates.parquet"


def test_target_of_search_keeps_observed_accuracies(tiny: SearchSpace, tmp_path: Path) -> None:
    known = _write_run(tmp_path, tmp_path / "study.db", tiny, OF_BOTH)
    plain = [
        replace(c, figures={n: c.figures["accuracy"] for n in ("accuracy", *MS)}) for c in known
    ]
    _write_posteriors(tmp_path / "b", tiny, plain)
    compared = run_fronts.read_run_folder(tmp_path / "b")
    assert _accuracies(compared) == [c.figures["accuracy"] for c in known]
    assert {c.figures["accuracy"].value for c in compared.candidates} == {9.0}


def test_weights_of_earlier_search_are_found_after_a_move(
    tiny: SearchSpace, tmp_path: Path
) -> None:
    run, supernets = tmp_path / "run", tmp_path / "supernets"
    _write_run(run, run / "study.db", tiny, MS)
    for name in ("a", "b"):
        (run / "weights" / name).mkdir(parents=True)
        (run / "weights" / name / "network.safetensors").write_text(f"earlier {name}")
    (supernets / "b").mkdir(parents=True)
    (supernets / "b" / "network.safetensors").write_text("own")
    _start_ids(run, tiny, tmp_path / "next")
    contents = {p.parent.name: p.read_text() for p in supernets.glob("*/*")}
    assert contents == {"a": "earlier a", "b": "own"}


def test_note_on_more_networks_than_trials(tiny: SearchSpace, tmp_path: Path) -> None:
    run = tmp_path / "run"
    _write_run(run, run / "study.db", tiny, MS)
    options = SimpleNamespace(
        start_from=str(run), study=StudyConfig(), run=SimpleNamespace(dir=None), n_trials=2
    )
    networks: Any = SimpleNamespace(space=tiny)
    data: Any = SimpleNamespace(digest="a")
    config: Any = options
    (note,) = SearchComponents(config, networks, data).notes_on_first()
    assert "has 3 networks, of which the first 2 are tried" in note
    assert note.endswith("set n_trials=3.")
    options.n_trials = 3
    assert not SearchComponents(config, networks, data).notes_on_first()
