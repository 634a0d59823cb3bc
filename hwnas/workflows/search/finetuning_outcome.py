"""The results of fine-tuning at the end of a search."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hwnas.core.quantity import Quantity
from hwnas.core.run_folder import Row
from hwnas.nas import candidates as columns
from hwnas.nas.candidates import Candidate
from hwnas.nas.front_probability import CandidatePosteriors
from hwnas.workflows.search.finish_runs import FinetuneResult
from hwnas.workflows.search.finisher import Finetuner
from hwnas.workflows.search.front import NotFinetuned


@dataclass
class FinetuningOutcome:
    """The results of fine-tuning."""

    known: dict[str, CandidatePosteriors]  #: posteriors of all candidates, by target
    among_finished: dict[str, CandidatePosteriors]  #: posteriors of fine-tuned candidates only
    finisher: Finetuner  #: fine-tunes the networks
    #: metric of fine-tuned networks on the validation split, by id
    finished: dict[str, Quantity] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)  #: ids of networks for which time ran out
    #: ids of networks without int8 training, because time ran out
    without_int8_training: set[str] = field(default_factory=set)
    collapsed: dict[str, str] = field(default_factory=dict)  #: messages of failed trainings, by id
    slow_teachers: list[str] = field(default_factory=list)  #: ids of stopped teachers
    candidates: list[Candidate] = field(default_factory=list)  #: of all trials

    @property
    def messages(self) -> list[str]:
        """Messages on failed trainings, and on stopped teachers and what replaced them."""
        failures = [
            f"The fine-tuning of {name} failed, and the network is left out: {reason}"
            for name, reason in self.collapsed.items()
        ]
        if not self.slow_teachers:
            return failures
        names, teacher = ", ".join(self.slow_teachers), self.finisher.teacher
        other = (
            "networks are fine-tuned without one"
            if teacher is None
            else f"another network, {teacher.id}, replaces it"
        )
        are_slow = any(name not in self.collapsed for name in self.slow_teachers)
        problem = "was too slow for the time limit" if are_slow else "failed"
        return [*failures, f"The training of the teacher ({names}) {problem}: {other}."]

    def add(self, results: Mapping[str, FinetuneResult | None], *, final: bool = True) -> None:
        """Add results of networks.

        Args:
            results: Results by id; ``None`` if time ran out.
            final: Whether this is the last round: networks without a result are then ``left_out``.
        """
        ended = {name: result for name, result in results.items() if result is not None}
        self.finished |= {n: r.figure for n, r in ended.items() if r.figure is not None}
        self.collapsed |= {name: result.failure for name, result in ended.items() if result.failure}
        self.without_int8_training |= {
            name for name, result in ended.items() if result.without_int8_training
        }
        self.left_out |= {*results} if final else {*self.collapsed}
        self.left_out -= {*self.finished}

    def facts(self) -> Row:
        """Return the entry ``finishing`` of the manifest, with its key."""
        config, teacher = self.finisher.config, self.finisher.teacher
        return {
            "finishing": {
                "epochs": config.epochs,
                "rate": config.rate,
                "alpha": config.alpha,
                "max_int8_drop": config.max_int8_drop,
                "teacher": None if teacher is None else teacher.id,
                "finished": {name: figure.to_json() for name, figure in self.finished.items()},
                **({"hurried": ids} if (ids := sorted(self.without_int8_training)) else {}),
                **({"collapsed": self.collapsed} if self.collapsed else {}),
            }
        }

    def as_finished(self, candidate: Candidate) -> Candidate:
        """Return a fine-tuned candidate with its new metric, and that of the search in details."""
        metric, figure = self.finisher.parts.config.metric, self.finished[candidate.id]
        value = candidate.figures[metric].value
        metrics = {columns.read_column(metric): value, columns.finished(metric): figure.value}
        return replace(
            candidate,
            figures={**candidate.figures, metric: figure},
            details={**candidate.details, **metrics},
            stopped=False,
        )

    def unfinished(self, target: str) -> NotFinetuned:
        """Return the likely front members without fine-tuning, most probable first."""
        config = self.finisher.parts.config.finish
        probable = self.known[target].most_probable(config.probability)
        ids = [c.id for c in probable if c.id not in {*self.finished, *self.collapsed}]
        search = self.finisher.parts.config
        if self.left_out.intersection(ids):
            limits = {"minutes": search.minutes, "finish.minutes": config.minutes}
            longer = [f"{name}={2 * n:g}" for name, n in limits.items() if n is not None]
            return NotFinetuned(ids, longer)
        return NotFinetuned(ids, [f"finish.max_candidates={len(self.finished) + len(ids)}"])

    def members(self, target: str) -> list[Candidate]:
        """Return the candidates to compile: fine-tuned, likely on the front, fastest first.

        At least the most probable one is returned: among many similar candidates, each probability
        may be low. Posterior estimates are among all candidates, as in ``candidates.parquet``.
        """
        config = self.finisher.parts.config.finish
        probable = self.among_finished[target].most_probable(config.probability, 1)
        by_id = {c.id: c for c in reversed(self.known[target].candidates)}
        return sorted(
            (by_id[c.id] for c in probable), key=lambda c: (c.figures["latency_ms"].value, c.id)
        )
