"""Small service and fleet files, fixed or random."""

import csv
from pathlib import Path
from typing import Any

import numpy as np
import yaml

Content = dict[str, Any]


def service(**more: Any) -> Content:
    """Return a service of one class over two models."""
    web = {
        "p99_ms": 50.0, "accuracy_min": 0.7, "regions": ["site"], "demand": {"hours": [40.0, 90.0]},
    }  # fmt: skip
    return {"fronts": ["front.csv"], "classes": {"web": web}, **more}


def fleet(**more: Any) -> Content:
    """Return a fleet of two devices in one region."""
    devices = {
        "cpu": {"region": "site", "buy": "on_demand", "quota": 3, "price": 0.2, "slots": 2,
                "idle_w": 60, "busy_w": 140},
        "box": {"region": "site", "buy": "bought", "quota": 2, "price": 0.05, "slots": 1,
                "idle_w": 5, "busy_w": 15},
    }  # fmt: skip
    return {"devices": devices, **more}


#: id, accuracy, milliseconds of batches of 1 and 4 by device
MODELS = [
    ("small", 0.69, {"cpu": (8.0, 20.0), "box": (12.0, 40.0)}),
    ("large", 0.78, {"cpu": (20.0, 60.0), "box": (30.0, 110.0)}),
]


def write(folder: Path, service: Content, fleet: Content, models: Any = MODELS) -> None:
    """Write ``service.yaml``, ``fleet.yaml`` and ``front.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "service.yaml").write_text(yaml.safe_dump(service))
    (folder / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    with (folder / "front.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "precision", "accuracy", "target", "batch", "latency_ms"])
        for name, accuracy, by_device in models:
            for device, times in by_device.items():
                for batch, ms in zip((1, 4), times, strict=True):
                    writer.writerow([name, "int8", accuracy, device, batch, ms])


def write_random(folder: Path, rng: np.random.Generator, *, classes: int, tiny: bool) -> None:
    """Write a random instance.

    Args:
        folder: Destination folder.
        rng: Source of randomness.
        classes: Number of service classes.
        tiny: Whether to keep the instance small enough for exhaustive search.
    """
    regions = ["site"] if tiny else ["edge", "site", "cloud"]
    n_devices = 2 if tiny else int(rng.integers(3, 6))
    devices: Content = {}
    for d in range(n_devices):
        idle = float(rng.uniform(2, 60))
        devices[f"d{d}"] = {
            "region": str(rng.choice(regions)), "price": round(float(rng.uniform(0.02, 0.6)), 3),
            "buy": str(rng.choice(["bought", "reserved", "on_demand", "spot"])),
            "quota": int(rng.integers(1, 4 if tiny else 12)),
            "slots": int(rng.choice([1, 2] if tiny else [1, 2, 4, 8])),
            "idle_w": idle, "busy_w": idle * float(rng.uniform(1, 3)),
            "start_s": int(rng.choice([0, 90])), "derate": float(rng.choice([1.0, 0.9])),
        }  # fmt: skip
    models = []
    for m in range(2 if tiny else 4):
        base = 4.0 * 2**m * float(rng.uniform(0.7, 1.4))
        times = {}
        for name in devices:
            median_ms = base * float(rng.uniform(0.5, 2.0))
            times[name] = (round(median_ms, 3), round(median_ms * float(rng.uniform(1.2, 4.0)), 3))
        models.append((f"m{m}", round(0.6 + 0.06 * m + float(rng.uniform(0, 0.05)), 4), times))
    hours = 2 if tiny else 3
    service: Content = {"fronts": ["front.csv"], "classes": {}}
    for k in range(classes):
        class_regions = sorted(
            rng.choice(regions, int(rng.integers(1, len(regions) + 1)), replace=False)
        )
        service["classes"][f"c{k}"] = {
            "p99_ms": float(rng.choice([60, 120, 400])),
            "accuracy_min": float(rng.uniform(0.55, 0.66 if tiny else 0.72)),
            "degraded_accuracy": 0.55, "regions": [str(r) for r in class_regions],
            "payload_kib": 0 if tiny else float(rng.choice([0, 3, 20])),
            "demand": {"hours": [round(float(v), 2) for v in rng.uniform(5, 90, hours)]},
        }  # fmt: skip
    if rng.random() < 0.5:
        service["survive"] = {"any_one": "device"} if rng.random() < 0.5 else {"all_of": ["spot"]}
    fleet: Content = {"devices": devices}
    if not tiny:
        _add_limits(service, fleet, rng)
    write(folder, service, fleet, models)


def _add_limits(service: Content, fleet: Content, rng: np.random.Generator) -> None:
    fleet["links"] = {
        "edge-site": {"rtt_ms": 4.0, "mbit_s": float(rng.choice([2, 20, 1000]))},
        "site-cloud": {"rtt_ms": 12.0, "usd_per_gb": 0.09, "mbit_s": float(rng.choice([5, 1000]))},
    }
    fleet["carbon"] = {"cloud": [0.2, 0.5, 0.3], "site": 0.4}
    budgets: Content = {}
    if rng.random() < 0.4:
        budgets["cost_per_day"] = float(rng.uniform(5, 80))
    if rng.random() < 0.4:
        budgets["carbon_kg_per_day"] = float(rng.uniform(1, 30))
    if rng.random() < 0.4:
        budgets["power_w"] = {"site": float(rng.uniform(50, 900))}
    service["budgets"] = budgets
    service["answers"] = ["answers.npz"] if rng.random() < 0.6 else []


def write_answers(folder: Path, rng: np.random.Generator, n: int = 400) -> None:
    """Write predictions of the models of ``front.csv`` for the same images."""
    with (folder / "front.csv").open() as file:
        accuracies = {
            f"{r['id']}-{r['precision']}": float(r["accuracy"]) for r in csv.DictReader(file)
        }
    difficulty = rng.uniform(0, 1, n)
    margin = (
        np.array([[*accuracies.values()]]).T
        - difficulty
        + rng.normal(0, 0.05, (len(accuracies), n))
    )
    np.savez(
        folder / "answers.npz", models=np.array([*accuracies]), correct=margin > 0,
        confidence=np.abs(margin) + rng.normal(0, 0.1, margin.shape),
    )  # fmt: skip
