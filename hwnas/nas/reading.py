"""What an earlier search found, finished or not: by its folder, wherever its study lies."""

import contextlib
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from sqlalchemy import DateTime, Integer, NullPool, text

from hwnas.core import database
from hwnas.core.errors import RunError, SpaceError, unknown_name
from hwnas.core.manifest import Manifest, ManifestOptions, read_manifest
from hwnas.models.spaces import Space
from hwnas.models.spaces.union import from_json, stem
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate, read_candidates
from hwnas.nas.options import NAME
from hwnas.nas.storage import check_whole, readable
from hwnas.nas.targets import Targets
from hwnas.nas.trial_attributes import Proposal, recorded
from hwnas.nas.trials import SPACE, candidate, is_finished
from hwnas.tasks.metrics import column, quality
from hwnas.tasks.metrics.budget import Budget

# Studies as they are read: of a run that may be going on.

# Optuna reads trials with all that is in them, which takes a second a thousand.
_TIMES = text(
    "SELECT number, datetime_start, datetime_complete FROM trials JOIN studies USING (study_id) "
    "WHERE study_name = :name AND state IN ('COMPLETE', 'FAIL') ORDER BY number"
).columns(number=Integer, datetime_start=DateTime, datetime_complete=DateTime)
_PATIENCE_S = 30  # with a database that does not answer


@dataclass(frozen=True)
class StudyRecord:
    """What a study holds so far."""

    objectives: Sequence[str]
    candidates: Sequence[Candidate]  #: in order of trials
    proposals: Mapping[int, Proposal]  #: by number of the trial
    seconds: Mapping[int, float]  #: from the start of the first trial to the end of each, by number


@dataclass(frozen=True)
class StudySummary:
    """What a study says without its candidates: quickly read, however many there are."""

    objectives: Sequence[str]
    space: Space
    seconds: Mapping[int, float]  #: as of a ``Record``, of all trials that ended


@dataclass(frozen=True)
class StudySource:
    """Where a study lies, to be read."""

    url: str
    engine: Mapping[str, Any]  #: options of SQLAlchemy's engine
    name: str
    where: str  #: in messages
    file: Path | None = None  #: if it is one

    def read(self) -> StudyRecord:
        """Return all of it.

        Raises:
            RunError: it cannot be read, it is no such study, or no trial is finished yet.
        """
        with self._opened() as (_, study):
            objectives = tuple(study.metric_names or ())
            trials = [t for t in study.get_trials(deepcopy=False) if is_finished(t, objectives)]
            if not trials:
                raise RunError(f"{self.where} holds no finished trial yet.")
            space = self._space(study)
            candidates = [candidate(trial, space) for trial in trials]
            proposals = {trial.number: recorded(trial.system_attrs) for trial in trials}
        times = [(t.number, t.datetime_start, t.datetime_complete) for t in trials]
        return StudyRecord(objectives, candidates, proposals, _seconds(times))

    def outline(self) -> StudySummary:
        """Return what it says without its candidates.

        Raises:
            RunError: it cannot be read, or is no such study.
        """
        # An unknown schema has no such columns; checking its version would take longer than this.
        opened = self._opened(skip_compatibility_check=True)
        with opened as (storage, study), storage.engine.connect() as connection:
            rows = connection.execute(_TIMES, {"name": self.name})
            times = [(number, start, end) for number, start, end in rows]
            objectives = tuple(study.metric_names or ())
            return StudySummary(objectives, self._space(study), _seconds(times))

    @contextmanager
    def _opened(
        self, *, skip_compatibility_check: bool = False
    ) -> Iterator[tuple[RDBStorage, optuna.Study]]:
        with readable(self.where):
            if self.file is not None:
                check_whole(self.file)
            storage = RDBStorage(
                self.url,
                engine_kwargs=dict(self.engine),
                skip_compatibility_check=skip_compatibility_check,
                skip_table_creation=True,
            )
            yield storage, optuna.load_study(study_name=self.name, storage=storage)

    def _space(self, study: optuna.Study) -> Space:
        if (raw := study.user_attrs.get(SPACE)) is None:
            raise RunError(
                f"{self.where} does not hold its search space: an earlier version wrote it."
            )
        return from_json(raw)


