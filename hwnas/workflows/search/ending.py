"""The end of a search: fine-tuning, verification, reports; the estimate of the remaining time."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, linear_regression
from typing import TYPE_CHECKING, Protocol, final

from hwnas.core.errors import BudgetError, RunError, UnfinishedError
from hwnas.core.run_folder import Row, RunFolder
from hwnas.hardware import backends
from hwnas.nas.candidates import Candidate
from hwnas.nas.engine import MoreTrials
from hwnas.training.batches import steps_per_epoch
from hwnas.training.finetuning.time_budget import TimeBudget
from hwnas.training.inference import at_chance_level
from hwnas.training.options import FinishConfig
from hwnas.workflows.components import finetuning_processes
from hwnas.workflows.reporter import Reporter
from hwnas.workflows.search import cascades, context, finishing
from hwnas.workflows.search.context import TargetContext
from hwnas.workflows.search.finetuning_outcome import FinetuningOutcome
from hwnas.workflows.search.front import (
    SearchOutcome,
    TargetFront,
    final_record,
    folder_of,
    manifest_of,
    remove_front_files,
    write_front,
)
from hwnas.workflows.search.phase_times import COMPILE_S, INFERENCES
from hwnas.workflows.search.time_plan import START_S, TimeLimit

if TYPE_CHECKING:
    from hwnas.workflows.search.baseline import Baseline

_NOTHING, _NONE = "nothing fits the budget", "none could be verified"


def end(  # noqa: PLR0913, PLR0917
    contexts: Sequence[TargetContext],
    folder: RunFolder,
    manifest: Row,
    candidates: list[Candidate],
    reporter: Reporter,
    baselines: Mapping[str, "Baseline"],
    limit: TimeLimit | None = None,
    more_trials: MoreTrials | None = None,
) -> SearchOutcome:
    """Fine-tune, compile and evaluate the front of each target; write and return the results.

    Args:
        contexts: One for each target.
        folder: Folder of the run.
        manifest: Manifest of the run; results are added to it.
        candidates: All candidates of the search.
        reporter: Is notified of progress.
        baselines: Baselines by name of the target.
        limit: Time limit of the command, if there is one.
        more_trials: Opens the trials that run while the teacher is trained; ``None``: none.

    Raises:
        BudgetError: no candidate is feasible on any target.
        RunError: no feasible candidate was fine-tuned, compiled and evaluated without an error.
    """
    feasible, missed = _feasible_targets(contexts, folder, candidates)
    lacking = dict.fromkeys({s.target for s in contexts} - {s.target for s in feasible}, _NOTHING)
    if not feasible:
        if candidates:  # else the time limit ended first: the search can be resumed
            _write_without_front(folder, manifest, lacking, _NOTHING)
        raise (BudgetError if candidates else UnfinishedError)(" ".join(missed))
    budget = _time_budget(contexts[0].config.finish, folder, manifest, limit)
    views = context.views(contexts)
    finetuned = finishing.finish(feasible, views, candidates, budget, reporter, more_trials)
    candidates = finetuned.candidates
    reporter.say(finetuned.messages, alarming=True)
    manifest |= finetuned.facts()
    verified = [_front(s, folder, finetuned, reporter, baselines) for s in feasible]
    fronts = [front for front in verified if front.members]
    missed += [_no_front_message(f, folder) for f in verified if not f.members]
    lacking |= {front.context.target: _NONE for front in verified if not front.members}
    if failed := {f.context.target: dict(f.front.failed) for f in verified if f.front.failed}:
        manifest["unverified"] = failed
    _write_without_front(folder, manifest, lacking, "" if fronts else _NONE)
    if not fronts:
        raise RunError(" ".join(missed))
    with reporter.timed("Count cascades"):
        fronts = _with_cascades(fronts)
    with reporter.timed("Count exits"):
        fronts = [replace(f, exits=cascades.exits_of_target(f.folder, f.members)) for f in fronts]
    if limit is not None:
        manifest["elapsed_s"] = round(limit.elapsed_s, 2)
    if len(contexts) == 1:
        (front,) = fronts
        with reporter.timed("Write reports"):
            write_front(front, manifest | final_record(reporter, front.candidates, front.members))
        return SearchOutcome(folder, manifest, fronts)
    from hwnas.workflows.search import joint_front  # imported here: several targets are rare

    fitting = [] if missed else joint_front.fitting(contexts, candidates, finetuned)
    joint = joint_front.verified(contexts, folder, fitting, finetuned, fronts, reporter)
    missed += joint_front.empty_front_message(joint, contexts, candidates)
    with reporter.timed("Write reports"):
        manifest |= joint_front.joint_record(reporter, candidates, fronts, joint.front.members)
        for front in fronts:
            record = final_record(reporter, front.candidates, front.members)
            write_front(front, manifest_of(manifest, front.context.target) | record)
        joint_front.write_joint_front(folder, manifest, fronts, fitting, joint, missed)
    return SearchOutcome(folder, manifest, fronts, joint.front, missed)


def _time_budget(
    config: FinishConfig, folder: RunFolder, manifest: Row, limit: TimeLimit | None
) -> TimeBudget:
    """Return the time budget of fine-tuning; the manifest stores the elapsed time."""

    def keep(spent_s: float) -> None:
        manifest["finishing_s"] = round(spent_s, 2)
        if limit is not None:
            manifest["elapsed_s"] = round(limit.elapsed_s, 2)
        folder.write_json("manifest.json", manifest)

    def keep_epochs(epochs: int) -> None:
        manifest["finishing_epochs"] = epochs
        folder.write_json("manifest.json", manifest)

    spent_s = manifest.get("finishing_s", 0.0)
    limit_s = math.inf if config.minutes is None else 60 * config.minutes
    if limit is not None:
        limit_s = min(limit_s, spent_s + limit.finetuning_left_s())
    # A run that began without a limit keeps the epochs of its trainings, which would be lost.
    epochs = manifest.get("finishing_epochs", manifest.get("finishing", {}).get("epochs"))
    return TimeBudget(limit_s, spent_s, keep, epochs, keep_epochs)


def _feasible_targets(
    contexts: Sequence[TargetContext], folder: RunFolder, candidates: Sequence[Candidate]
) -> tuple[list[TargetContext], list[str]]:
    """Return the targets with feasible candidates, and errors of the others."""
    feasible, missed = [], []
    for view, target in zip(context.views(contexts).values(), contexts, strict=True):
        try:
            target.front([view.view_of(candidate) for candidate in candidates], folder)
            feasible.append(target)
        except BudgetError as error:
            missed.append(f"{target.label}{error}")
    return feasible, missed


def _write_without_front(
    folder: RunFolder, manifest: Row, lacking: Mapping[str, str], status: str
) -> None:
    """Write the manifests of targets without a front, and of a run without any.

    Args:
        folder: Folder of the run.
        manifest: Manifest of the run.
        lacking: Reasons, by target.
        status: The reason if no target has a front, else empty.
    """
    for target in [name for name in manifest.get("targets", ()) if name in lacking]:
        target_manifest = manifest_of(manifest, target) | {"status": lacking[target]}
        remove_front_files(folder_of(folder, target), target_manifest)
    if status:
        remove_front_files(folder, manifest | {"status": status})


def _with_cascades(fronts: Sequence[TargetFront]) -> list[TargetFront]:
    """Return fronts with cascades of their members, on the target or across ``link.to``.

    The cascades are also compared with the baseline.
    """
    stages = {
        f.context.target: cascades.stages(f.folder, f.members, f.context.config.target.batch)
        for f in fronts
    }
    results = []
    for front in fronts:
        config, target = front.context.config, front.context.target
        to = config.link.to
        server = [] if to is None or to == target else stages.get(to, [])
        report = cascades.cascades_of_target(config, stages[target], server)
        against = front.against
        if against is not None:
            against = against.with_cascades(front.members, report)
        results.append(replace(front, cascades=report, against=against))
    return results


def _front(
    target_context: TargetContext,
    folder: RunFolder,
    outcome: FinetuningOutcome,
    reporter: Reporter,
    baselines: Mapping[str, "Baseline"],
) -> TargetFront:
    """Verify the front of a target, in the run's folder or in a subfolder for the target."""
    place, phase = folder, "Verify front"
    if target_context.is_one_of_several:
        place, phase = (
            folder_of(folder, target_context.target),
            f"Verify on {target_context.target}",
        )
    candidates = outcome.known[target_context.target].candidates
    verified = target_context.verified(
        outcome.members(target_context.target), outcome.finisher, place, reporter, phase
    )
    members = sorted(verified.members, key=lambda m: m.figures["latency_ms"].value)
    qualities = {member.candidate.id: member.quality for member in members}
    at_chance = at_chance_level(
        target_context.config.metric, qualities, target_context.parts.data.constant("test")
    )
    rows = [c.row(target_context.parts.space, target_context.config.metric) for c in candidates]
    place.write_parquet("candidates.parquet", rows)
    base = baselines.get(target_context.target) if members else None
    against = (
        None if base is None else base.compared_with(target_context.config, candidates, members)
    )
    in_int8 = {m.candidate.id for m in members if m.dtype("") == "int8"}
    remaining = outcome.unfinished(target_context.target)
    front = TargetFront(
        target_context,
        place,
        candidates,
        replace(verified, members=members, at_chance_level=sorted(at_chance)),
        against,
        without_int8_training=in_int8 & outcome.without_int8_training,
        unfinished=remaining.ids,
        more=remaining.messages(target_context.config.finish.probability, folder.path),
    )
    if members:  # else one error names all targets
        lines = [*front.headline, *front.notes]
        reporter.say([f"{target_context.label}{line}" for line in lines], alarming=True)
    return front


