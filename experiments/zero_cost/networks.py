"""Rank correlation of scores of untrained networks with accuracy.

    python -m experiments.zero_cost.networks --data DIR --supernets DIR --cache DIR

The script uses all networks that the searches of ``experiments/sampler`` evaluated on the
Fashion-MNIST supernet. Networks that are not in ``--cache`` are evaluated first. For the networks
of the random searches, the script prints the rank correlation of each score with accuracy, and that
of the predictions of the sampler's model with and without each score.
"""

import argparse
import csv
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments import evaluations
from experiments.evaluations import Evaluations, searched
from experiments.zero_cost.scores import NAMES, ZeroCost
from hwnas.core.gaussian_process import Surrogate, fit_hyperparameters
from hwnas.models import spaces
from hwnas.nas.pareto.features import ChoiceFeatures

Array = NDArray[np.float64]
Row = Mapping[str, Any]

#: Features in addition to choices and latency: none, each score, all scores.
FEATURE_SETS: tuple[tuple[str, ...], ...] = ((), *((name,) for name in NAMES), NAMES)
_SEARCHES = (
    ("random", 2),
    ("pareto", 5),
    ("tpe", 5),
    ("nsga2", 4),
)  # samplers, and their numbers of seeds
_TRAINING_SIZES = (25, 50, 100, 150)  # numbers of networks that a model is fitted to
_DRAWS = 20  # random subsets of each size


def main() -> None:
    """Print the rank correlations of the scores and of the sampler's model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    evaluations.add_arguments(parser)
    parser.add_argument("--trials", type=int, default=150, help="number of trials of each search")
    parser.add_argument("--out", help="CSV file for the networks of the random searches")
    parser.set_defaults(objectives=["accuracy", "latency_ms"])
    arguments = parser.parse_args()
    cache = pool_file(arguments)
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        cache.write_text(json.dumps(_evaluate_networks(arguments)))
    rows = read_networks(cache)
    random_rows = [row for row in rows if row["by"] == "random"]
    columns = columns_by_name(random_rows)
    for name in ("latency_ms", *NAMES):
        print(f"{name}: {_correlations(columns[name], columns['accuracy'], columns['latency_ms'])}")
    _compare_models(choice_features_of(random_rows), columns)
    if arguments.out:
        with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
            names = ("id", "accuracy", "latency_ms", *NAMES)
            writer = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows({n: _round(value) for n, value in row.items()} for row in random_rows)


def pool_file(arguments: argparse.Namespace) -> Path:
    """Return the path of the cache with all networks."""
    return Path(arguments.cache, "zero_cost", "networks.json")


def read_networks(path: Path) -> list[Row]:
    """Return all networks with their sampler, options, accuracy, latency and scores."""
    rows: list[Row] = json.loads(path.read_text())
    return rows


def columns_by_name(rows: Sequence[Row]) -> dict[str, Array]:
    """Return metrics and scores by name, ``(n,)``."""
    names = ("accuracy", "latency_ms", *NAMES)
    return {name: np.array([row[name] for row in rows]) for name in names}


def choice_features_of(rows: Sequence[Row]) -> Array:
    """Return the choices of networks, encoded for the sampler's model, ``(n, d)``."""
    return choice_features()([row["options"] for row in rows])


def choice_features() -> ChoiceFeatures:
    """Return the function that encodes choices for the sampler's model."""
    space = spaces.load_space(spaces.find("mbconv_small"))
    return ChoiceFeatures(space.choices, space.optional())


def _evaluate_networks(arguments: argparse.Namespace) -> list[Row]:
    """Run the searches; return their networks, without duplicates, with zero-cost scores."""
    cache: Evaluations = evaluations.opened(arguments, "+target=npu")
    parts = cache.parts
    (setup,) = parts.setups.values()
    zero_cost = ZeroCost(NAMES, setup.family, setup.space, parts.data)
    rows: dict[str, Row] = {}
    for name, n_seeds in _SEARCHES:
        for seed in range(n_seeds):
            for candidate in searched(arguments, parts, cache, cache, name=name, seed=seed):
                if candidate.reason or candidate.id in rows:
                    continue
                row = {"id": candidate.id, "by": name, "options": candidate.genotype.to_dict()}
                figures = {n: candidate.figures[n].value for n in arguments.objectives}
                scores = dict(zip(NAMES, zero_cost.features(candidate.genotype), strict=True))
                rows[candidate.id] = row | figures | scores
            print(f"{name}, seed {seed}: {len(rows)} networks so far", flush=True)
    return list(rows.values())


def _correlations(score: Array, accuracy: Array, latency: Array) -> str:
    """Return the rank correlations of a score with accuracy as text, with 95 % intervals."""
    rng = np.random.default_rng(0)
    resamples = [rng.integers(0, len(score), len(score)) for _ in range(1000)]
    texts = []
    for name, correlation in (("Spearman", _spearman), ("at equal latency", _partial)):
        values = [correlation(score[i], accuracy[i], latency[i]) for i in resamples]
        low, high = np.quantile(values, [0.025, 0.975])
        texts.append(f"{name} {correlation(score, accuracy, latency):.2f} ({low:.2f}, {high:.2f})")
    tau = stats.kendalltau(score, accuracy).statistic
    return f"{', '.join(texts)}, Kendall tau {tau:.2f}; {len(score)} networks"


def _spearman(score: Array, accuracy: Array, latency: Array) -> float:
    return float(stats.spearmanr(score, accuracy).statistic)


def _partial(score: Array, accuracy: Array, latency: Array) -> float:
    """Return the partial rank correlation, controlled for latency."""
    a, s, t = (stats.rankdata(values) for values in (accuracy, score, latency))
    if np.array_equal(s, t):
        return 0.0
    residuals = [values - np.polyval(np.polyfit(t, values, 1), t) for values in (a, s)]
    return float(np.corrcoef(*residuals)[0, 1])


def _compare_models(encoded_choices: Array, columns: Mapping[str, Array]) -> None:
    """Print the rank correlation of the sampler's predictions with accuracy, held-out networks."""
    errors = np.log(1 - columns["accuracy"])
    for n in _TRAINING_SIZES:
        ranks: dict[tuple[str, ...], list[float]] = {names: [] for names in FEATURE_SETS}
        for draw, names in itertools.product(range(_DRAWS), FEATURE_SETS):
            order = np.random.default_rng(draw).permutation(len(errors))
            train, held_out = order[:n], order[n:]
            added = [np.log(columns["latency_ms"]), *(columns[name] for name in names)]
            scaled = np.column_stack(added)
            scaled = (scaled - scaled[train].min(axis=0)) / np.ptp(scaled[train], axis=0)
            x = np.hstack([encoded_choices, scaled])
            n_summary = choice_features().n_shares + len(added)
            parameters = fit_hyperparameters(x[train], errors[train], None, n_summary)
            model = Surrogate(x[train], errors[train], parameters)
            rank = stats.spearmanr(model.predict(x[held_out])[0], errors[held_out]).statistic
            ranks[names].append(float(rank))
        for names in FEATURE_SETS:
            gains = np.array(ranks[names]) - ranks[()]
            print(
                f"after {n}, {' '.join(names) or 'none'}: {np.mean(ranks[names]):.3f}, "
                f"{gains.mean():+.3f} +- {gains.std(ddof=1) / len(gains) ** 0.5:.3f}"
            )


def _round(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