def read_study(path: Path) -> StudyRecord:
    """Read the file of a study that a run may be writing.

    Raises:
        RunError: there are no trials yet, or it is not such a file.
    """
    return in_file(path).read()


def in_file(path: Path) -> StudySource:
    """Return the study in a file that a run may be writing."""
    # Where nobody has it open there is no log beside it, and SQLite would make one, even to read.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "mode=ro&immutable=1"
    address = f"{path.absolute().as_uri()}?{mode}"
    engine = {"creator": lambda: sqlite3.connect(address, uri=True), "poolclass": NullPool}
    return StudySource("sqlite://", engine, NAME, str(path), path)


def in_database(url: str, name: str) -> StudySource:
    """Return the study of that name in a database."""
    engine = {"poolclass": NullPool, **database.connect_options(url, _PATIENCE_S)}
    if (path := database.sqlite_file(url)) is not None:  # SQLite would make one that is not there
        address = f"{path.absolute().as_uri()}?mode=rw"
        engine["creator"] = lambda: sqlite3.connect(address, uri=True)
    return StudySource(url, engine, name, f"study.storage={database.redact(url)}")


def _seconds(
    trials: Sequence[tuple[int, datetime | None, datetime | None]],
) -> dict[int, float]:
    """Return when each trial ended, of numbers with their start and end."""
    start = min((start for _, start, _ in trials if start is not None), default=None)
    return {
        number: (end - start).total_seconds()
        for number, _, end in trials
        if start is not None and end is not None
    }


@dataclass(frozen=True)
class SearchState:
    """What a search has found so far."""

    objectives: Sequence[str]
    candidates: Sequence[Candidate]  #: in order of trials; of several targets as the search does
    seconds: Mapping[int, float]  #: as of a ``Record``
    notes: tuple[str, ...] = ()  #: what is not as it should be


def read_search(path: Path, option: str) -> Manifest:
    """Return the manifest of the folder of a search.

    Args:
        path: The folder.
        option: By which the user named it.

    Raises:
        RunError: it is none.
    """
    manifest = read_manifest(path, option)
    if manifest["verb"] != "search":
        raise RunError(f"{option}={path} is a run of '{manifest['verb']}', not of 'search'.")
    return manifest


def read_search_state(path: Path, manifest: Manifest, option: str) -> SearchState:
    """Return what a search found: if finished by ``candidates.parquet``, else by its study.

    The file is read five times faster, but has no times, and a study may be out of reach. Of a
    search for one target it has the metric as it is believed in the end: see ``as_read``.

    Raises:
        RunError: nothing can be read, or no trial is finished yet.
    """
    config = manifest["config"]
    place = source(path, config)
    if manifest.get("status") != "running" and place is not None:
        with contextlib.suppress(RunError):
            outline = place.outline()
            names = [member.name for member in outline.space.members]
            read = [columns.read_column(quality(outline.objectives))]
            if (candidates := read_candidates(path, names, read)) is not None:
                return SearchState(outline.objectives, candidates, outline.seconds)
    try:
        if place is None:
            raise RunError("no trial is finished yet.")
        record = place.read()
    except RunError as error:
        objectives = _objectives(manifest)
        read = [columns.read_column(quality(objectives))]
        if (candidates := read_candidates(path, _spaces(config), read)) is None:
            raise RunError(f"{option}={path}: {error}") from None
        note = "its study cannot be read: candidates.parquet instead, which has no times"
        return SearchState(objectives, candidates, {}, (note,))
    return SearchState(record.objectives, record.candidates, record.seconds)


def as_read(known: SearchState, path: Path, manifest: Manifest) -> SearchState:
    """Return what a search found with the metric as it read it, whether it has ended or not.

    Args:
        known: What was found.
        path: The folder of the search.
        manifest: Of the search.
    """
    metric = quality(known.objectives)
    read = columns.read_column(metric)
    if not any(read in candidate.details for candidate in known.candidates):
        return known
    if (place := source(path, manifest["config"])) is not None:
        with contextlib.suppress(RunError):
            return replace(known, candidates=place.read().candidates)

    def without_interval(candidate: Candidate) -> Candidate:
        if (value := candidate.details.get(read)) is None:
            return candidate
        figure = replace(candidate.figures[metric], value=value, low=None, high=None)
        return replace(candidate, figures={**candidate.figures, metric: figure})

    note = f"{column(metric).label} as it was read has no intervals in candidates.parquet"
    candidates = [without_interval(candidate) for candidate in known.candidates]
    return replace(known, candidates=candidates, notes=(*known.notes, note))