def _no_front_message(front: TargetFront, folder: RunFolder) -> str:
    """Return why no network of a target is verified, with the command that continues."""
    label = front.context.label
    command = f"hwnas resume {shlex.quote(str(folder.path))}"
    failed = front.front.failed
    if not failed:
        return (
            f"{label}None of the networks within its budget was fine-tuned and verified. Resume "
            f"with larger minutes, finish.minutes or finish.max_candidates: {command}"
        )
    name, reason = next(iter(failed.items()))
    return (
        f"{label}None of {len(failed)} networks that may be on the front could be verified, "
        f"for example {name}: {reason.rstrip('.')}. All candidates are in {folder.path}. To try "
        f"again: {command}"
    )


# The estimate of the time until the end.

#: Phases of fine-tuning: one network, then the others.
FINETUNING = ("Train the teacher", "Finish members")
_REPORT_S = 2.0  # for reports
_VERIFIED = 0.5  # fraction of the time reserved for verification that it takes on average


class TimedTrials(Protocol):
    """Finished trials with their durations."""

    candidates: list[Candidate]  #: in order of trials
    durations: dict[int, float]  #: seconds of each trial, by its number


@final
class RemainingTime:
    """Estimates the remaining time of a search over all its phases; see ``LaterWork``.

    Trials give the duration of an epoch, which gives that of fine-tuning and of verification.

    Args:
        contexts: One for each target.
        study: The trials.
        limit: Time limit of the command.
    """

    def __init__(
        self, contexts: Sequence[TargetContext], study: TimedTrials, limit: TimeLimit | None
    ):
        parts = contexts[0].parts
        self._config, self._data = parts.config, parts.data
        self._n_processes = finetuning_processes(parts)
        self._study, self._limit = study, limit
        self._n_targets, self._n_verified = len(contexts), 0
        self._n_begun = 0.0
        self._is_teaching = False  #: members follow, for which the limit leaves all other time
        self._fitted: tuple[int, float | None] = (0, None)  #: number of trials, and their epoch
        finish, is_trained = self._config.finish, self._config.accuracy == "trained"
        self._epochs = finish.epochs
        if finish.epochs is None and is_trained:
            self._epochs = self._config.train.epochs
        train = self._config.train.for_images(n := len(self._data.train))
        steps = steps_per_epoch(train.images_per_step, n)
        self._n_steps = max(1, steps * (self._epochs or 0))

    def begin(self, name: str, n_steps: int) -> float:
        """Return the expected seconds of a phase that begins; infinite if they are unknown."""
        if name in FINETUNING:
            self._is_teaching = name == FINETUNING[0]
            self._n_begun += n_steps / self._n_steps
            seconds, epoch_s = self._finetuning_s(n_steps / self._n_steps), self._epoch_s()
            if name == FINETUNING[0] and epoch_s is not None:  # one process trains the teacher
                return (self._epochs or 0) * epoch_s
            return math.inf if seconds is None else seconds
        if name.startswith("Verify"):
            self._n_verified += 1
            return n_steps * self._verification_s()
        return math.inf

    def left_s(self, phase_s: float) -> float | None:
        """Return the seconds until the end; ``None`` if the duration of an epoch is unknown.

        ``phase_s`` are those of the current phase.
        """
        n_networks = self._n_networks()
        n_later = (self._n_targets - self._n_verified) * n_networks
        later_s = n_later * self._verification_s() + _REPORT_S
        if self._n_verified:
            return phase_s + later_s
        if (limit := self._limit) is not None:
            ends_s = limit.plan.limit_s - limit.elapsed_s
            if not self._n_begun or self._is_teaching:
                return ends_s
            return min(phase_s + limit.plan.verification_s, ends_s)
        finetuning_s = self._finetuning_s(max(0.0, self._n_targets * n_networks - self._n_begun))
        if self._config.finish.minutes is not None:
            most_s = 60 * self._config.finish.minutes
            finetuning_s = most_s if finetuning_s is None else min(finetuning_s, most_s)
        if finetuning_s is None:
            return None
        start_s = 0.0 if self._n_begun else START_S  # worker processes
        return phase_s + start_s + finetuning_s + later_s

    def _n_networks(self) -> float:
        """Return the expected number of networks to fine-tune for a target."""
        config, candidates = self._config, self._study.candidates
        scored = sum(not candidate.reason for candidate in candidates)
        n_trials = max(config.n_trials, len(candidates)) if self._limit is None else len(candidates)
        n_scored = n_trials * scored // max(1, len(candidates))
        return min(n_scored, config.finish.max_networks(n_scored, is_limited=False))

    def _finetuning_s(self, n_networks: float) -> float | None:
        if self._epochs == 0:
            return 0.0
        epoch_s = self._epoch_s()
        if epoch_s is None or self._epochs is None:
            return None
        return n_networks * self._epochs * epoch_s / self._n_processes

    def _verification_s(self) -> float:
        """Return the expected seconds of the verification of one network."""
        data, is_measured = self._data, backends.get(self._config.target.runtime).measured
        n_images = len(data.test) + 2 * len(data.validation)
        image_s = (self._epoch_s() or 0.0) / len(data.train)
        return _VERIFIED * (COMPILE_S[is_measured] + INFERENCES * n_images * image_s)

    def _epoch_s(self) -> float | None:
        """Return the mean seconds of an epoch of a candidate; ``None`` before the first one."""
        if self._fitted[0] != (n := len(self._study.candidates)):
            self._fitted = (n, self._fitted_epoch_s())
        return self._fitted[1]

    def _fitted_epoch_s(self) -> float | None:
        """Fit the durations of trials by their numbers of epochs: proposals take time, too."""
        trained, metric = self._config.trained, self._config.metric
        distinct = {c.id: c for c in reversed(self._study.candidates)}.values()  # first trials
        epochs = [sum(trained.fidelities[: trained.n_read(metric, c.details)]) for c in distinct]
        if not any(epochs):
            return None
        seconds = [self._study.durations[c.trial] for c in distinct]
        bound = fmean(seconds) / fmean(epochs)
        slope = linear_regression(epochs, seconds).slope if len({*epochs}) > 1 else bound
        return min(slope, bound) if slope > 0 else bound
