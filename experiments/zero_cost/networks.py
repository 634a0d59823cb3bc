"""Rank correlation of scores of untrained networks with the accuracy of trained ones.

    python -m experiments.zero_cost.networks --data DIR --supernets DIR --cache DIR

Takes all networks that the searches of ``experiments/sampler`` evaluated on the Fashion-MNIST
supernet (from ``--cache``, or evaluated now). Ranks those of the random searches by each score,
by accuracy, and by the sampler's model with and without each score.
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
from hwnas.models.spaces import SearchSpace
from hwnas.nas.pareto.features import ChoiceFeatures

Array = NDArray[np.float64]
Row = Mapping[str, Any]

#: Features in addition to choices and latency: none, each score, all scores.
SETS: tuple[tuple[str, ...], ...] = ((), *((name,) for name in NAMES), NAMES)
_SEARCHES = (("random", 2), ("pareto", 5), ("tpe", 5), ("nsga2", 4))  # samplers and their seeds
_TAUGHT = (25, 50, 100, 150)  # training networks of a model
_DRAWS = 20  # of these


def main() -> None:
    """Print the rank correlations of the scores."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    evaluations.add_arguments(parser)
    parser.add_argument("--trials", type=int, default=150, help="of each search")
    parser.add_argument("--out", help="a CSV file for those of random searches")
    parser.set_defaults(objectives=["accuracy", "latency_ms"])
    arguments = parser.parse_args()
    path = pool(arguments)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(_networks(arguments)))
    rows = read(path)
    random = [row for row in rows if row["by"] == "random"]
    columns = columns_of(random)
    for name in ("latency_ms", *NAMES):
        print(f"{name}: {_ranking(columns[name], columns['accuracy'], columns['latency_ms'])}")
    _learn(choices(random), columns)
    if arguments.out:
        with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
            names = ("id", "accuracy", "latency_ms", *NAMES)
            writer = csv.DictWriter(file, names, lineterminator="\n", extrasaction="ignore")
            writer.writeheader()
            writer.writerows({n: _short(value) for n, value in row.items()} for row in random)


def pool(arguments: argparse.Namespace) -> Path:
    """Return the path of the file with all networks."""
    return Path(arguments.cache, "zero_cost", "networks.json")


def read(path: Path) -> list[Row]:
    """Return all networks: their searches, options, accuracy, latency and scores."""
    rows: list[Row] = json.loads(path.read_text())
    return rows


def columns_of(rows: Sequence[Row]) -> dict[str, Array]:
    """Return metrics and scores by name, ``(n,)``."""
    names = ("accuracy", "latency_ms", *NAMES)
    return {name: np.array([row[name] for row in rows]) for name in names}


def choices(rows: Sequence[Row]) -> Array:
    """Return the encoded choices of networks for the sampler's model, ``(n, d)``."""
    return features()([row["options"] for row in rows])


def features() -> ChoiceFeatures:
    """Return the function from choices to the features of the sampler's model."""
    small = _space()
    return ChoiceFeatures(small.choices, small.optional())


def _space() -> SearchSpace:
    return spaces.load_space(spaces.find("mbconv_small"))


def _networks(arguments: argparse.Namespace) -> list[Row]:
    """Return the networks of the searches, without duplicates, with their zero-cost scores."""
    found: Evaluations = evaluations.opened(arguments, "+target=npu")
    parts = found.parts
    (setup,) = parts.setups.values()
    known = ZeroCost(NAMES, setup.family, setup.space, parts.data)
    rows: dict[str, Row] = {}
    for name, n_seeds in _SEARCHES:
        for seed in range(n_seeds):
            for c in searched(arguments, parts, found, found, name=name, seed=seed):
                if c.reason or c.id in rows:
                    continue
                row = {"id": c.id, "by": name, "options": c.genotype.to_dict()}
                figures = {n: c.figures[n].value for n in arguments.objectives}
                scores = dict(zip(NAMES, known.features(c.genotype), strict=True))
                rows[c.id] = row | figures | scores
            print(f"{name}, seed {seed}: {len(rows)} networks so far", flush=True)
    return list(rows.values())


def _ranking(score: Array, accuracy: Array, latency: Array) -> str:
    """Return the rank correlation of a score as text, overall and at equal latency."""
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(score), len(score)) for _ in range(1000)]
    words = []
    for title, measure in (("Spearman", _spearman), ("at equal latency", _partial)):
        found = [measure(score[i], accuracy[i], latency[i]) for i in draws]
        low, high = np.quantile(found, [0.025, 0.975])
        words.append(f"{title} {measure(score, accuracy, latency):.2f} ({low:.2f}, {high:.2f})")
    tau = stats.kendalltau(score, accuracy).statistic
    return f"{', '.join(words)}, Kendall tau {tau:.2f}; {len(score)} networks"


def _spearman(score: Array, accuracy: Array, latency: Array) -> float:
    return float(stats.spearmanr(score, accuracy).statistic)


def _partial(score: Array, accuracy: Array, latency: Array) -> float:
    """Return the partial rank correlation, controlled for latency."""
    a, s, t = (stats.rankdata(values) for values in (accuracy, score, latency))
    if np.array_equal(s, t):
        return 0.0
    left = [values - np.polyval(np.polyfit(t, values, 1), t) for values in (a, s)]
    return float(np.corrcoef(*left)[0, 1])


def _learn(chosen: Array, columns: Mapping[str, Array]) -> None:
    """Print the rank correlation of the sampler's model on held-out networks."""
    errors = np.log(1 - columns["accuracy"])
    for n in _TAUGHT:
        ranks: dict[tuple[str, ...], list[float]] = {names: [] for names in SETS}
        for draw, names in itertools.product(range(_DRAWS), SETS):
            order = np.random.default_rng(draw).permutation(len(errors))
            told, others = order[:n], order[n:]
            known = [np.log(columns["latency_ms"]), *(columns[name] for name in names)]
            extra = np.column_stack(known)
            extra = (extra - extra[told].min(axis=0)) / np.ptp(extra[told], axis=0)
            x = np.hstack([chosen, extra])
            n_summary = features().n_shares + len(known)
            model = Surrogate(
                x[told], errors[told], fit_hyperparameters(x[told], errors[told], None, n_summary)
            )
            rank = stats.spearmanr(model.predict(x[others])[0], errors[others]).statistic
            ranks[names].append(float(rank))
        for names in SETS:
            more = np.array(ranks[names]) - ranks[()]
            print(
                f"after {n}, {' '.join(names) or 'nothing'}: {np.mean(ranks[names]):.3f}, "
                f"{more.mean():+.3f} +- {more.std(ddof=1) / len(more) ** 0.5:.3f}"
            )


def _short(value: Any) -> Any:
    return float(f"{value:.7g}") if isinstance(value, float) else value


if __name__ == "__main__":
    main()