def source(folder: Path, config: ManifestOptions) -> StudySource | None:
    """Return where the study of a run lies; ``None`` where it has begun none."""
    where = config.get("study")
    if where is not None and where["storage"] is not None:
        return in_database(where["storage"], where["name"])
    return in_file(folder / "study.db") if (folder / "study.db").exists() else None


def targets(manifest: Manifest) -> Targets:
    """Return the targets of a run; that of a run for one has no name."""
    if "targets" not in manifest:
        return Targets({"": Budget.of(manifest["config"]["budget"])})
    own = manifest["targets"].items()
    return Targets({target: Budget.of(of["config"]["budget"]) for target, of in own})


def whole(path: Path, manifest: Manifest, option: str) -> tuple[Path, Manifest]:
    """Return the run of which a folder is one target, with its manifest; else the folder itself."""
    if "part_of" not in manifest:
        return path, manifest
    return path.absolute().parent, read_search(path.absolute().parent, option)


def candidates(path: Path, option: str, target: str | None = None) -> list[Candidate]:
    """Return the candidates of a search in order of trials, as a search for one target sees them.

    Args:
        path: The folder of the search, or that of one of its targets within.
        option: By which the user named it.
        target: Of several, the one that sees them; default: that of the folder, else all do.

    Raises:
        RunError: it is no search, it is not for that target, or all of its trials cannot be read.
    """
    own = read_search(path, option)
    folder, manifest = whole(path, own, option)
    if folder != path and (there := believed(path, own, manifest)) is not None:
        return there
    known = read_search_state(folder, manifest, option)
    if known.notes and manifest.get("status") == "running":
        raise RunError(
            f"{option}={path}: the search is not finished, and its study cannot be read; "
            "candidates.parquet may lack trials. Finish it with: "
            f"python -m hwnas search run.resume={folder}"
        )
    if folder != path:
        target = own["config"]["target"]["name"]
    if target is None or "targets" not in manifest:
        return [*known.candidates]
    if target not in manifest["targets"]:
        others = ", ".join(manifest["targets"])
        raise RunError(
            f"{option}={path}: that search is for {others}, not for {target}; once it is finished, "
            f"name what one of them found: {option}={path / next(iter(manifest['targets']))}"
        )
    return [targets(manifest).seen(candidate, target) for candidate in known.candidates]


def believed(path: Path, own: Manifest, manifest: Manifest) -> list[Candidate] | None:
    """Return the candidates of one of several targets with what is believed of them.

    As of a run for one target: what the search went by in the end.

    Args:
        path: The folder of the target.
        own: Its manifest.
        manifest: Of the search.

    Returns:
        ``None`` where the search is not finished.
    """
    if not own.get("status") == manifest.get("status") == "finished":
        return None
    return read_candidates(path, _spaces(own["config"]))


def of_space(known: Iterable[Candidate], space: Space, option: str) -> list[Candidate]:
    """Return candidates of an earlier search as those of a space.

    Raises:
        SpaceError: one is not of this space.
    """
    spaces, found = {member.name: member for member in space.members}, []
    for earlier in known:
        genotype = earlier.genotype
        if genotype.space not in spaces:
            raise SpaceError(unknown_name(f"search space of {option}", genotype.space, spaces))
        own = spaces[genotype.space].genotype(genotype.to_dict())
        found.append(replace(earlier, genotype=own))
    return found


def _spaces(config: ManifestOptions) -> list[str]:
    """Return the names of the search spaces; of a benchmark table, what its file is called."""
    if not (named := config.get("search_space")):
        return [Path(config["benchmark"]["path"]).name.partition(".")[0]]
    return [stem(str(name)) for name in (named if isinstance(named, list) else [named])]


def _objectives(manifest: Manifest) -> Sequence[str]:
    config = manifest["config"]
    declared_ones = manifest.get("objectives") or config.get("objectives")
    return declared_ones or ("accuracy", *config["benchmark"]["costs"])
