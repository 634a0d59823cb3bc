"""Compare searches with and without early stopping of validation.

    python -m experiments.early_stopping.compare --data DIR --cache DIR --samplers nsga2 --seeds 5

Each search runs once per value of ``--confidence``; ``null`` means complete validation. Every
network is also validated completely outside the search, so that the true accuracy of stopped
networks is known. A search in ``--cache`` is not repeated. ``--report`` compares all cached
searches. ``--calibrate 1000`` draws 1000 networks from the cache. It compares each with the most
accurate incumbent that is not better, and counts how often the network is stopped.
"""

import argparse
import csv
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from experiments import evaluations
from experiments.evaluations import Evaluations, searched, volume
from hwnas.models.spaces import Genotype
from hwnas.nas.front import pareto_front
from hwnas.tasks.base import Incumbent, Score
from hwnas.tasks.early_stopping import Bits, read_accuracy


@dataclass
class RecordingEvaluator:
    """An evaluator that records every decision."""

    evaluations: Evaluations
    decisions: list[dict[str, Any]] = field(default_factory=list)
    accuracies: dict[str, float] = field(default_factory=dict)  #: on all images, by genotype

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the accuracy of a genotype, and record it."""
        score = self.evaluations.score(genotype, incumbent)
        correct = self.evaluations.correct_images(genotype)
        n_correct = int(correct.sum())
        accuracy = self.accuracies[genotype.id] = n_correct / len(correct)
        lead = None
        if incumbent is not None:
            lead = n_correct - int.from_bytes(incumbent.per_image).bit_count()
        error = score.figure.value - accuracy
        self.decisions.append(
            {"n": score.n_images, "lead": lead, "stopped": score.stopped, "error": error}
        )
        return score


def main() -> None:
    """Run the missing searches, print a calibration, or compare the cached searches."""
    arguments = _parse()
    folder = Path(arguments.cache, "early_stopping")
    folder.mkdir(parents=True, exist_ok=True)
    if arguments.report:
        rows = _compare([json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))])
        if arguments.out:
            with Path(arguments.out).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        return
    cached = evaluations.opened(arguments, "+target=npu")
    if arguments.calibrate:
        _calibrate(cached.all_correct_images(), arguments.calibrate)
        return
    tasks = itertools.product(range(arguments.seeds), arguments.samplers, arguments.confidence)
    for seed, name, confidence in tasks:
        n = len(arguments.objectives)
        path = folder / f"{n}-{name}-{arguments.trials}-{confidence}-{seed}.json"
        if not path.exists():
            cached.confidence = None if confidence == "null" else float(confidence)
            path.write_text(json.dumps(_search(cached, arguments, name, seed)))
        print(path, flush=True)


def _search(
    cached: Evaluations, arguments: argparse.Namespace, name: str, seed: int
) -> dict[str, Any]:
    """Run a search; return its settings, its decisions, its front and the true values."""
    recorder = RecordingEvaluator(cached)
    candidates = searched(arguments, cached.parts, cached, recorder, name=name, seed=seed)
    front = pareto_front(candidates, arguments.objectives)
    true_figures = [
        {n: f.value for n, f in c.figures.items()} | {"accuracy": recorder.accuracies[c.id]}
        for c in candidates
        if c.id in recorder.accuracies
    ]
    return {
        "sampler": name,
        "seed": seed,
        "trials": arguments.trials,
        "objectives": arguments.objectives,
        "confidence": cached.confidence,
        "n_validation": len(cached.parts.data.validation),
        "n_recalibration": cached.parts.config.scoring.n_recalibration,
        "decisions": recorder.decisions,
        "front": [[c.figures[o].value for o in arguments.objectives] for c in front],
        "candidates": [[figures[o] for o in arguments.objectives] for figures in true_figures],
    }


def _calibrate(networks: Bits, n: int) -> None:
    """Print how often a candidate is stopped although it is as good as a similar incumbent."""
    rng = np.random.default_rng(0)
    print(f"{len(networks)} networks, {n} draws of 30 earlier networks and a candidate")
    draws = [rng.choice(len(networks), 31, replace=False) for _ in range(n)]
    for confidence in (0.8, 0.9, 0.95, 0.99):
        stopped = []
        for seed, (i, *others) in enumerate(draws):
            counts = {j: int(networks[j].sum()) for j in (i, *others)}
            not_better = [j for j in others if counts[j] <= counts[i]]
            if not not_better:
                continue
            best = max(not_better, key=lambda j: counts[j])
            packed = [np.packbits(networks[j]).tobytes() for j in (best, *others)]
            incumbent = Incumbent(packed[0], tuple(packed[1:]))
            correct, order_rng = networks[i], np.random.default_rng(seed)
            score = read_accuracy(
                correct.__getitem__, len(correct), incumbent, confidence, order_rng
            )
            stopped.append(score.stopped)
        print(f"  confidence {confidence}: {sum(stopped)} of {len(stopped)} stopped", flush=True)


def _compare(searches: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Print a comparison for each kind of search; return a row for each search."""
    rows = [_row(search) for search in searches]
    kinds = dict.fromkeys((r["objectives"], r["sampler"], r["trials"]) for r in rows)
    for kind in kinds:
        selected = [r for r in rows if (r["objectives"], r["sampler"], r["trials"]) == kind]
        print(", ".join(kind))
        complete = {r["seed"]: float(r["volume"]) for r in selected if r["confidence"] == "null"}
        for confidence in sorted({r["confidence"] for r in selected} - {"null"}):
            stopping = [r for r in selected if r["confidence"] == confidence]
            _print_comparison(stopping, complete, confidence)
    return rows


