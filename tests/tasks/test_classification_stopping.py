from functools import cache

import numpy as np
import pytest
from scipy import stats
from sklearn.datasets import load_digits
from sklearn.tree import DecisionTreeClassifier

from hwnas.tasks import early_stopping
from hwnas.tasks.base import Incumbent, Index, Score
from hwnas.tasks.early_stopping import Bits

N = 2000


def _simulate_networks(n_networks: int, seed: int) -> Bits:
    """Networks of different ability on images of different difficulty."""
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(-4, 3, N)
    ability = rng.normal(0, 0.4, (n_networks, 1))
    return np.asarray(rng.random((n_networks, N)) < 1 / (1 + np.exp(difficulty - ability)))


@cache
def _train_trees(n_networks: int) -> Bits:
    """Real classifiers of different ability on real images."""
    images, labels = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(n_networks):
        chosen = rng.choice(600, 500, replace=False)
        depth = int(rng.integers(7, 11))
        tree = DecisionTreeClassifier(max_depth=depth, max_features=0.6, random_state=seed)
        tree.fit(images[chosen], labels[chosen])
        rows.append(tree.predict(images[600:]) == labels[600:])
    return np.array(rows)


def _score(right: Bits, incumbent: Bits, earlier: Bits, confidence: float, seed: int) -> Score:
    indices_read: list[int] = []

    def read(index: Index) -> Bits:
        indices_read.extend(index.tolist())
        return np.asarray(right[index])

    packed = Incumbent(_pack(incumbent), tuple(_pack(bits) for bits in earlier))
    order = np.random.default_rng(seed)
    score = early_stopping.read_accuracy(read, len(right), packed, confidence, order)
    assert len(set(indices_read)) == len(indices_read) == score.n_images  # no image twice
    return score


def _pack(bits: Bits) -> bytes:
    return np.packbits(bits).tobytes()


def _nearest_worse(networks: Bits, i: int) -> int | None:
    """Return the most accurate other network that is no more accurate than the ``i``-th."""
    counts = networks.sum(axis=1)
    below = [j for j in range(len(networks)) if j != i and counts[j] <= counts[i]]
    return max(below, key=lambda j: int(counts[j])) if below else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["simulated", "real"])
@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_equal_network_is_stopped_within_error_rate(kind: str, confidence: float) -> None:
    n_wrong = n = 0
    for seed in range(12):
        networks = _simulate_networks(40, seed) if kind == "simulated" else _train_trees(40)
        for i in range(len(networks)):
            j = _nearest_worse(networks, i)  # the incumbent that is hardest to distinguish
            if j is None:
                continue
            earlier = np.delete(networks, i, axis=0)
            score = _score(networks[i], networks[j], earlier, confidence, 1000 * seed + i)
            n, n_wrong = n + 1, n_wrong + score.stopped
    assert n > 400
    assert n_wrong <= stats.binom.ppf(0.999, n, 1 - confidence)
    assert n_wrong > 0  # it is the limit that is tested, not a rule that never stops


@pytest.mark.parametrize("kind", ["simulated", "real"])
def test_worse_networks_are_stopped_with_valid_intervals(kind: str) -> None:
    networks = _simulate_networks(40, 0) if kind == "simulated" else _train_trees(40)
    counts = networks.sum(axis=1)
    best, n = int(np.argmax(counts)), networks.shape[1]
    scores = {
        i: _score(networks[i], networks[best], np.delete(networks, i, axis=0), 0.99, i)
        for i in range(len(networks))
        if counts[i] < counts[best] - n // 50
    }
    stopped = {i: score for i, score in scores.items() if score.stopped}
    assert len(stopped) > 0.9 * len(scores) > 10
    assert np.mean([score.n_images for score in scores.values()]) < 0.4 * n
    covered = []
    for i, score in stopped.items():
        figure = score.figure
        assert figure.low is not None
        assert figure.high is not None
        assert score.per_image == b""
        assert figure.source == "modelled"
        assert figure.low < figure.value < counts[best] / n
        covered.append(figure.low <= counts[i] / n <= figure.high)
        full_figure = early_stopping.score_of_all_bits(networks[i]).figure
        assert full_figure.low is not None
        assert full_figure.high is not None
        assert figure.high - figure.low > full_figure.high - full_figure.low
    assert np.mean(covered) > 0.9


def test_best_network_is_scored_on_all_images() -> None:
    networks = _simulate_networks(30, 1)
    best = int(np.argmax(networks.sum(axis=1)))
    for seed in range(20):
        score = _score(networks[best], networks[0], np.delete(networks, best, axis=0), 0.99, seed)
        assert score == early_stopping.score_of_all_bits(networks[best])
    assert score.n_images == N
    assert score.figure.value == networks[best].mean()
    assert np.array_equal(early_stopping.unpacked_bits(score.per_image, N), networks[best])


def test_scoring_is_deterministic() -> None:
    networks = _simulate_networks(30, 2)
    best = int(np.argmax(networks.sum(axis=1)))
    twice = [_score(networks[3], networks[best], networks[4:], 0.99, 7) for _ in range(2)]
    assert twice[0] == twice[1]


def test_identical_networks_are_scored_on_all_images() -> None:
    bits = np.arange(N) % 10 > 0
    score = _score(bits, bits, np.stack([bits] * 5), 0.99, 0)
    assert score == early_stopping.score_of_all_bits(bits)


@pytest.mark.parametrize("n", [1, 3, 17])
def test_tiny_splits_are_scored(n: int) -> None:
    earlier = np.ones((5, n), np.bool_)
    assert _score(earlier[0], earlier[0], earlier, 0.9, 0) == early_stopping.score_of_all_bits(
        earlier[0]
    )


def test_stratum_predicts_beta_binomial_rest() -> None:
    stratum = early_stopping._Stratum(np.arange(100), mean=0.3, strength=8.0)
    is_read = np.arange(40) % 4 == 0
    exact = stats.betabinom(60, 0.3 * 8 + 10, 0.7 * 8 + 30)
    assert stratum.predict_rest(is_read) == pytest.approx((exact.mean(), exact.var()))
    assert stratum.predict_rest(np.ones(100, np.bool_)) == (0.0, 0.0)  # no images remain


@pytest.mark.parametrize("n", [1, 2, 3, 11])
def test_few_images_are_scored_without_empty_batches(n: int) -> None:
    right = np.ones(n, np.bool_)

    def read(index: Index) -> Bits:
        assert len(index)
        return np.asarray(right[index])

    packed = Incumbent(_pack(right), (_pack(right),))
    score = early_stopping.read_accuracy(read, n, packed, 0.99, np.random.default_rng(0))
    assert score.n_images == n
