"""Cached evaluations of the networks of the Fashion-MNIST supernet on a target.

A file caches the costs of each network and which validation images it classifies correctly.
Searches with different samplers and seeds share the cache, so each network is evaluated only once.
"""

import argparse
import json
import sqlite3
import tempfile
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from hydra import compose, initialize_config_dir
from numpy.typing import NDArray
from omegaconf import OmegaConf
from torch import Tensor

from hwnas.core import package
from hwnas.core.errors import CompileError
from hwnas.core.pareto import hypervolume
from hwnas.core.progress import NullProgress
from hwnas.core.quantity import Quantity
from hwnas.hardware.costs.cost_model import Cost, CostModel
from hwnas.models.spaces import Genotype
from hwnas.nas import loop
from hwnas.nas.candidates import Candidate
from hwnas.nas.options import SamplerConfig
from hwnas.nas.study import LocalStudy
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.early_stopping import Bits, read_accuracy, score_of_all_bits, unpacked_bits
from hwnas.tasks.metrics import metric_of
from hwnas.training.evaluation.interfaces import Evaluator
from hwnas.training.inference import per_sample
from hwnas.workflows import components, config

_STARTUP = {"pareto": 16}  # as in conf/sampler

#: Reference point of the hypervolume, fixed before any search was run. The accuracy is below that
#: of every network of the front, the latency is that of the budget `edge`, and the energy is above
#: that of every network with this latency.
REFERENCE = {"accuracy": 0.85, "latency_ms": 0.5, "energy_mj": 0.05}