def _row(search: dict[str, Any]) -> dict[str, str]:
    decisions, candidates = search["decisions"], np.array(search["candidates"])
    n, n_validation = len(decisions), search["n_validation"]
    n_images, n_recalibration = sum(d["n"] for d in decisions), search["n_recalibration"]
    total = n_images + n * n_recalibration
    as_good = [d for d in decisions if d["lead"] is not None and d["lead"] >= 0]
    errors = [d["error"] for d in decisions if d["stopped"]]
    return {
        "objectives": " ".join(search["objectives"]),
        "sampler": search["sampler"],
        "trials": str(search["trials"]),
        "seed": str(search["seed"]),
        "confidence": "null" if search["confidence"] is None else str(search["confidence"]),
        "volume": f"{volume(np.array(search['front']), search['objectives']):.6g}",
        "volume_of_candidates": f"{volume(candidates, search['objectives']):.6g}",
        "front": str(len(search["front"])),
        "networks": str(n),
        "images": str(n_images),
        "share": f"{n_images / (n * n_validation):.4f}",
        "share_with_recalibration": f"{total / (n * (n_validation + n_recalibration)):.4f}",
        "stopped": str(len(errors)),
        "as_good_as_rival": str(len(as_good)),
        "wrongly_stopped": str(sum(d["stopped"] for d in as_good)),
        "prediction_error": f"{np.sqrt(np.mean(np.square(errors))):.5f}" if errors else "",
    }


def _print_comparison(
    rows: Sequence[dict[str, str]], complete: dict[str, float], confidence: str
) -> None:
    """Print savings and hypervolumes; ``complete``: with complete validation, by seed."""
    ratios = [float(r["volume"]) / complete[r["seed"]] for r in rows if r["seed"] in complete]
    as_good, wrong = (
        sum(int(r[name]) for r in rows) for name in ("as_good_as_rival", "wrongly_stopped")
    )
    share, share_with_recalibration = (
        np.mean([float(r[name]) for r in rows]) for name in ("share", "share_with_recalibration")
    )
    ratios_text = " ".join(f"{ratio:.4f}" for ratio in ratios)
    lowest = min(float(r["volume"]) / float(r["volume_of_candidates"]) for r in rows)
    half_width = stats.t.ppf(0.975, len(ratios) - 1) * np.std(ratios, ddof=1) / len(ratios) ** 0.5
    volumes = list(complete.values())
    deviation = np.std(volumes, ddof=1) / np.mean(volumes)
    print(
        f"  confidence {confidence}, {len(rows)} seeds: {1 - share:.1%} fewer images "
        f"({1 - share_with_recalibration:.1%} including recalibration); "
        f"wrongly stopped {wrong} of {as_good}"
    )
    print(
        "    hypervolume relative to a search with complete validation: "
        f"{ratios_text}, mean {np.mean(ratios):.4f} +- {half_width:.4f} (95 %, t); "
        f"standard deviation between seeds with complete validation {deviation:.2%}"
    )
    print(
        "    hypervolume relative to the same candidates, completely validated: "
        f"at least {lowest:.5f}",
        flush=True,
    )


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    evaluations.add_arguments(parser)
    parser.add_argument("--samplers", nargs="+", default=["nsga2"])
    parser.add_argument("--objectives", nargs="+", default=["accuracy", "latency_ms", "energy_mj"])
    parser.add_argument("--confidence", nargs="+", default=["null", "0.99"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--calibrate", type=int, default=0, metavar="N", help="number of draws")
    parser.add_argument("--report", action="store_true", help="compare the cached searches")
    parser.add_argument("--out", help="a CSV file for --report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
