"""The folder of a search: the only reader of manifest, candidates, study and verified front."""

import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import final

from hwnas.core.errors import RunError
from hwnas.core.manifest import Manifest, ManifestOptions, read_manifest
from hwnas.core.run_folder import damaged_files
from hwnas.models.spaces.union import stem
from hwnas.nas import candidates as columns
from hwnas.nas import verified_files
from hwnas.nas.candidates import Candidate, read_candidates
from hwnas.nas.front import Front
from hwnas.nas.member import Member
from hwnas.nas.options import StudyConfig
from hwnas.nas.study import StudyRecord, StudySource, study_in_database, study_in_file
from hwnas.nas.targets import Targets
from hwnas.nas.verified_files import VerifiedModelFile, read_front, read_model
from hwnas.tasks.metrics import metric_of, quality_in
from hwnas.tasks.metrics.budget import Budget

_NO_TRIAL = (
    "no trial is finished yet. Wait for the first one, or resume the search: hwnas resume FOLDER"
)
_NO_STUDY = "study.db is missing. Restore it from a backup, or name another search."


@dataclass(frozen=True)
class RunState:
    """The candidates of a search so far."""

    objectives: Sequence[str]  #: columns: the metric and costs
    candidates: Sequence[Candidate]  #: in order of trials; costs of several targets have prefixes
    #: seconds from the start of the first trial to the end of each, by number of the trial
    seconds: Mapping[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  #: messages to the user about missing data


@final
@dataclass(frozen=True)
class Run:
    """The folder of a search, or of one of its targets; the search may be unfinished."""

    path: Path
    manifest: Manifest
    option: str = "run"  #: the option that named the folder, for messages
    storage: str | None = None  #: URL of the study's database, if the user gave it

    @staticmethod
    def load(path: Path, option: str = "run", storage: str | None = None) -> "Run":
        """Return the search in a folder.

        Args:
            path: The folder.
            option: The option that named the folder, for messages.
            storage: URL of the study's database, if the user gave it.

        Raises:
            RunError: the folder has no valid ``manifest.json``, or that of another command.
        """
        manifest = read_manifest(path, option)
        if manifest["verb"] != "search":
            raise RunError(
                f"{option}={path} is of 'hwnas {manifest['verb']}'. Give the folder of a search."
            )
        return Run(path, manifest, option, storage)

    @property
    def config(self) -> ManifestOptions:
        """The options of the search, by name."""
        return self.manifest["config"]

    @property
    def is_running(self) -> bool:
        """Whether the search is still running or was interrupted."""
        return self.manifest.get("status") == "running"

    @property
    def target(self) -> str | None:
        """The name of the target; ``None`` for several targets and for benchmark tables."""
        several = "targets" in self.manifest
        return None if several or "target" not in self.config else self.config["target"]["name"]

    @cached_property
    def whole(self) -> "Run":
        """The search for several targets of which this folder is one; else this search."""
        if "part_of" not in self.manifest:
            return self
        return Run.load(self.path.absolute().parent, self.option, self.storage)

    @property
    def targets(self) -> Targets:
        """The budgets of the targets by name; the name is ``""`` for a search for one target."""
        if "targets" not in self.manifest:
            return Targets({"": Budget.of(self.config["budget"])})
        items = self.manifest["targets"].items()
        return Targets({target: Budget.of(entry["config"]["budget"]) for target, entry in items})

    @property
    def folders(self) -> dict[str, Path]:
        """The folder of each target, by its name; ``{"": path}`` for one target."""
        return {name: self.path / name for name in self.targets.budgets}

    @property
    def study(self) -> StudySource | None:
        """The study of the search; ``None`` if its file does not exist."""
        if (study := self.config.get("study")) is not None and study["storage"] is not None:
            return study_in_database(study["storage"], study["name"], self.storage)
        file = self.path / "study.db"
        return study_in_file(file) if file.exists() else None

    @cached_property
    def record(self) -> StudyRecord:
        """The finished trials of the study.

        Raises:
            RunError: the study cannot be read, or no trial is finished yet.
        """
        if (study := self.study) is None:
            raise RunError(f"{self.option}={self.path}: {_without_study(self)}")
        return study.read()

    @cached_property
    def state(self) -> RunState:
        """The candidates, from ``candidates.parquet`` if the search ended, else from the study.

        After a search for one target the metric is the posterior estimate; see ``observed``.

        Raises:
            RunError: nothing can be read, or no trial is finished yet.
        """
        return _read_state(self)

    @property
    def observed(self) -> RunState:
        """``state`` with the metric as measured; without intervals if the study is lost."""
        return _as_observed(self.state, self.study)

    @cached_property
    def candidates(self) -> list[Candidate]:
        """The candidates of ``state``, or in a folder of one of several targets those for it."""
        if self.whole is self:
            return [*self.state.candidates]
        if self.manifest.get("status") == self.whole.manifest.get("status") == "finished":
            check_files(self, columns.NAME)
            candidates = read_candidates(self.path, _spaces(self.config))
            if candidates is not None:
                return candidates
        return self.whole.candidates_for(str(self.target))

    def candidates_for(self, target: str) -> list[Candidate]:
        """Return the candidates with the costs of one target, infeasible if over its budget.

        Raises:
            RunError: the search is not for this target.
        """
        if "targets" not in self.manifest:
            return self.candidates
        if target not in self.manifest["targets"]:
            others = ", ".join(self.manifest["targets"])
            raise RunError(
                f"{self.option}={self.path}: that search is for the targets {others}, not for "
                f"{target}. Once it is finished, name the folder of one of its targets: "
                f"{self.option}={self.path / next(iter(self.manifest['targets']))}"
            )
        return [self.targets.on_target(candidate, target) for candidate in self.state.candidates]

    def check_complete(self) -> None:
        """Reject an unfinished search with an unreadable study: its file may lack trials.

        Raises:
            RunError: the search is not finished, and its study cannot be read.
        """
        whole = self.whole
        if whole.is_running and whole.state.notes:
            raise RunError(
                f"{self.option}={self.path}: the search is not finished, and its study cannot be "
                "read; candidates.parquet may lack trials. Restore the study (or start its "
                f"database), then finish it with: hwnas resume {shlex.quote(str(whole.path))}"
            )

    def front(self, candidates: Iterable[Candidate] | None = None) -> Front:
        """Return the verified front; empty if nothing was verified.

        Args:
            candidates: The candidates of the run; default: ``self.candidates``.

        Raises:
            RunError: a file is damaged, or names an unknown candidate.
        """
        check_files(self, "front.json")
        if (content := read_front(self.path)) is None:
            return Front()
        by_id = {c.id: c for c in (self.candidates if candidates is None else candidates)}
        limits, members, failed = self.targets.all_limits, [], content.get("unverified", {})
        for row in content["members"]:
            if row["id"] not in by_id:
                message = f"front.json names {row['id']}, which is no candidate of the search"
                raise RunError(f"{self.path}: {message}. {columns.REMEDY}")
            member = verified_files.member_of_row(by_id[row["id"]], row, limits)
            if "targets" in self.manifest:  # details are in the files of each target only
                details = verified_files.details(self._models(row["id"]))
                member = replace(member, details=details)
            members.append(member)
        return Front(tuple(content["objectives"]), members, failed, content.get("guessing", ()))

    def member(self, candidate: Candidate) -> Member | None:
        """Return the verified quantities of a candidate so far; ``None`` if there are none.

        Raises:
            RunError: a file is damaged.
        """
        check_files(self, "front.json")
        models = self._models(candidate.id)
        figures = verified_files.figures(models)
        if not figures:
            return None
        rows = (read_front(self.path) or {"members": []})["members"]
        row = next((row for row in rows if row["id"] == candidate.id), {})
        judged = row.get("verified_on_front"), bool(row.get("verified_near_front"))
        return Member(candidate, figures, verified_files.details(models), {}, (), *judged)

    def unverified(self, genotype_id: str) -> dict[str, str]:
        """Return why a network could not be verified, by target; ``""``: the only one, or all."""
        recorded = self.manifest.get("unverified", {})
        reasons = {"": verified_files.unverified(self.path, genotype_id)}
        if "targets" not in self.manifest:  # without a front, only the manifest has the reason
            only = "".join(failures.get(genotype_id, "") for failures in recorded.values())
            reasons = {"": reasons[""] or only}
        for target in self.manifest.get("targets", ()):
            failures = verified_files.unverified(self.path / target, genotype_id)
            reasons[target] = failures or recorded.get(target, {}).get(genotype_id, "")
        return {target: reason for target, reason in reasons.items() if reason}

    def _models(self, genotype_id: str) -> dict[str, VerifiedModelFile]:
        """Return the verified files of a network by the prefix of each target's names."""
        name = f"models/{genotype_id}.json"
        check_files(self, *(str(Path(target, name)) for target in self.folders))
        models = {name: read_model(folder, genotype_id) for name, folder in self.folders.items()}
        return {f"{n}." * bool(n): model for n, model in models.items() if model is not None}


def check_files(run: Run, *names: str) -> None:
    """Check files of an ended search by their SHA-256 digests in the manifest.

    Args:
        run: The search.
        names: Paths of files relative to its folder; default: all files that have a digest.

    Raises:
        RunError: a file is missing or damaged; the message has the command that repairs it.
    """
    recorded = {} if run.is_running else run.manifest.get("files", {})
    for name, problem in damaged_files(run.path, recorded, names).items():
        raise RunError(
            f"{run.option}={run.path}: {name} {problem}. To make it again: "
            f"hwnas resume {shlex.quote(str(run.whole.path))}"
        )


def check_resumable(run: Run, study_options: StudyConfig) -> None:
    """Reject a search whose study has lost trials, or is another one: it would start again.

    Args:
        run: The search.
        study_options: Options of the command that resumes it.

    Raises:
        RunError: the study is missing, damaged, another one, or lacks trials.
    """
    _check_same_study(run, study_options)
    n_listed = 0
    with contextlib.suppress(RunError):  # the file is written again
        table = columns.read_table(run.path, ["trial"])
        n_listed = 0 if table is None else table.num_rows
    n_known = max(run.manifest.get("n_candidates", 0), n_listed)
    try:
        if (study := run.study) is None:
            raise RunError("study.db is missing")
        n_trials = len(study.read().candidates if n_known else study.summary().seconds)
        if n_trials < n_known:
            raise RunError(f"{study.where} has {n_trials} of the {n_known} trials of the run")
    except RunError as error:
        alternative = "or start a new search."
        if n_listed and not run.is_running and "benchmark" not in run.config:
            alternative = f"or start a new search from the candidates: start_from={run.path}"
        raise RunError(
            f"{run.option}={run.path}: {str(error).rstrip('.')}. Restore the study from a backup, "
            f"{alternative}"
        ) from None


def _check_same_study(run: Run, study_options: StudyConfig) -> None:
    before = run.config.get("study")
    stored = before is not None and before["storage"] is not None
    if not stored and study_options.storage is not None:
        raise RunError(
            f"{run.option}={run.path}: its trials are in this folder, not in a database. Resume it "
            "without study.storage; for a search by several machines start a new one with "
            "study.storage=URL."
        )
    if stored and before is not None and before["name"] != study_options.name:
        raise RunError(
            f"{run.option}={run.path}: its trials are in the study '{before['name']}', not in "
            f"'{study_options.name}'. Resume it with study.name={before['name']}."
        )


def _read_state(run: Run) -> RunState:
    study = run.study
    check_files(run, columns.NAME)
    if not run.is_running and study is not None:
        with contextlib.suppress(RunError):
            summary = study.summary()
            spaces = [member.name for member in summary.space.members]
            if (candidates := _from_file(run, spaces, summary.objectives)) is not None:
                return RunState(summary.objectives, candidates, summary.seconds)
    try:
        if study is None:
            raise RunError(_without_study(run))
        record = study.read()
    except RunError as error:
        objectives = _objectives(run)
        if (candidates := _from_file(run, _spaces(run.config), objectives)) is None:
            raise RunError(f"{run.option}={run.path}: {error}") from None
        refusal = "" if study is None else study.refusal
        note = (
            f"{refusal or 'its study cannot be read'}; candidates.parquet is read instead, which "
            "has no times of trials"
        )
        return RunState(objectives, candidates, {}, (note,))
    return RunState(record.objectives, record.candidates, record.seconds)


def _without_study(run: Run) -> str:
    """Return why there is no file of the study."""
    has_trials = not run.is_running or (run.path / columns.NAME).exists()
    return _NO_STUDY if has_trials else _NO_TRIAL


def _from_file(
    run: Run, spaces: Sequence[str], objectives: Sequence[str]
) -> list[Candidate] | None:
    return read_candidates(run.path, spaces, [columns.read_column(quality_in(objectives))])


def _as_observed(state: RunState, study: StudySource | None) -> RunState:
    """Return candidates with the observed metric, from the study if it can be read."""
    metric = quality_in(state.objectives)
    name = columns.read_column(metric)
    if not any(name in candidate.details for candidate in state.candidates):
        return state
    if study is not None:
        with contextlib.suppress(RunError):
            return replace(state, candidates=study.read().candidates)

    def without_interval(candidate: Candidate) -> Candidate:
        if (value := candidate.details.get(name)) is None:
            return candidate
        figure = replace(candidate.figures[metric], value=value, low=None, high=None)
        return replace(candidate, figures={**candidate.figures, metric: figure})

    note = f"{metric_of(metric).label} before fine-tuning has no intervals in candidates.parquet"
    candidates = [without_interval(candidate) for candidate in state.candidates]
    return replace(state, candidates=candidates, notes=(*state.notes, note))


def _spaces(config: ManifestOptions) -> list[str]:
    """Return the names of the search spaces; of a benchmark table, the name of its file."""
    if not (names := config.get("search_space")):
        return [Path(config["benchmark"]["path"]).name.partition(".")[0]]
    return [stem(str(name)) for name in (names if isinstance(names, list) else [names])]


def _objectives(run: Run) -> Sequence[str]:
    names = run.manifest.get("objectives") or run.config.get("objectives")
    return names or ("accuracy", *run.config["benchmark"]["costs"])
