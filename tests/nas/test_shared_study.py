"""Many processes on one study: no trial is lost or doubled, whoever dies and whatever goes away."""

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator
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
    found = [SharedStudy(replace(membership, worker=name), tiny) for name in "ab"]
    yield found
    for study in found:
        study.close()


def _evaluate(study: SharedStudy, trial: optuna.Trial, space: SearchSpace) -> None:
    problem = loop.SearchProblem(space, Budget(), SizeCost(), SizeAccuracy())
    genotype = space.genotype(trial.params)
    figures = {"accuracy": problem.evaluator.score(genotype).figure}
    figures |= problem.cost_model.cost(genotype).figures
    study.tell(trial, Candidate(trial.number, genotype, figures), {})


def test_workers_share_trials(studies: list[SharedStudy], tiny: SearchSpace) -> None:
    a, b = studies
    sampler = RandomSampler(seed=0)
    mine, theirs = a.ask(sampler, 2), b.ask(sampler, 2)
    assert mine is not None
    assert theirs is not None
    assert {mine.number, theirs.number} == {0, 1}
    _evaluate(a, mine, tiny)
    _evaluate(b, theirs, tiny)
    assert a.ask(sampler, 2) is None
    assert b.ask(sampler, 2) is None
    assert [c.trial for c in a.candidates] == [c.trial for c in b.candidates] == [0, 1]
    assert a.candidates == b.candidates
    assert a.workers() == ["a", "b"]


