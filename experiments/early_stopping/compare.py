"""Compare searches with early stopping of validation with searches without.

    python -m experiments.early_stopping.compare --data DIR --cache DIR --samplers nsga2 --seeds 5

Each search runs twice, with ``scoring.confidence=null`` and with ``--confidence``. Every network is
completely evaluated beforehand, so that the true accuracy of a stopped one is known. A search in
``--cache`` is not repeated; ``--report`` compares all cached searches. ``--calibrate 1000`` samples
1000 networks from the cache, each with the hardest incumbent that it matches, and counts stops.
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
class Recorded:
    """An evaluator that stores the inputs of every decision."""

    behind: Evaluations
    decisions: list[dict[str, Any]] = field(default_factory=list)
    accuracies: dict[str, float] = field(default_factory=dict)  #: on all images, by genotype

    def score(self, genotype: Genotype, incumbent: Incumbent | None = None) -> Score:
        """Return the observed accuracy of a genotype."""
        score = self.behind.score(genotype, incumbent)
        right = self.behind.right(genotype)
        n_right = int(right.sum())
        self.accuracies[genotype.id] = n_right / len(right)
        lead = (
            None if incumbent is None else n_right - int.from_bytes(incumbent.per_image).bit_count()
        )
        error = score.figure.value - n_right / len(right)
        self.decisions.append(
            {"n": score.n_images, "lead": lead, "stopped": score.stopped, "error": error}
        )
        return score


def main() -> None:
    """Run the missing searches, then compare."""
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
    found = evaluations.opened(arguments, "+target=npu")
    if arguments.calibrate:
        _calibrate(found.all_right(), arguments.calibrate)
        return
    tasks = itertools.product(range(arguments.seeds), arguments.samplers, arguments.confidence)
    for seed, name, words in tasks:
        n = len(arguments.objectives)
        path = folder / f"{n}-{name}-{arguments.trials}-{words}-{seed}.json"
        if not path.exists():
            found.confidence = None if words == "null" else float(words)
            path.write_text(json.dumps(_search(found, arguments, name, seed)))
        print(path, flush=True)


def _search(
    found: Evaluations, arguments: argparse.Namespace, name: str, seed: int
) -> dict[str, Any]:
    """Return the evaluations of a search and its front."""
    recorded = Recorded(found)
    candidates = searched(arguments, found.parts, found, recorded, name=name, seed=seed)
    front = pareto_front(candidates, arguments.objectives)
    scored = [c for c in candidates if c.id in recorded.accuracies]
    true = [
        {**{n: f.value for n, f in c.figures.items()}, "accuracy": recorded.accuracies[c.id]}
        for c in scored
    ]
    return {
        "sampler": name,
        "seed": seed,
        "trials": arguments.trials,
        "objectives": arguments.objectives,
        "confidence": found.confidence,
        "n_validation": len(found.parts.data.validation),
        "n_recalibration": found.parts.config.scoring.n_recalibration,
        "decisions": recorded.decisions,
        "front": [[c.figures[o].value for o in arguments.objectives] for c in front],
        "candidates": [[values[o] for o in arguments.objectives] for values in true],
    }


def _calibrate(networks: Bits, n: int) -> None:
    """Print how often a network as good as its incumbent is stopped if the two are close."""
    rng = np.random.default_rng(0)
    print(f"{len(networks)} networks, {n} draws: 30 earlier ones and a candidate")
    draws = [rng.choice(len(networks), 31, replace=False) for _ in range(n)]
    for confidence in (0.8, 0.9, 0.95, 0.99):
        stopped = []
        for seed, (i, *others) in enumerate(draws):
            counts = {j: int(networks[j].sum()) for j in (i, *others)}
            below = [j for j in others if counts[j] <= counts[i]]
            if not below:
                continue
            incumbent = max(below, key=lambda j: counts[j])
            packed = [np.packbits(networks[j]).tobytes() for j in (incumbent, *others)]
            match = Incumbent(packed[0], tuple(packed[1:]))
            right, order = networks[i], np.random.default_rng(seed)
            score = read_accuracy(right.__getitem__, len(right), match, confidence, order)
            stopped.append(score.stopped)
        print(f"  confidence {confidence}: {sum(stopped)} of {len(stopped)} stopped", flush=True)


def _compare(searches: Sequence[dict[str, Any]]) -> list[dict[str, str]]:
    """Print the differences for each kind of search; return a row for each search."""
    rows = [_row(search) for search in searches]
    kinds = dict.fromkeys((r["objectives"], r["sampler"], r["trials"]) for r in rows)
    for kind in kinds:
        own = [r for r in rows if (r["objectives"], r["sampler"], r["trials"]) == kind]
        print(", ".join(kind))
        plain = {r["seed"]: float(r["volume"]) for r in own if r["confidence"] == "null"}
        for confidence in sorted({r["confidence"] for r in own} - {"null"}):
            _print([r for r in own if r["confidence"] == confidence], plain, confidence)
    return rows


def _row(search: dict[str, Any]) -> dict[str, str]:
    decisions, everything = search["decisions"], np.array(search["candidates"])
    n, whole = len(decisions), search["n_validation"]
    read, again = sum(d["n"] for d in decisions), search["n_recalibration"]
    with_incumbent = [d for d in decisions if d["lead"] is not None]
    good = [d for d in with_incumbent if d["lead"] >= 0]
    stopped = [d["error"] for d in decisions if d["stopped"]]
    return {
        "objectives": " ".join(search["objectives"]),
        "sampler": search["sampler"],
        "trials": str(search["trials"]),
        "seed": str(search["seed"]),
        "confidence": "null" if search["confidence"] is None else str(search["confidence"]),
        "volume": f"{volume(np.array(search['front']), search['objectives']):.6g}",
        "volume_of_candidates": f"{volume(everything, search['objectives']):.6g}",
        "front": str(len(search["front"])),
        "networks": str(n),
        "images": str(read),
        "share": f"{read / (n * whole):.4f}",
        "share_with_recalibration": f"{(read + n * again) / (n * (whole + again)):.4f}",
        "stopped": str(len(stopped)),
        "as_good_as_rival": str(len(good)),
        "wrongly_stopped": str(sum(d["stopped"] for d in good)),
        "prediction_error": f"{np.sqrt(np.mean(np.square(stopped))):.5f}" if stopped else "",
    }


def _print(rows: Sequence[dict[str, str]], plain: dict[str, float], confidence: str) -> None:
    ratios = [float(r["volume"]) / plain[r["seed"]] for r in rows if r["seed"] in plain]
    good, wrong = (sum(int(r[n]) for r in rows) for n in ("as_good_as_rival", "wrongly_stopped"))
    share, both = (
        np.mean([float(r[name]) for r in rows]) for name in ("share", "share_with_recalibration")
    )
    shown = " ".join(f"{ratio:.4f}" for ratio in ratios)
    kept = min(float(r["volume"]) / float(r["volume_of_candidates"]) for r in rows)
    print(f"  confidence {confidence}, {len(rows)} seeds: {1 - share:.1%} fewer images ", end="")
    print(f"({1 - both:.1%} with those of recalibration); wrongly stopped {wrong} of {good}")
    half = stats.t.ppf(0.975, len(ratios) - 1) * np.std(ratios, ddof=1) / np.sqrt(len(ratios))
    spread = np.std(list(plain.values()), ddof=1) / np.mean(list(plain.values()))
    print(f"    hypervolume relative to a search with complete validation: {shown}, mean ", end="")
    print(
        f"{np.mean(ratios):.4f} +- {half:.4f} (95 %, t); "
        f"seeds with complete validation differ by {spread:.2%}"
    )
    print(
        f"    relative to the same candidates, completely validated: {kept:.5f} at least",
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
    parser.add_argument("--calibrate", type=int, default=0, metavar="N", help="draws")
    parser.add_argument("--report", action="store_true", help="compare the cached searches")
    parser.add_argument("--out", help="a CSV file for --report")
    return parser.parse_args()


if __name__ == "__main__":
    main()
