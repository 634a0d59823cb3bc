"""Error of the roofline compared with Arm's compiler Vela, on networks not used in any fit.

python -m experiments.roofline.validate evaluates 60 random subnets of mbconv_small with Vela and
with the roofline of each Ethos-U target, prints the agreement, and writes npu.csv to this folder.
It also fits launch_us, the one fitted parameter of the target files, on 40 other networks, and
evaluates 20 networks that are far larger.
"""

import csv
import dataclasses
import random
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.core.agreement import agreement
from hwnas.hardware.backends.vela.compiler import VelaCostModel
from hwnas.hardware.costs.cost_model import Cost
from hwnas.hardware.costs.roofline_cost import RooflineCostModel
from hwnas.hardware.target import Target
from hwnas.models import families, spaces
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from tests.conftest import target

TARGETS = ("npu", "ethos_u55_256", "ethos_u65_256", "ethos_u85_256")
SPACE, TASK = "mbconv_small", Signature(1, 10)
N_VALIDATION, N_FIT, N_LARGE = 60, 40, 20
UNFITTED: dict[str, Any] = {"launch_us": 0.0}
#: Data sheet: multiply-accumulates per second and bandwidths.
PEAKS_ONLY = UNFITTED | {"tile": [1, 1, 1], "depthwise": 1.0, "element_gops": None}
CSV = ("macs_m", "vela_ms", "roofline_ms", "scaled_macs_ms")
STATISTICS = ("mape", "bias", "within_10", "within_20", "spearman", "kendall")


def draw(found: SearchSpace) -> tuple[list[Genotype], list[Genotype]]:
    """Return the genotypes of the validation, and distinct ones for the fit."""
    rng = random.Random(0)
    drawn = dict.fromkeys(found.sample(rng) for _ in range(2 * (N_VALIDATION + N_FIT)))
    genotypes = list(drawn)[: N_VALIDATION + N_FIT]
    return genotypes[:N_VALIDATION], genotypes[N_VALIDATION:]


def enlarged(found: SearchSpace) -> SearchSpace:
    """Return the space with twice the widths, for images of 160 pixels."""
    choices = {
        name: tuple(2 * int(option) for option in options) if name.endswith("width") else options
        for name, options in found.choices.items()
    }
    return dataclasses.replace(found, choices=choices | {"resolution": (160,)})


def lowered(found: SearchSpace, genotype: Genotype) -> Graph:
    """Return the operators of one network."""
    return families.get(found.family).lower(found, genotype, TASK)


def by_vela(device: Target, found: SearchSpace, genotypes: list[Genotype]) -> list[Cost]:
    """Return the costs estimated by Vela."""
    model = VelaCostModel(device, lambda genotype: lowered(found, genotype))
    return [model.cost(genotype) for genotype in genotypes]


def by_roofline(
    device: Target, found: SearchSpace, genotypes: list[Genotype], change: dict[str, Any]
) -> list[Cost]:
    """Return the costs estimated by the roofline, with changed parameters."""
    assert device.roofline is not None
    roofline = dataclasses.replace(device.roofline, **change)
    changed = dataclasses.replace(device, roofline=roofline)
    model = RooflineCostModel(changed, lambda genotype: lowered(found, genotype))
    return [model.cost(genotype) for genotype in genotypes]


def column(found: list[Cost], name: str) -> NDArray[np.float64]:
    """Return one metric of every network."""
    return np.array([cost.figures[name].value for cost in found])