def test_trial_of_a_dead_worker_is_tried_again_once(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    sampler = RandomSampler(seed=0)
    dead = a.ask(sampler, 3)
    assert dead is not None
    a._still()  # it gives no more signs of life
    while (trial := b.ask(sampler, 3)) is not None:
        _evaluate(b, trial, tiny)
    assert [c.trial for c in b.candidates] == [1, 2, 3]
    # Which number it has depends on how soon the silence was noticed.
    (again,) = [t for t in b._study.trials if "retry_history" in t.system_attrs]
    assert again.params == dead.params
    assert again.system_attrs["retry_history"] == [0]
    _evaluate(a, dead, tiny)  # it was not dead, only slow: its result comes too late
    assert a.candidates == b.candidates
    assert a._study.trials[0].state == TrialState.FAIL


@pytest.mark.slow
def test_worker_that_died_before_its_first_sign_of_life_is_found(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    with pytest.warns(UserWarning, match="Heartbeat"):
        dead = a._study.ask(a.distributions)  # what asks and dies at once
    assert dead.number == 0
    while (trial := b.ask(RandomSampler(seed=0), 2)) is not None:
        _evaluate(b, trial, tiny)
    assert len(b.candidates) == 2
    assert all(c.trial > 0 for c in b.candidates)


def test_worker_that_is_interrupted_gives_its_trial_back_at_once(
    membership: Membership, studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    patient = replace(membership, config=StudyConfig(heartbeat_timeout_s=600))
    a, b = SharedStudy(patient, tiny), SharedStudy(patient, tiny)
    sampler = RandomSampler(seed=0)
    begun = a.ask(sampler, 1)
    assert begun is not None
    a.close()
    again = b.ask(sampler, 1)
    assert again is not None
    assert again.params == begun.params
    _evaluate(b, again, tiny)
    b.close()
    assert len(b.candidates) == 1


def test_a_trial_that_was_cut_off_took_the_time_to_its_last_sign_of_life(
    studies: list[SharedStudy], tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DatabaseRetry, "beat_s", 0.02)
    a, b = studies
    sampler, began = RandomSampler(seed=0), time.monotonic()
    assert a.ask(sampler, 3) is not None
    time.sleep(0.3)
    a._still()
    lived_s = time.monotonic() - began
    time.sleep(0.5)  # the machine is off, say
    b.take_over()
    assert b._study.trials[0].state == TrialState.FAIL
    assert b.spent_s == 0  # as nothing is scored yet
    began = time.monotonic()
    trial = b.ask(sampler, 3)
    assert trial is not None
    _evaluate(b, trial, tiny)
    took_s = trials.spent_s(b._study.trials, OBJECTIVES)
    assert took_s + 0.2 < b.spent_s < lived_s + time.monotonic() - began


def test_minutes_are_of_the_clock_however_many_processes_there_are(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    sampler, began = RandomSampler(seed=0), time.monotonic()
    begun = [study.ask(sampler, 2) for study in studies]
    time.sleep(0.3)
    for study, trial in zip(studies, begun, strict=True):
        assert trial is not None
        _evaluate(study, trial, tiny)
    assert 0.3 <= studies[0].spent_s <= time.monotonic() - began


def test_first_trials_are_each_proposed_whatever_is_cut_off(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    first = initial_assignments(tiny)[:5]
    sampler = RunSampler(SamplerConfig("random"), 0, a.distributions, ParetoSampler(), first)
    begun = a.ask(sampler, 1)
    assert begun is not None
    b._study.sampler = sampler
    assert b._taken(1) is None  # a process that was as quick: its trial is one too many
    a._still()
    b.take_over()
    while (trial := b.ask(sampler, len(first))) is not None:
        _evaluate(b, trial, tiny)
    ids = [tiny.genotype(assignment).id for assignment in first]
    assert sorted(c.id for c in b.candidates) == sorted(ids)


def test_what_is_under_way_takes_time_unless_an_earlier_command_began_it(
    membership: Membership, studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    assert a.ask(RandomSampler(seed=0), 3) is not None
    time.sleep(0.2)
    assert b.spent_s > 0.1
    later = SharedStudy(replace(membership, worker="c"), tiny)
    assert later.spent_s == 0
    later.close()


def test_in_a_database_that_commands_share_each_has_its_own_time(
    membership: Membership, tiny: SearchSpace
) -> None:
    shared = replace(membership, config=replace(CONFIG, storage="postgresql://host/name"))
    a, b = (SharedStudy(replace(shared, worker=name), tiny) for name in "ab")
    trial = a.ask(RandomSampler(seed=0), 3)
    assert trial is not None
    _evaluate(a, trial, tiny)
    spent = a.spent_s
    assert spent > 0
    assert a.ask(RandomSampler(seed=0), 3) is not None  # under way
    time.sleep(0.05)
    assert a.spent_s >= spent + 0.05
    assert b.spent_s == 0
    a.wait(5.0)
    longer_named = SharedStudy(replace(shared, worker="aa"), tiny)
    longer_named.wait(7.0)
    again = SharedStudy(replace(shared, worker="a"), tiny)
    assert again.waited_s == 5.0
    for study in (a, b, longer_named, again):
        study.close()


def test_command_that_is_started_again_in_a_container_is_another_one(
    membership: Membership, tmp_path: Path, tiny: SearchSpace
) -> None:
    """Its host and process id may be those of the one before, which verifies nothing any more."""
    config = replace(CONFIG, storage="postgresql://host/name")
    dead = Membership(config, membership.url, "hwnas", OBJECTIVES, DIGESTS)
    again = Membership(config, membership.url, "hwnas", OBJECTIVES, DIGESTS)
    studies = [SharedStudy(own, tiny) for own in (dead, replace(dead, worker="last"), again)]
    for study in studies[:2]:
        trial = study.ask(RandomSampler(seed=0), 2)
        assert trial is not None
        _evaluate(study, trial, tiny)
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


def test_what_all_processes_wait_for_counts_once_a_candidate_is_scored(
    tmp_path: Path, tiny: SearchSpace
) -> None:
    """As where one process trains the supernet in the first trial that it scores."""
    url, config = f"sqlite:///{tmp_path / 'shared.db'}", replace(CONFIG, workers=3)
    membership = Membership(config, url, "hwnas", OBJECTIVES, {})
    study = SharedStudy(membership, tiny)
    began = time.monotonic()
    engine.prepare(study, partial(time.sleep, 0.3))
    elapsed_s = time.monotonic() - began
    other = SharedStudy(replace(membership, worker="a process of it, or of a resumed run"), tiny)
    assert 0.3 <= other.waited_s <= elapsed_s  # once, not of each of three processes
    assert study.spent_s == other.spent_s == 0
    trial = study.ask(RandomSampler(seed=0), 3)
    assert trial is not None
    _evaluate(study, trial, tiny)
    assert other.waited_s < min(study.spent_s, other.spent_s)
    study.close()
    other.close()


def test_what_all_processes_waited_for_counts_though_it_was_cut_off(
    tmp_path: Path, tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "SAVE_INTERVAL_S", 0.01)
    config = replace(CONFIG, workers=3)
    membership = Membership(config, f"sqlite:///{tmp_path / 'shared.db'}", "hwnas", OBJECTIVES, {})
    study = SharedStudy(membership, tiny)

    def cut_off() -> None:
        time.sleep(0.2)
        raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.prepare(study, cut_off)
    elapsed_s = time.monotonic() - began
    study.close()
    resumed = SharedStudy(replace(membership, worker="of the resumed run"), tiny)
    assert 0.1 < resumed.waited_s <= elapsed_s
    resumed.close()


@pytest.mark.slow
def test_a_long_evaluation_is_not_taken_for_death(
    studies: list[SharedStudy], tiny: SearchSpace
) -> None:
    a, b = studies
    long = a.ask(RandomSampler(seed=0), 1)
    assert long is not None
    waiting = threading.Thread(target=b.ask, args=(RandomSampler(seed=1), 1))
    waiting.start()
    time.sleep(3.0)  # three times what a dead worker is given
    assert waiting.is_alive()
    _evaluate(a, long, tiny)
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
def test_processes_race_for_the_last_trials(membership: Membership, tiny: SearchSpace) -> None:
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


def test_study_may_be_begun_while_it_is_joined(
    membership: Membership, tiny: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = DatabaseRetry(membership.url, membership.config, lambda *_: None)
    trials.create(connection.storage, membership.name, tiny, membership.objectives)
    read, others = optuna.Study.user_attrs.__get__, list[SharedStudy]()

    def begun(study: optuna.Study) -> dict[str, Any]:
        """Read that nobody has said whose it is; then somebody says it, and begins."""
        said: dict[str, Any] = read(study)
        if not others:
            monkeypatch.undo()
            others.append(SharedStudy(membership, tiny))
            assert others[0].ask(RandomSampler(seed=0), 1) is not None
        return said

    monkeypatch.setattr(optuna.Study, "user_attrs", property(begun))
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


def test_somebody_elses_study_is_refused(membership: Membership, tiny: SearchSpace) -> None:
    storage = RDBStorage(membership.url)
    foreign = optuna.create_study(storage=storage, study_name="hwnas")
    foreign.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=1)
    storage.engine.dispose()
    with pytest.raises(RunError, match="of another search"):
        SharedStudy(membership, tiny)
    storage = RDBStorage(membership.url)
    left = optuna.load_study(storage=storage, study_name="hwnas")
    assert left.metric_names is None  # it is as it was
    assert left.user_attrs == {}
    storage.engine.dispose()


@pytest.mark.slow
def test_database_that_goes_away_is_waited_for(postgresql: Server, tiny: SearchSpace) -> None:
    config = StudyConfig(reconnect_timeout_s=60)
    study = SharedStudy(Membership(config, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    postgresql.stop()
    timer = threading.Timer(3.0, postgresql.start)
    timer.start()
    _evaluate(study, trial, tiny)
    timer.join()
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    _evaluate(study, trial, tiny)
    assert [c.trial for c in study.candidates] == [0, 1]
    study.close()


def test_database_that_stays_away_is_one_line(postgresql: Server, tiny: SearchSpace) -> None:
    study = SharedStudy(Membership(IMPATIENT, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    postgresql.stop()
    try:
        with pytest.raises(RunError, match=r"does not answer: .*the same command goes on"):
            _evaluate(study, trial, tiny)
        study.close()
    finally:
        postgresql.start()


@pytest.mark.slow
def test_database_that_freezes_is_one_line_in_time(postgresql: Server, tiny: SearchSpace) -> None:
    config = StudyConfig(reconnect_timeout_s=3)
    study = SharedStudy(Membership(config, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    began = time.monotonic()
    with postgresql.frozen():
        with pytest.raises(RunError, match=r"does not answer: .*the same command goes on"):
            _evaluate(study, trial, tiny)
        study.close()
    assert time.monotonic() - began < 30


@pytest.mark.slow
def test_database_that_freezes_for_a_while_is_waited_for(
    postgresql: Server, tiny: SearchSpace
) -> None:
    config = StudyConfig(reconnect_timeout_s=30)
    study = SharedStudy(Membership(config, postgresql.new(), "s", OBJECTIVES, DIGESTS), tiny)
    trial = study.ask(RandomSampler(seed=0), 2)
    assert trial is not None
    with contextlib.ExitStack() as stack:
        stack.enter_context(postgresql.frozen())
        timer = threading.Timer(3.0, stack.pop_all().close)
        timer.start()
    _evaluate(study, trial, tiny)
    timer.join()
    assert [c.trial for c in study.candidates] == [0]
    study.close()


def test_more_workers_than_the_database_takes(postgresql: Server, tiny: SearchSpace) -> None:
    membership = Membership(IMPATIENT, postgresql.new(), "s", OBJECTIVES, DIGESTS)
    postgresql.stop()
    postgresql.start("max_connections=5", "superuser_reserved_connections=0")
    found: list[SharedStudy] = []
    try:
        with pytest.raises(RunError, match=r"Start fewer workers.*max_connections"):
            found.extend(SharedStudy(membership, tiny) for _ in range(10))
    finally:
        for study in found:
            study.close()
        postgresql.stop()
        postgresql.start()


def test_what_cannot_be_opened_is_one_line(tiny: SearchSpace) -> None:
    def joined(url: str) -> None:
        SharedStudy(Membership(IMPATIENT, url, "s", OBJECTIVES, DIGESTS), tiny)

    with pytest.raises(RunError, match=r"postgresql://me@127.0.0.1:1/x does not answer"):
        joined("postgresql://me:secret@127.0.0.1:1/x")
    with pytest.raises(ConfigError, match="there is no driver"):
        joined("oracle://me@127.0.0.1/x")
    with pytest.raises(ConfigError, match="is not a database URL"):
        StudyConfig(storage="here.db")


def test_own_study_of_many_processes_is_known_as_such(tiny: SearchSpace, tmp_path: Path) -> None:
    path = tmp_path / "study.db"
    assert not is_shared(path)
    problem = loop.SearchProblem(tiny, Budget(), SizeCost(), SizeAccuracy())
    own = LocalStudy(path, tiny, OBJECTIVES)
    loop.run_trials(problem, own, SamplerConfig("random"), 0, 5, NullProgress())
    own.close()
    assert not is_shared(path)
    shared = SharedStudy(Membership(CONFIG, f"sqlite:///{path}", "hwnas", OBJECTIVES, {}), tiny)
    begun = shared.ask(RandomSampler(seed=0), 8)
    assert begun is not None
    shared.take_over()  # of a process that was killed, say
    candidates = loop.run_trials(problem, shared, SamplerConfig("random"), 0, 8, NullProgress())
    shared.close()
    assert is_shared(path)
    assert candidates[:5] == own.candidates
    assert [c.trial for c in candidates] == [0, 1, 2, 3, 4, 6, 7, 8]
    assert shared._study.trials[6].params == begun.params


@pytest.mark.parametrize("codes", [(0, 0), (1, 0), (1, 1)])
def test_workers_may_end_before_the_time_limit_unless_all_failed(
    monkeypatch: pytest.MonkeyPatch, codes: tuple[int, int]
) -> None:
    """A worker starts no trial that would not end in time."""
    left = [*codes]

    def process(**_: Any) -> Any:
        ignored = dict.fromkeys(("start", "join", "kill"), lambda *_: None)
        return SimpleNamespace(is_alive=lambda: False, exitcode=left.pop(), name="w", **ignored)

    queue = SimpleNamespace(empty=lambda: True)
    context = SimpleNamespace(SimpleQueue=lambda: queue, Process=process)
    monkeypatch.setattr(engine, "WorkerContext", lambda: context)
    monkeypatch.setattr(engine, "_is_started", lambda _: True)
    config: Any = SimpleNamespace(study=SimpleNamespace(workers=2), n_trials=100)
    study: Any = SimpleNamespace(candidates=[], refresh=lambda: None)
    none: Any = None
    job = engine.WorkerJob(none, config, none, end_by=time.monotonic() + 60)
    if codes == (1, 1):
        with pytest.raises(RunError, match=r"ended early: w ended with exit code 1; w"):
            engine.search_in_processes(job, study, NullProgress())
    else:
        ended = engine.search_in_processes(job, study, NullProgress())
        assert ended == ["w ended with exit code 1"] * sum(codes)
