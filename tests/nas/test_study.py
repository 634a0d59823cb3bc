import json
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.samplers import RandomSampler

from hwnas.core.errors import RunError
from hwnas.core.progress import NullProgress
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas import loop, storage, trials
from hwnas.nas.options import NAME, SamplerConfig
from hwnas.nas.study import LocalStudy, study_in_file
from hwnas.nas.trial_attributes import STD
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.metrics.budget import Budget
from tests.nas.fakes import SizeAccuracy, SizeCost

OBJECTIVES = ("accuracy", "latency_ms")
_SPACE_ROW = "WHERE key = 'space'"


def _search(space: SearchSpace, path: Path, name: str, n_trials: int) -> LocalStudy:
    problem = loop.SearchProblem(space, Budget(), SizeCost(), SizeAccuracy())
    opened = LocalStudy(path, space, OBJECTIVES)
    loop.run_trials(problem, opened, SamplerConfig(name, 10, 12), 0, n_trials, NullProgress())
    return opened


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phases"),
    [
        ("pareto", ["startup"] * 12 + ["gain"] * 8),
        ("nsga2", ["ladder"] * 9 + ["generation"] * 11),
        ("tpe", ["ladder"] * 9 + ["sampler"] * 11),
    ],
)
def test_study_file_has_candidates_and_proposals(
    tiny: SearchSpace, tmp_path: Path, name: str, phases: list[str]
) -> None:
    folder = tmp_path / "a #name"
    folder.mkdir()
    study = _search(tiny, folder / "study.db", name, 20)
    while_open = study_in_file(folder / "study.db").read()
    study.close()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    record = study_in_file(folder / "study.db").read()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert record == while_open
    assert list(record.objectives) == list(OBJECTIVES)
    assert record.candidates == study.candidates
    outline = study_in_file(folder / "study.db").summary()
    assert (outline.objectives, outline.seconds) == (record.objectives, record.seconds)
    assert outline.space == tiny
    assert [record.proposals[number].phase for number in range(20)] == phases


def test_trials_have_std_of_accuracy(tiny: SearchSpace, tmp_path: Path) -> None:
    study = _search(tiny, tmp_path / "study.db", "pareto", 4)
    study.close()
    file = storage.open_file(tmp_path / "study.db")
    stored_trials = optuna.load_study(study_name=NAME, storage=file).trials
    file.engine.dispose()
    stds = [c.figures["accuracy"].std for c in study.candidates]
    assert [trial.system_attrs[STD] for trial in stored_trials] == stds
    assert min(stds) > 0.001


class _Slow(SizeAccuracy):
    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        time.sleep(0.05)
        return super().score(genotype, incumbent)


def test_time_of_killed_trials_counts_once_one_is_scored(
    tiny: SearchSpace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.nas.study.SAVE_INTERVAL_S", 0.01)
    cut_off_s = [0.0]
    for _ in range(2):
        killed = LocalStudy(tmp_path / "study.db", tiny, OBJECTIVES)
        killed.ask(RandomSampler(seed=0), 3)
        time.sleep(0.1)
        killed.close()  # its trial has no result
        study = LocalStudy(tmp_path / "study.db", tiny, OBJECTIVES)
        assert study.spent_s == 0
        study.close()
        cut_off_s.append(study._cut_off_s)
    assert 0.05 < cut_off_s[1] < cut_off_s[2] - 0.05
    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), _Slow())
    for n_trials in (1, 2):  # their duration counts, too
        study = LocalStudy(tmp_path / "study.db", tiny, OBJECTIVES)
        loop.run_trials(problem, study, SamplerConfig("random"), 0, n_trials, NullProgress())
        trials_s = trials.spent_s(study._memory.trials, OBJECTIVES)
        assert trials_s >= 0.05 * n_trials
        assert study.spent_s == pytest.approx(cut_off_s[2] + trials_s)
        study.close()


def test_conditions_round_trip_and_old_files_have_none(tiny: SearchSpace, tmp_path: Path) -> None:
    space = replace(tiny, when={"expansion": {"kernel": (3,)}})
    study = _search(space, tmp_path / "study.db", "pareto", 20)
    study.close()
    stored = study_in_file(tmp_path / "study.db")
    assert stored.summary().space == space
    assert stored.read().candidates == study.candidates
    with sqlite3.connect(tmp_path / "study.db") as file:
        ((raw,),) = file.execute(f"SELECT value_json FROM study_user_attributes {_SPACE_ROW}")
        earlier = {key: value for key, value in json.loads(raw).items() if key != "when"}
        file.execute(
            f"UPDATE study_user_attributes SET value_json = ? {_SPACE_ROW}", [json.dumps(earlier)]
        )
    assert study_in_file(tmp_path / "study.db").summary().space == tiny


def test_file_without_trials_or_study_is_refused(tiny: SearchSpace, tmp_path: Path) -> None:
    LocalStudy(tmp_path / "none.db", tiny, OBJECTIVES).close()
    with pytest.raises(RunError, match="no finished trial yet"):
        study_in_file(tmp_path / "none.db").read()
    for content in (b"", b"not a database at all" * 100):
        (tmp_path / "no.db").write_bytes(content)
        with pytest.raises(RunError, match="cannot be read"):
            study_in_file(tmp_path / "no.db").read()
        with pytest.raises(RunError, match="cannot be read"):
            study_in_file(tmp_path / "no.db").summary()
