"""Several processes on one study: no trial is lost or duplicated after failures."""

import contextlib
import math
import multiprocessing
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest
from optuna.samplers import RandomSampler
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from hwnas.core.errors import ConfigError, RunError
from hwnas.core.progress import NullProgress
from hwnas.core.run_folder import RunFolder
from hwnas.models.spaces import SearchSpace
from hwnas.nas import engine, loop, trials
from hwnas.nas.candidates import Candidate
from hwnas.nas.loop import initial_assignments
from hwnas.nas.options import SamplerConfig, StudyConfig
from hwnas.nas.pareto.sampler import ParetoSampler
from hwnas.nas.samplers import RunSampler
from hwnas.nas.shared_study import Membership, SharedStudy
from hwnas.nas.storage import DatabaseRetry, is_shared
from hwnas.nas.study import LocalStudy
from hwnas.tasks.metrics.budget import Budget
from tests.conftest import few_of
from tests.nas.fakes import SizeAccuracy, SizeCost
from tests.nas.postgresql import Server

OBJECTIVES = ("accuracy", "latency_ms")
CONFIG = StudyConfig(heartbeat_timeout_s=1, reconnect_timeout_s=30)
IMPATIENT = StudyConfig(heartbeat_timeout_s=1, reconnect_timeout_s=1)
DIGESTS = {"search_space": "a", "seed": "b"}


@pytest.fixture(params=few_of(["sqlite", "postgresql"], 1))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'shared.db'}"
    server: Server = request.getfixturevalue("postgresql")
    return server.new()


@pytest.fixture
def membership(url: str) -> Membership:
    return Membership(CONFIG, url, "hwnas", OBJECTIVES, DIGESTS)


@pytest.fixture
def studies(membership: Membership, tiny: SearchSpace) -> Iterator[list[SharedStudy]]:
    results = [SharedStudy(replace(membership, worker=name), tiny) for name in "ab"]
    yield results
    for study in results:
        study.close()


def _evaluate_trial(study: SharedStudy, trial: optuna.Trial, space: SearchSpace) -> None:
    problem = loop.SearchProblem(space, Budget(), SizeCost(), SizeAccuracy())
    genotype = space.genotype(trial.params)
    figures = {"accuracy": problem.evaluator.score(genotype).figure}
    figures |= problem.cost_model.cost(genotype).figures
    study.tell(trial, Candidate(trial.number, genotype, figures), {})


def test_workers_share_trials(studies: list[SharedStudy], tiny: SearchSpace) -> None:
    a, b = studies
    sampler = RandomSampler(seed=0)
    first, second = a.ask(sampler, 2), b.ask(sampler, 2)
    assert first is not None
    assert second is not None
    assert {first.number, second.number} == {0, 1}
    _evaluate_trial(a, first, tiny)
    _evaluate_trial(b, second, tiny)
    assert a.ask(sampler, 2) is None
    assert b.ask(sampler, 2) is None
    assert [c.trial for c in a.candidates] == [c.trial for c in b.candidates] == [0, 1]
    assert a.candidates == b.candidates
    assert a.workers() == ["a", "b"]


