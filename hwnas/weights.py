"""What says accuracies of candidates, and has their weights."""

from collections.abc import Iterable, Mapping
from functools import partial

from hwnas.accuracy.on_demand import TrainedOnDemand
from hwnas.accuracy.supernet import SupernetEvaluator
from hwnas.accuracy.trained import TrainedEvaluator
from hwnas.build import Parts
from hwnas.config import SearchConfig
from hwnas.progress import Progress
from hwnas.results import Candidate
from hwnas.supernets import TrainingSetup

Accuracies = TrainedOnDemand | TrainedEvaluator  #: what scores candidates and has their weights


def accuracies(parts: Parts, progress: Progress) -> Accuracies:
    """Return what scores candidates; it trains what is not trained yet when that is needed."""
    scoring = parts.config.scoring
    if parts.config.accuracy == "trained":
        return TrainedEvaluator(parts.setups, parts.config.trained)

    def trained(setup: TrainingSetup) -> SupernetEvaluator:
        supernet, _ = setup.trained(progress)
        return setup.evaluator(supernet, scoring)

    return TrainedOnDemand({n: partial(trained, setup) for n, setup in parts.setups.items()})


def left_after(config: SearchConfig, candidates: Iterable[Candidate]) -> dict[str, int]:
    """Return after how many trainings in a row a search left the networks it trained, by id."""
    found: dict[str, int] = {}
    for candidate in candidates:
        if n := config.trained.n_read(config.metric, candidate.details):
            found[candidate.id] = max(n, found.get(candidate.id, 0))
    return found


def as_left(weights: Accuracies, networks: Mapping[str, int]) -> Accuracies:
    """Return weights as a search left them, where other searches may have gone on with some."""
    return weights.as_left(networks) if isinstance(weights, TrainedEvaluator) else weights