def scaled(predicted: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return predictions times the one factor with the least squared relative error."""
    ratios = predicted / true
    return predicted * float(ratios.sum() / (ratios**2).sum())


def operator_errors(vela: list[Cost], modelled: list[Cost], clock_mhz: float) -> list[float]:
    """Return the absolute relative errors of the operators named by both."""
    errors = []
    for theirs, ours in zip(vela, modelled, strict=True):
        cycles: dict[str, float] = {}
        for layer in theirs.layers:  # Vela computes a mean in two steps
            name = layer.name.removesuffix("_intermediate")
            cycles[name] = cycles.get(name, 0.0) + layer.cycles
        for layer in ours.layers:
            if layer.latency_ms is not None and layer.name in cycles:
                true_ms = cycles[layer.name] / (clock_mhz * 1e3)
                errors.append(abs(layer.latency_ms / true_ms - 1.0))
    return errors


def fitted_launch_us(devices: list[Target], found: SearchSpace, fit: list[Genotype]) -> float:
    """Return the launch time with the least squared relative error over all targets."""
    weights, missing = [], []
    for device in devices:
        vela = by_vela(device, found, fit)
        modelled = by_roofline(device, found, fit, UNFITTED)
        true = column(vela, "latency_ms")
        n_operators = np.array([len(cost.layers) for cost in modelled])
        weights.append(n_operators * 1e-3 / true)
        missing.append(1.0 - column(modelled, "latency_ms") / true)
    a, b = np.concatenate(weights), np.concatenate(missing)
    return float((a * b).sum() / (a * a).sum())


def line(label: str, predicted: NDArray[np.float64], true: NDArray[np.float64]) -> str:
    """Return the agreement as one line of text."""
    found = agreement(predicted, true)
    return f"  {label:<28}" + "  ".join(f"{name} {found[name]:+.3f}" for name in STATISTICS)


def validate(device: Target, found: SearchSpace, genotypes: list[Genotype]) -> list[dict[str, str]]:
    """Print the agreement on one target; return a row for each network."""
    vela = by_vela(device, found, genotypes)
    modelled = by_roofline(device, found, genotypes, {})
    true, roof = column(vela, "latency_ms"), column(modelled, "latency_ms")
    baseline = scaled(column(vela, "macs_m"), true)
    print(f"{device.name}: {len(genotypes)} networks, {true.min():.3f} to {true.max():.3f} ms")
    for name in ("latency_ms", "energy_mj", "sram_kib", "flash_kib"):
        print(line(name, column(modelled, name), column(vela, name)))
    for label, change in (("no fitted parameter", UNFITTED), ("peaks only", PEAKS_ONLY)):
        changed = by_roofline(device, found, genotypes, change)
        print(line(f"latency_ms, {label}", column(changed, "latency_ms"), true))
    print(line("latency_ms, MACs x factor", baseline, true))
    errors = operator_errors(vela, modelled, device.clock_mhz or 0.0)
    print(f"  operators: {len(errors)}, median absolute error {np.median(errors):.3f}")
    shares = {
        limit: sum(cost.details[f"{limit}_bound_ms"] for cost in modelled) / roof.sum()
        for limit in ("compute", "memory", "launch")
    }
    print("  time by bound: " + ", ".join(f"{limit} {s:.0%}" for limit, s in shares.items()))
    rows = zip(genotypes, column(vela, "macs_m"), true, roof, baseline, strict=True)
    return [
        {"target": device.name, "genotype": genotype.id}
        | {name: f"{value:.6f}" for name, value in zip(CSV, values, strict=True)}
        for genotype, *values in rows
    ]


def look_beyond(device: Target, found: SearchSpace) -> None:
    """Print the agreement on networks far larger than those of the space."""
    large, rng = enlarged(found), random.Random(1)
    genotypes = [large.sample(rng) for _ in range(N_LARGE)]
    vela = by_vela(device, large, genotypes)
    modelled = by_roofline(device, large, genotypes, {})
    for name in ("latency_ms", "sram_kib"):
        label = f"{name}, {N_LARGE} far larger"
        print(line(label, column(modelled, name), column(vela, name)))


def main() -> None:
    """Fit, validate, print and write."""
    found = spaces.load_space(spaces.find(SPACE))
    validation, fit = draw(found)
    devices = [target(name) for name in TARGETS]
    launch = fitted_launch_us(devices, found, fit)
    print(f"launch_us fitted on {len(fit)} other networks, all targets together: {launch:.2f}")
    rows = []
    for device in devices:
        rows += validate(device, found, validation)
        look_beyond(device, found)
    path = Path(__file__).with_name("npu.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