def test_trial_of_dead_worker_is_retried_once(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    sampler = RandomSampler(seed=0)
    dead = a.ask(sampler, 3)
    assert dead is not None
    a._stop_heartbeat()  # it sends no more heartbeats
    while (trial := b.ask(sampler, 3)) is not None:
        _evaluate_trial(b, trial, tiny)
    assert [c.trial for c in b.candidates] == [1, 2, 3]
    # Its number depends on when the missing heartbeat was noticed.
    (retried,) = [t for t in b._study.trials if "retry_history" in t.system_attrs]
    assert retried.params == dead.params
    assert retried.system_attrs["retry_history"] == [0]
    _evaluate_trial(a, dead, tiny)  # the worker was slow, not dead: its result is too late
    assert a.candidates == b.candidates
    assert a._study.trials[0].state == TrialState.FAIL


@pytest.mark.slow
def test_worker_without_first_heartbeat_is_replaced(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    with pytest.warns(UserWarning, match="Heartbeat"):
        dead = a._study.ask(a.distributions)  # a worker that dies after asking
    assert dead.number == 0
    while (trial := b.ask(RandomSampler(seed=0), 2)) is not None:
        _evaluate_trial(b, trial, tiny)
    assert len(b.candidates) == 2
    assert all(c.trial > 0 for c in b.candidates)


def test_interrupted_worker_returns_its_trial(
    membership: Membership, studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    patient = replace(membership, config=StudyConfig(heartbeat_timeout_s=600))
    a, b = SharedStudy(patient, tiny), SharedStudy(patient, tiny)
    sampler = RandomSampler(seed=0)
    trial = a.ask(sampler, 1)
    assert trial is not None
    a.close()
    retried = b.ask(sampler, 1)
    assert retried is not None
    assert retried.params == trial.params
    _evaluate_trial(b, retried, tiny)
    b.close()
    assert len(b.candidates) == 1


def test_interrupted_trial_lasts_until_last_heartbeat(
    studies: list[SharedStudy], tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatabaseRetry, "beat_s", 0.02)
    a, b = studies
    sampler, start = RandomSampler(seed=0), time.monotonic()
    assert a.ask(sampler, 3) is not None
    time.sleep(0.3)
    a._stop_heartbeat()
    lived_s = time.monotonic() - start
    time.sleep(0.5)  # for example, the machine is off
    b.take_over()
    assert b._study.trials[0].state == TrialState.FAIL
    assert b.spent_s == 0  # as nothing is scored yet
    start = time.monotonic()
    trial = b.ask(sampler, 3)
    assert trial is not None
    _evaluate_trial(b, trial, tiny)
    trial_s = trials.spent_s(b._study.trials, OBJECTIVES)
    assert trial_s + 0.2 < b.spent_s < lived_s + time.monotonic() - start


def test_elapsed_time_is_wall_clock_of_all_processes(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    sampler, start = RandomSampler(seed=0), time.monotonic()
    running = [study.ask(sampler, 2) for study in studies]
    time.sleep(0.3)
    for study, trial in zip(studies, running, strict=True):
        assert trial is not None
        _evaluate_trial(study, trial, tiny)
    assert 0.3 <= studies[0].spent_s <= time.monotonic() - start


def test_interrupted_initial_trials_are_retried(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    first = initial_assignments(tiny)[:5]
    sampler = RunSampler(SamplerConfig("random"), 0, a.distributions, ParetoSampler(), first)
    interrupted = a.ask(sampler, 1)
    assert interrupted is not None
    b._study.sampler = sampler
    assert b._next_trial(1) is None  # a concurrent process: its trial is surplus
    a._stop_heartbeat()
    b.take_over()
    while (trial := b.ask(sampler, len(first))) is not None:
        _evaluate_trial(b, trial, tiny)
    ids = [tiny.genotype(assignment).id for assignment in first]
    assert sorted(c.id for c in b.candidates) == sorted(ids)


def test_running_trial_of_earlier_command_takes_no_time(
    membership: Membership, studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    assert a.ask(RandomSampler(seed=0), 3) is not None
    time.sleep(0.2)
    assert b.spent_s > 0.1
    later = SharedStudy(replace(membership, worker="c"), tiny)
    assert later.spent_s == 0
    later.close()


def test_commands_on_shared_database_have_separate_times(
    membership: Membership, tiny: SearchSpace
) -> None:
    shared = replace(membership, config=replace(CONFIG, storage="postgresql://host/name"))
    a, b = (SharedStudy(replace(shared, worker=name), tiny) for name in "ab")
    trial = a.ask(RandomSampler(seed=0), 3)
    assert trial is not None
    _evaluate_trial(a, trial, tiny)
    elapsed_s = a.spent_s
    assert elapsed_s > 0
    assert a.ask(RandomSampler(seed=0), 3) is not None  # running
    time.sleep(0.05)
    assert a.spent_s >= elapsed_s + 0.05
    assert b.spent_s == 0
    a.wait(5.0)
    longer_named = SharedStudy(replace(shared, worker="aa"), tiny)
    longer_named.wait(7.0)
    reopened = SharedStudy(replace(shared, worker="a"), tiny)
    assert reopened.waited_s == 5.0
    for study in (a, b, longer_named, reopened):
        study.close()


def test_restarted_container_is_another_command(
    membership: Membership, tmp_path: Path, tiny: SearchSpace
) -> None:
    """Its host and process id may equal those of the earlier command, which has ended."""
    config = replace(CONFIG, storage="postgresql://host/name")
    dead = Membership(config, membership.url, "hwnas", OBJECTIVES, DIGESTS)
    restarted = Membership(config, membership.url, "hwnas", OBJECTIVES, DIGESTS)
    studies = [
        SharedStudy(membership_of_study, tiny)
        for membership_of_study in (dead, replace(dead, worker="last"), restarted)
    ]
    for study in studies[:2]:
        trial = study.ask(RandomSampler(seed=0), 2)
        assert trial is not None
        _evaluate_trial(study, trial, tiny)
    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy())
    search = engine.SearchTask(
        problem, lambda: contextlib.nullcontext(problem), OBJECTIVES, DIGESTS
    )
    options: Any = SimpleNamespace(
        study=config, n_trials=2, seed=0, sampler=SamplerConfig("random")
    )
    folder = RunFolder(tmp_path)
    leaders = [
        engine.run_engine(search, options, folder, s, NullProgress()).leader for s in studies
    ]
    assert leaders == ["last", "", ""]
    for study in studies:
        study.close()


def _opened(problem: loop.SearchProblem) -> AbstractContextManager[loop.SearchProblem]:
    return contextlib.nullcontext(problem)


def test_trials_run_beside_other_work_until_it_ends(tmp_path: Path, tiny: SearchSpace) -> None:
    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy())
    search = engine.SearchTask(problem, partial(_opened, problem), OBJECTIVES, DIGESTS)
    options: Any = SimpleNamespace(
        study=replace(CONFIG, workers=2), n_trials=10**6, seed=0, sampler=SamplerConfig("random")
    )
    folder = RunFolder(tmp_path)
    with engine.more_trials(search, options, folder, math.inf) as more:
        opened = engine._open_study(search, options, folder)
        assert isinstance(opened, SharedStudy)
        while len(opened.candidates) < 3:
            time.sleep(0.1)
            opened.refresh()
    assert len(more.candidates) >= 3
    assert more.ended == []
    known = [trial.state for trial in opened._study.get_trials()]
    assert TrialState.RUNNING not in known
    assert known.count(TrialState.COMPLETE) == len(more.candidates)
    assert known.count(TrialState.WAITING) <= 1, "the interrupted trial is evaluated later"
    opened.close()


def test_preparation_counts_once_candidate_is_scored(tmp_path: Path, tiny: SearchSpace) -> None:
    """For example, the training of the supernet."""
    url, config = f"sqlite:///{tmp_path / 'shared.db'}", replace(CONFIG, workers=3)
    membership = Membership(config, url, "hwnas", OBJECTIVES, {})
    study = SharedStudy(membership, tiny)
    start = time.monotonic()
    engine.prepare(study, partial(time.sleep, 0.3))
    elapsed_s = time.monotonic() - start
    other = SharedStudy(replace(membership, worker="a process of it, or of a resumed run"), tiny)
    assert 0.3 <= other.waited_s <= elapsed_s  # counted once for three processes
    assert study.spent_s == other.spent_s == 0
    trial = study.ask(RandomSampler(seed=0), 3)
    assert trial is not None
    _evaluate_trial(study, trial, tiny)
    assert other.waited_s < min(study.spent_s, other.spent_s)
    study.close()
    other.close()


def test_interrupted_preparation_counts(
    tmp_path: Path, tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SAVE_INTERVAL_S", 0.01)
    config = replace(CONFIG, workers=3)
    membership = Membership(config, f"sqlite:///{tmp_path / 'shared.db'}", "hwnas", OBJECTIVES, {})
    study = SharedStudy(membership, tiny)

    def interrupt() -> None:
        time.sleep(0.2)
        raise KeyboardInterrupt

    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.prepare(study, interrupt)
    elapsed_s = time.monotonic() - start
    study.close()
    resumed = SharedStudy(replace(membership, worker="of the resumed run"), tiny)
    assert 0.1 < resumed.waited_s <= elapsed_s
    resumed.close()


@pytest.mark.slow
def test_long_evaluation_is_not_retried(studies: list[SharedStudy], tiny: SearchSpace) -> None:
    a, b = studies
    slow_trial = a.ask(RandomSampler(seed=0), 1)
    assert slow_trial is not None
    waiting = threading.Thread(target=b.ask, args=(RandomSampler(seed=1), 1))
    waiting.start()
    time.sleep(3.0)  # three times the heartbeat timeout
    assert waiting.is_alive()
    _evaluate_trial(a, slow_trial, tiny)
    waiting.join()
    assert [c.trial for c in b.candidates] == [0]
    assert len(b._study.trials) == 1


def _work(membership: Membership, space: SearchSpace, n_trials: int) -> None:
    study = SharedStudy(membership, space)
    problem = loop.SearchProblem(space, Budget(), SizeCost(), SizeAccuracy())
    loop.run_trials(problem, study, SamplerConfig("random"), 0, n_trials, NullProgress())
    study.close()


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_concurrent_processes_do_not_exceed_n_trials(
    membership: Membership, tiny: SearchSpace
) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_work, args=(membership, tiny, 13)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    study = SharedStudy(membership, tiny)
    assert len(study.candidates) == 13
    finished = [t for t in study._study.trials if t.state == TrialState.COMPLETE]
    assert len(finished) == 13
    study.close()


def test_study_may_be_initialised_while_it_is_joined(
    membership: Membership, tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = DatabaseRetry(membership.url, membership.config, lambda *_: None)
    trials.create(connection.storage, membership.name, tiny, membership.objectives)
    read, others = optuna.Study.user_attrs.__get__, list[SharedStudy]()

    def attributes(study: optuna.Study) -> dict[str, Any]:
        """Read empty attributes; then another process sets them and starts a trial."""
        values: dict[str, Any] = read(study)
        if not others:
            monkeypatch.undo()
            others.append(SharedStudy(membership, tiny))
            assert others[0].ask(RandomSampler(seed=0), 1) is not None
        return values

    monkeypatch.setattr(optuna.Study, "user_attrs", property(attributes))
    SharedStudy(membership, tiny).close()
    connection.close()
    (other,) = others
    other.close()


def test_study_of_another_search_is_refused(
    studies: list[SharedStudy], membership: Membership, tiny: SearchSpace
) -> None:
    with pytest.raises(RunError, match=r"of another search: seed differ.*study\.name=NAME"):
        SharedStudy(replace(membership, digests={**DIGESTS, "seed": "c"}), tiny)
    other = replace(membership, digests={**DIGESTS, "seed": "c"}, name="other")
    SharedStudy(other, tiny).close()


def test_foreign_study_is_refused_unchanged(membership: Membership, tiny: SearchSpace) -> None:
    storage = RDBStorage(membership.url)
    foreign = optuna.create_study(storage=storage, study_name="hwnas")
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    storage.engine.dispose()
    with pytest.raises(RunError, match="of another search"):
        SharedStudy(membership, tiny)
    storage = RDBStorage(membership.url)
    unchanged = optuna.load_study(storage=storage, study_name="hwnas")
    assert unchanged.metric_names is None
    assert unchanged.user_attrs == {}
    storage.engine.dispose()


@pytest.mark.slow
def test_restarted_database_is_reconnected(postgresql: Server, tiny: SearchSpace) -> None:
    config = StudyConfig(reconnect_timeout_s=60)
    study = SharedStudy(Membership(config, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    postgresql.stop()
    timer = threading.Timer(3.0, postgresql.start)
    timer.start()
    _evaluate_trial(study, trial, tiny)
    timer.join()
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    _evaluate_trial(study, trial, tiny)
    assert [c.trial for c in study.candidates] == [0, 1]
    study.close()


def test_stopped_database_is_reported_in_one_line(postgresql: Server, tiny: SearchSpace) -> None:
    study = SharedStudy(Membership(IMPATIENT, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    postgresql.stop()
    try:
        with pytest.raises(RunError, match=r"does not answer: .*repeat the command"):
            _evaluate_trial(study, trial, tiny)
        study.close()
    finally:
        postgresql.start()


@pytest.mark.slow
def test_frozen_database_times_out(postgresql: Server, tiny: SearchSpace) -> None:
    config = StudyConfig(reconnect_timeout_s=3)
    study = SharedStudy(Membership(config, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    start = time.monotonic()
    with postgresql.frozen():
        with pytest.raises(RunError, match=r"does not answer: .*repeat the command"):
            _evaluate_trial(study, trial, tiny)
        study.close()
    assert time.monotonic() - start < 30


@pytest.mark.slow
def test_briefly_frozen_database_is_reconnected(postgresql: Server, tiny: SearchSpace) -> None:
    config = StudyConfig(reconnect_timeout_s=30)
    study = SharedStudy(Membership(config, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(postgresql.frozen())
        timer = threading.Timer(3.0, stack.pop_all().close)
        timer.start()
    _evaluate_trial(study, trial, tiny)
    timer.join()
    assert [c.trial for c in study.candidates] == [0]
    study.close()


def test_too_many_connections_are_reported(postgresql: Server, tiny: SearchSpace) -> None:
    membership = Membership(IMPATIENT, postgresql.new(), "s", OBJECTIVES, DIGESTS)
    postgresql.stop()
    postgresql.start("max_connections=5", "superuser_reserved_connections=0")
    studies_opened: list[SharedStudy] = []
    try:
        with pytest.raises(RunError, match=r"Start fewer workers.*max_connections"):
            studies_opened.extend(SharedStudy(membership, tiny) for _ in range(10))
    finally:
        for study in studies_opened:
            study.close()
        postgresql.stop()
        postgresql.start()


def test_invalid_storage_is_reported_in_one_line(tiny: SearchSpace) -> None:
    def open_study(url: str) -> None:
        SharedStudy(Membership(IMPATIENT, url, "s", OBJECTIVES, DIGESTS), tiny)

    with pytest.raises(RunError, match=r"postgresql://me@127.0.0.1:1/x does not answer"):
        open_study("postgresql://me:secret@127.0.0.1:1/x")
    with pytest.raises(ConfigError, match="no driver for this database"):
        open_study("oracle://me@127.0.0.1/x")
    with pytest.raises(ConfigError, match="is not a database URL"):
        StudyConfig(storage="here.db")


def test_local_study_becomes_shared_study(tiny: SearchSpace, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    assert not is_shared(path)
    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy())
    local = LocalStudy(path, tiny, OBJECTIVES)
    loop.run_trials(problem, local, SamplerConfig("random"), 0, 5, NullProgress())
    local.close()
    assert not is_shared(path)
    shared = SharedStudy(Membership(CONFIG, f"sqlite:///{path}", "hwnas", OBJECTIVES, {}), tiny)
    killed_trial = shared.ask(RandomSampler(seed=0), 8)
    assert killed_trial is not None
    shared.take_over()  # as after a killed process
    candidates = loop.run_trials(problem, shared, SamplerConfig("random"), 0, 8, NullProgress())
    shared.close()
    assert is_shared(path)
    assert candidates[:5] == local.candidates
    assert [c.trial for c in candidates] == [0, 1, 2, 3, 4, 6, 7, 8]
    assert shared._study.trials[6].params == killed_trial.params


@pytest.mark.parametrize("codes", [(0, 0), (1, 0), (1, 1)])
def test_workers_may_end_early_unless_all_failed(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int]
) -> None:
    """A worker does not start a trial that would exceed the time limit."""
    exit_codes = [*codes]

    def process(**_: Any) -> Any:
        ignored = dict.fromkeys(("start", "join", "kill"), lambda *_: None)
        return SimpleNamespace(
            is_alive=lambda: False, exitcode=exit_codes.pop(), name="w", pid=1, **ignored
        )

    queue = SimpleNamespace(empty=lambda: True)
    context = SimpleNamespace(SimpleQueue=lambda: queue, Process=process)
    monkeypatch.setattr(engine, "WorkerContext", lambda: context)
    config: Any = SimpleNamespace(study=SimpleNamespace(workers=2), n_trials=100)
    study: Any = SimpleNamespace(candidates=[], refresh=lambda: None)
    none: Any = None
    job = engine.WorkerJob(none, config, none, end_by=time.monotonic() + 60)
    if codes == (1, 1):
        with pytest.raises(RunError, match=r"ended early: w ended with exit code 1; w"):
            engine.search_in_processes(job, study, NullProgress())
    else:
        messages = engine.search_in_processes(job, study, NullProgress())
        assert messages == ["w ended with exit code 1"] * sum(codes)
