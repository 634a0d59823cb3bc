"""Error of the roofline model relative to Arm's compiler Vela, on networks not used in any fit.

python -m experiments.roofline.validate

Evaluates 60 random subnets of mbconv_small with Vela and with the roofline model of each Ethos-U
target. Prints the agreement, and writes npu.csv to this folder. Also fits launch_us, the only
fitted parameter of the target files, on 40 other networks, and evaluates 20 far larger networks.
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
#: Only the peak rate and the bandwidths of a data sheet.
PEAKS_ONLY = UNFITTED | {"tile": [1, 1, 1], "depthwise": 1.0, "element_gops": None}
CSV = ("macs_m", "vela_ms", "roofline_ms", "scaled_macs_ms")
STATISTICS = ("mape", "bias", "within_10", "within_20", "spearman", "kendall")


def sample(space: SearchSpace) -> tuple[list[Genotype], list[Genotype]]:
    """Return the genotypes of the validation, and other genotypes for the fit."""
    rng = random.Random(0)
    samples = dict.fromkeys(space.sample(rng) for _ in range(2 * (N_VALIDATION + N_FIT)))
    genotypes = list(samples)[: N_VALIDATION + N_FIT]
    return genotypes[:N_VALIDATION], genotypes[N_VALIDATION:]


def enlarge(space: SearchSpace) -> SearchSpace:
    """Return the space with twice the widths, for images of 160 pixels."""
    choices = {
        name: tuple(2 * int(option) for option in options) if name.endswith("width") else options
        for name, options in space.choices.items()
    }
    return dataclasses.replace(space, choices=choices | {"resolution": (160,)})


def lower(space: SearchSpace, genotype: Genotype) -> Graph:
    """Return the graph of a network."""
    return families.get(space.family).lower(space, genotype, TASK)


def estimate_with_vela(device: Target, space: SearchSpace, genotypes: list[Genotype]) -> list[Cost]:
    """Return the costs that Vela estimates."""
    model = VelaCostModel(device, lambda genotype: lower(space, genotype))
    return [model.cost(genotype) for genotype in genotypes]


def estimate_with_roofline(
    device: Target, space: SearchSpace, genotypes: list[Genotype], changes: dict[str, Any]
) -> list[Cost]:
    """Return the costs that the roofline model estimates with changed parameters."""
    assert device.roofline is not None
    roofline = dataclasses.replace(device.roofline, **changes)
    changed = dataclasses.replace(device, roofline=roofline)
    model = RooflineCostModel(changed, lambda genotype: lower(space, genotype))
    return [model.cost(genotype) for genotype in genotypes]


def column(costs: list[Cost], name: str) -> NDArray[np.float64]:
    """Return a metric of all networks, ``(n,)``."""
    return np.array([cost.figures[name].value for cost in costs])


def scale(predicted: NDArray[np.float64], true: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return predictions times the factor with the smallest sum of squared relative errors."""
    ratios = predicted / true
    return predicted * float(ratios.sum() / (ratios**2).sum())


def operator_errors(vela: list[Cost], modelled: list[Cost], clock_mhz: float) -> list[float]:
    """Return the absolute relative errors of the operators that both estimates have."""
    errors = []
    for vela_cost, modelled_cost in zip(vela, modelled, strict=True):
        cycles: dict[str, float] = {}
        for layer in vela_cost.layers:  # Vela computes a mean in two steps
            name = layer.name.removesuffix("_intermediate")
            cycles[name] = cycles.get(name, 0.0) + layer.cycles
        for layer in modelled_cost.layers:
            if layer.latency_ms is not None and layer.name in cycles:
                true_ms = cycles[layer.name] / (clock_mhz * 1e3)
                errors.append(abs(layer.latency_ms / true_ms - 1.0))
    return errors


def fit_launch_us(devices: list[Target], space: SearchSpace, genotypes: list[Genotype]) -> float:
    """Return the launch time with the smallest sum of squared relative errors over all targets."""
    weights, residuals = [], []
    for device in devices:
        vela = estimate_with_vela(device, space, genotypes)
        modelled = estimate_with_roofline(device, space, genotypes, UNFITTED)
        true = column(vela, "latency_ms")
        n_operators = np.array([len(cost.layers) for cost in modelled])
        weights.append(n_operators * 1e-3 / true)
        residuals.append(1.0 - column(modelled, "latency_ms") / true)
    a, b = np.concatenate(weights), np.concatenate(residuals)
    return float((a * b).sum() / (a * a).sum())


def format_agreement(label: str, predicted: NDArray[np.float64], true: NDArray[np.float64]) -> str:
    """Return the agreement of predictions as a line of text."""
    result = agreement(predicted, true)
    return f"  {label:<28}" + "  ".join(f"{name} {result[name]:+.3f}" for name in STATISTICS)


def validate(device: Target, space: SearchSpace, genotypes: list[Genotype]) -> list[dict[str, str]]:
    """Print the agreement on one target; return a row for each network."""
    vela = estimate_with_vela(device, space, genotypes)
    modelled = estimate_with_roofline(device, space, genotypes, {})
    true, roofline = column(vela, "latency_ms"), column(modelled, "latency_ms")
    baseline = scale(column(vela, "macs_m"), true)
    print(f"{device.name}: {len(genotypes)} networks, {true.min():.3f} to {true.max():.3f} ms")
    for name in ("latency_ms", "energy_mj", "sram_kib", "flash_kib"):
        print(format_agreement(name, column(modelled, name), column(vela, name)))
    for label, changes in (("no fitted parameter", UNFITTED), ("peaks only", PEAKS_ONLY)):
        changed = estimate_with_roofline(device, space, genotypes, changes)
        print(format_agreement(f"latency_ms, {label}", column(changed, "latency_ms"), true))
    print(format_agreement("latency_ms, MACs x factor", baseline, true))
    errors = operator_errors(vela, modelled, device.clock_mhz or 0.0)
    print(f"  operators: {len(errors)}, median absolute error {np.median(errors):.3f}")
    fractions = {
        limit: sum(cost.details[f"{limit}_bound_ms"] for cost in modelled) / roofline.sum()
        for limit in ("compute", "memory", "launch")
    }
    text = ", ".join(f"{limit} {fraction:.0%}" for limit, fraction in fractions.items())
    print(f"  time by bound: {text}")
    rows = zip(genotypes, column(vela, "macs_m"), true, roofline, baseline, strict=True)
    return [
        {"target": device.name, "genotype": genotype.id}
        | {name: f"{value:.6f}" for name, value in zip(CSV, values, strict=True)}
        for genotype, *values in rows
    ]


def validate_large(device: Target, space: SearchSpace) -> None:
    """Print the agreement on networks far larger than those of the space."""
    large, rng = enlarge(space), random.Random(1)
    genotypes = [large.sample(rng) for _ in range(N_LARGE)]
    vela = estimate_with_vela(device, large, genotypes)
    modelled = estimate_with_roofline(device, large, genotypes, {})
    for name in ("latency_ms", "sram_kib"):
        label = f"{name}, {N_LARGE} far larger"
        print(format_agreement(label, column(modelled, name), column(vela, name)))


def main() -> None:
    """Fit the parameter, validate all targets, and write the results."""
    space = spaces.load_space(spaces.find(SPACE))
    validation, fit = sample(space)
    devices = [target(name) for name in TARGETS]
    launch = fit_launch_us(devices, space, fit)
    print(f"launch_us fitted on {len(fit)} other networks and all targets: {launch:.2f}")
    rows = []
    for device in devices:
        rows += validate(device, space, validation)
        validate_large(device, space)
    path = Path(__file__).with_name("npu.csv")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
