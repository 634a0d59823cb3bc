"""Validation of a subnet compared with a plain implementation: same subnets, images and batches.

    python -m benchmarks.scoring [SPACE]

Validation recalibrates batch norm on 512 images and classifies 6,000 images, as on Fashion-MNIST.
The plain implementation does both in the supernet, with batch norm as a separate layer. hwnas
extracts the subnet and folds batch norm. The script prints the subnets per minute of each, the
median of their ratios, and the number of predictions for which only one of them is correct.
"""

import random
import statistics
import sys
import time

from hwnas.core import processes

processes.tune_process()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from benchmarks.plain_supernet import PlainSupernet  # noqa: E402
from hwnas.models import families, spaces  # noqa: E402
from hwnas.models.families.base import Supernet  # noqa: E402
from hwnas.models.families.layers import fold_batch_norm  # noqa: E402
from hwnas.models.graph import Signature  # noqa: E402
from hwnas.models.spaces import Genotype  # noqa: E402
from hwnas.tasks.classification import ClassificationTask  # noqa: E402
from hwnas.training.inference import per_sample, recalibrate  # noqa: E402

_CALIBRATION, _VALIDATION, _BATCH, _SUBNETS = 512, 6000, 250, 12
_SIGNATURE = Signature(1, 10)
BoolArray = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def main(name: str = "mbconv_small") -> None:
    space = spaces.load_space(spaces.find(name))
    family = families.get(space.family)
    torch.manual_seed(0)
    ours, plain = family.supernet(space, _SIGNATURE), PlainSupernet(space, _SIGNATURE)
    plain.copy_from(ours.module)
    labels = torch.randint(0, _SIGNATURE.n_outputs, (_VALIDATION,))
    rng, ratios, n_different = random.Random(0), [], 0
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(_SUBNETS):
        genotype = space.sample(rng)
        resolution = family.resolution(space, genotype)
        images = torch.randn(
            _CALIBRATION + _VALIDATION, _SIGNATURE.in_channels, resolution, resolution
        )
        channels_last = images.to(memory_format=torch.channels_last)
        seconds, expected = _time_call(_validate_plain, plain, genotype, images, labels)
        times["plain"].append(seconds)
        seconds, correct = _time_call(_validate, ours, genotype, channels_last, labels)
        times["ours"].append(seconds)
        n_different += int((correct != expected).sum())
        ratios.append(times["plain"][-1] / times["ours"][-1])
    for implementation, seconds_each in times.items():
        per_minute = 60 / statistics.median(seconds_each)
        print(f"{implementation:<6} {per_minute:6.0f} subnets per minute")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"ratio  {middle:.2f} (quartiles {low:.2f}, {high:.2f}; {torch.get_num_threads()} threads)"
    )
    print(
        f"{n_different} of {_SUBNETS * _VALIDATION} predictions are correct in only one of the two"
    )


def _time_call(function, *arguments) -> tuple[float, BoolArray]:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def _validate(supernet: Supernet, genotype: Genotype, images: Tensor, labels: Tensor) -> BoolArray:
    network = supernet.extract(genotype)
    recalibrate(network, images[:_CALIBRATION])
    return per_sample(
        ClassificationTask(tuple("0123456789")),
        fold_batch_norm(network),
        images[_CALIBRATION:],
        labels,
    )


def _validate_plain(
    supernet: Supernet, genotype: Genotype, images: Tensor, labels: Tensor
) -> BoolArray:
    module = supernet.module
    norms = [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
    with torch.no_grad():
        module.train()
        n_batches = -(-_CALIBRATION // _BATCH)
        for i, batch in enumerate(torch.tensor_split(images[:_CALIBRATION], n_batches)):
            for norm in norms:
                norm.momentum = 1 / (i + 1)  # an average over batches
            supernet.forward(batch, genotype)
        module.eval()
        correct = []
        batches = zip(
            torch.split(images[_CALIBRATION:], _BATCH), torch.split(labels, _BATCH), strict=True
        )
        for batch, targets in batches:
            correct.append((supernet.forward(batch, genotype).argmax(1) == targets).numpy())
    return np.concatenate(correct)


if __name__ == "__main__":
    main(*sys.argv[1:])
