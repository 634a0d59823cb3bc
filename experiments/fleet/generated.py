"""Generated services and fleets, written as the input files of ``plan``.

Accuracies and latencies resemble those of real families of networks. Each image has a difficulty
that all models share, so that the accuracy of cascades can be evaluated on the same images.
"""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import yaml

BATCHES = (1, 2, 4, 8, 16)
# name: GFLOP/s at batch 1, GFLOP/s at large batches, fixed ms, $/h, idle W, busy W, quota, largest
# model in million MACs, region, slots, buy
DEVICES: dict[str, tuple[Any, ...]] = {
    "ethos_u55": (40, 40, 0.20, 0.0004, 0.05, 0.25, 400, 60, "edge", 1, "bought"),
    "raspi5": (12, 14, 0.40, 0.0040, 2.5, 7.0, 60, 600, "edge", 4, "bought"),
    "jetson": (300, 900, 0.60, 0.0150, 5.0, 15.0, 20, 1e9, "edge", 1, "bought"),
    "onprem_cpu": (40, 50, 0.25, 0.1200, 60, 140, 12, 1e9, "site", 16, "bought"),
    "cpu_reserved": (40, 50, 0.25, 0.1100, 60, 140, 64, 1e9, "cloud", 8, "reserved"),
    "cpu_demand": (40, 50, 0.25, 0.1780, 60, 140, 64, 1e9, "cloud", 8, "on_demand"),
    "cpu_spot": (40, 50, 0.25, 0.0620, 60, 140, 64, 1e9, "cloud", 8, "spot"),
    "gpu_reserved": (1500, 9000, 0.70, 0.3300, 30, 72, 16, 1e9, "cloud", 1, "reserved"),
    "gpu_demand": (1500, 9000, 0.70, 0.5260, 30, 72, 16, 1e9, "cloud", 1, "on_demand"),
    "gpu_spot": (1500, 9000, 0.70, 0.1900, 30, 72, 16, 1e9, "cloud", 1, "spot"),
}
# name: p99 limit in ms, minimum accuracy, peak requests/s, allowed regions, origin, peak hour
CLASSES: dict[str, tuple[Any, ...]] = {
    "kiosk": (30, 0.700, 900, ["edge", "site"], "edge", 12),
    "mobile": (60, 0.740, 4000, ["site", "cloud"], "field", 20),
    "web": (120, 0.770, 2500, ["site", "cloud"], "field", 15),
    "archive": (1000, 0.785, 1500, ["site", "cloud"], "field", 3),
}
LINKS = {
    "edge-site": {"rtt_ms": 5.0},
    "field-site": {"rtt_ms": 5.0},
    "field-cloud": {"rtt_ms": 25.0, "usd_per_gb": 0.02},
    "site-cloud": {"rtt_ms": 25.0, "usd_per_gb": 0.02},
}


def write(
    folder: Path, *, seed: int = 0, n_models: int = 30, scale: float = 1.0, **options: Any
) -> None:
    """Write ``service.yaml``, ``fleet.yaml``, ``front.csv`` and ``answers.npz`` into a folder.

    Args:
        folder: The folder; created if it does not exist.
        seed: Seed of prices, demands and accuracies. With 0, prices and demands are those above.
        n_models: Number of models of the front.
        scale: Factor of the demand.
        options: ``hours``, the number of hours (24); ``trace``, a CSV file of arrivals;
            ``cascades``, if False without predictions; other keys of ``service.yaml``.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)

    def vary() -> float:
        return float(rng.uniform(0.7, 1.4)) if seed else 1.0

    macs = np.geomspace(15, 2000, n_models)
    accuracy = 0.84 - 0.20 * (macs / 15) ** -0.45
    _write_front(folder, macs, _write_predictions(folder, accuracy, rng))
    n_hours = options.pop("hours", 24)
    trace, cascades = options.pop("trace", None), options.pop("cascades", True)
    classes = {}
    for name, (p99_ms, accuracy_min, peak, regions, origin, peak_hour) in CLASSES.items():
        hours = np.arange(n_hours) * 24 / n_hours
        rates = 0.35 + 0.65 * np.exp(-(((((hours - peak_hour + 12) % 24) - 12) / 5) ** 2))
        demand = {"hours": [round(float(v), 3) for v in rates * peak * scale * vary()]}
        classes[name] = {
            "p99_ms": p99_ms, "accuracy_min": accuracy_min,
            "degraded_accuracy": round(accuracy_min - 0.02, 3),
            "regions": regions, "origin": origin, "payload_kib": 3,
            "demand": demand | ({"trace": str(trace)} if trace else {}),
        }  # fmt: skip
    service = {"fronts": ["front.csv"], "classes": classes, **options}
    if cascades:
        service["answers"] = ["answers.npz"]
    fleet = {"devices": {name: _device(name, vary) for name in DEVICES}, "links": LINKS,
             "carbon": {"cloud": 0.35, "site": 0.30, "edge": 0.30}}  # fmt: skip
    for name, content in (("service", service), ("fleet", fleet)):
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def _device(name: str, vary: Any) -> dict[str, Any]:
    _, _, _, price, idle, busy, quota, _, region, slots, buy = DEVICES[name]
    return {
        "region": region, "buy": buy, "quota": quota, "price": round(price * vary(), 6),
        "slots": slots, "idle_w": idle, "busy_w": busy, "start_s": 0 if region == "edge" else 90,
    }  # fmt: skip


def _write_predictions(folder: Path, accuracy: Any, rng: Any) -> Any:
    """Write predictions for 4,000 images; return the accuracy of each model."""
    n = 4000
    difficulty = rng.uniform(0, 1, n)
    noise = rng.normal(0, 0.08, (accuracy.size, n))
    margin = accuracy[:, None] - difficulty + noise
    names = [f"m{i:02d}-int8" for i in range(accuracy.size)]
    confidence = 1 / (
        1 + np.exp(-6 * (np.abs(margin) + 0.3 * (margin > 0) + rng.normal(0, 0.05, margin.shape)))
    )
    np.savez_compressed(
        folder / "answers.npz", models=np.array(names), correct=margin > 0, confidence=confidence
    )
    return (margin > 0).mean(1)


def _write_front(folder: Path, macs: Any, accuracy: Any) -> None:
    with (folder / "front.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "precision", "accuracy", "target", "batch", "latency_ms", "source"])
        for (i, size), (name, device), batch in itertools.product(
            enumerate(macs), DEVICES.items(), BATCHES
        ):
            slow, fast, fixed_ms, *_, max_macs = device[:8]
            if size <= max_macs:
                ms = fixed_ms + 2 * size * batch / (slow + (fast - slow) * (1 - 1 / batch))
                writer.writerow([f"m{i:02d}", "int8", round(float(accuracy[i]), 5),
                                 name, batch, round(ms, 5), "modelled"])  # fmt: skip