def volume(points: NDArray[np.float64], objectives: Sequence[str]) -> float:
    """Return the hypervolume of points ``(n, objectives)`` up to ``REFERENCE``."""
    reference = [REFERENCE[name] for name in objectives]
    sign = np.array([-1.0 if metric_of(name).maximise else 1.0 for name in objectives])
    inside = points[(points * sign < np.array(reference) * sign).all(axis=1)]
    return hypervolume(inside, reference, [s < 0 for s in sign]) if len(inside) else 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``opened`` to a command line."""
    parser.add_argument("--data", required=True, metavar="DIR", help="Fashion-MNIST as Parquet")
    parser.add_argument("--supernets", default="runs/supernets", metavar="DIR")
    parser.add_argument(
        "--cache", required=True, metavar="DIR", help="folder for cached evaluations"
    )


def opened(arguments: argparse.Namespace, *overrides: str) -> "Evaluations":
    """Open the cache of the search configuration with these overrides."""
    config.register("search")
    overrides = (
        "dataset=fashion_mnist",
        f"dataset.path={arguments.data}",
        "accuracy=supernet",
        f"run.supernets={arguments.supernets}",
        *overrides,
    )
    with initialize_config_dir(str(package.ROOT / "conf"), version_base="1.3"):
        search_config: Any = OmegaConf.to_object(compose("search", [*overrides]))
    parts = components.parts(search_config, NullProgress())
    digests = [parts.digests()[name] for name in ("supernet", "target", "cost")]
    path = Path(arguments.cache, "-".join([parts.config.target.name, *digests]) + ".db")
    path.parent.mkdir(parents=True, exist_ok=True)
    return Evaluations(parts, path)


def searched(
    arguments: argparse.Namespace,
    parts: components.SearchComponents,
    cost_model: CostModel,
    evaluator: Evaluator,
    *,
    name: str,
    seed: int,
) -> list[Candidate]:
    """Run a search with a sampler; return its candidates in the order of evaluation."""
    problem = loop.SearchProblem(parts.space, parts.config.allowed, cost_model, evaluator)
    sampler = SamplerConfig(name, n_startup_trials=_STARTUP.get(name, 20))
    with tempfile.TemporaryDirectory() as folder:
        study = LocalStudy(Path(folder, "study.db"), problem.space, arguments.objectives)
        candidates = loop.run_trials(
            problem, study, sampler, seed, arguments.trials, NullProgress()
        )
        study.close()
    return candidates


@final
class Evaluations:
    """A cost model and an evaluator whose results are cached in a file."""

    def __init__(self, parts: components.SearchComponents, path: Path):
        self.parts = parts
        self._file = sqlite3.connect(path, timeout=60, isolation_level=None)
        self._file.execute("PRAGMA journal_mode=WAL")
        self._file.execute("CREATE TABLE IF NOT EXISTS costs (id PRIMARY KEY, content, seconds)")
        self._file.execute("CREATE TABLE IF NOT EXISTS rights (id PRIMARY KEY, bits, seconds)")
        self._images: dict[int, Tensor] = {}
        self.max_cost_queries = self._cost_model.max_cost_queries
        self.confidence = parts.config.scoring.confidence

    @cached_property
    def _cost_model(self) -> CostModel:
        return components.cost_model(self.parts, None)

    @cached_property
    def evaluator(self) -> components.Accuracies:
        """The underlying evaluator with its supernets."""
        return components.accuracies(self.parts, NullProgress())

    def cost(self, genotype: Genotype) -> Cost:
        """Return the cost of a genotype, without its layers.

        Raises:
            CompileError: The target's compiler rejects the network.
        """
        query = "SELECT content FROM costs WHERE id = ?"
        row = self._file.execute(query, [genotype.id]).fetchone()
        if row is None:
            start = time.perf_counter()
            row = (json.dumps(self._compute_cost(genotype)),)
            seconds = time.perf_counter() - start
            self._file.execute("REPLACE INTO costs VALUES (?, ?, ?)", [genotype.id, *row, seconds])
        content = json.loads(row[0])
        if "refused" in content:
            raise CompileError(content["refused"])
        figures = {name: Quantity(*values) for name, values in content["figures"].items()}
        return Cost(figures, content["details"], reason=content["reason"])

    def _compute_cost(self, genotype: Genotype) -> dict[str, Any]:
        try:
            cost = self._cost_model.cost(genotype)
        except CompileError as error:
            return {"refused": str(error)}
        figures = {name: figure.to_json() for name, figure in cost.figures.items()}
        return {"figures": figures, "details": dict(cost.details), "reason": cost.reason}

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the accuracy on the validation split, with early stopping if configured."""
        correct = self.correct_images(genotype)
        if self.confidence is None or incumbent is None:
            return score_of_all_bits(correct)
        rng = np.random.default_rng(int(genotype.id, 16))
        return read_accuracy(
            lambda index: correct[index], len(correct), incumbent, self.confidence, rng
        )

    def correct_images(self, genotype: Genotype) -> Bits:
        """Return for each validation image whether it is classified correctly, ``(N,)``."""
        n = len(self.parts.data.validation)
        query = "SELECT bits FROM rights WHERE id = ?"
        row = self._file.execute(query, [genotype.id]).fetchone()
        if row is None:
            start = time.perf_counter()
            row = (np.packbits(self._classify(genotype)).tobytes(),)
            seconds = time.perf_counter() - start
            self._file.execute("REPLACE INTO rights VALUES (?, ?, ?)", [genotype.id, *row, seconds])
        return unpacked_bits(row[0], n)

    def all_correct_images(self) -> Bits:
        """Return ``correct_images`` of every cached network, ``(m, N)``."""
        n = len(self.parts.data.validation)
        rows = self._file.execute("SELECT bits FROM rights ORDER BY id").fetchall()
        return np.stack([unpacked_bits(bits, n) for (bits,) in rows])

    def _classify(self, genotype: Genotype) -> Bits:
        data = self.parts.data
        resolution = self.parts.networks.resolution(genotype)
        if resolution not in self._images:
            ((self._images[resolution], _),) = data.batches(data.validation, resolution)
        network = self.evaluator.network(genotype)
        images, targets = self._images[resolution], data.validation.targets
        return per_sample(data.task, network, images, targets).astype(np.bool_)

    def seconds(self) -> dict[str, float]:
        """Return the median seconds of an uncached evaluation, by table of the cache."""
        medians = {}
        for table in ("costs", "rights"):
            rows = self._file.execute(f"SELECT seconds FROM {table}").fetchall()
            medians[table] = float(np.median([row[0] for row in rows])) if rows else 0.0
        return medians
