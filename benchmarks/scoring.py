"""Validation of a subnet compared with a plain implementation: same subnets, images and batches.

Validation recalibrates batch norm and classifies the validation split, here 512 and 6,000 images
as on Fashion-MNIST. The plain implementation does both in the supernet, with batch norm as a
separate layer; hwnas extracts the subnet and folds batch norm. python -m benchmarks.scoring [SPACE]
prints subnets per minute of each, the median of the ratios, and the number of different
predictions.
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
_TASK = Signature(1, 10)
Bits = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


def main(name: str = "mbconv_small") -> None:
    networks = spaces.load_space(spaces.find(name))
    family = families.get(networks.family)
    torch.manual_seed(0)
    ours, plain = family.supernet(networks, _TASK), PlainSupernet(networks, _TASK)
    plain.copy_from(ours.module)
    labels = torch.randint(0, _TASK.n_outputs, (_VALIDATION,))
    rng, ratios, differing = random.Random(0), [], 0
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(_SUBNETS):
        genotype = networks.sample(rng)
        size = family.resolution(networks, genotype)
        images = torch.randn(_CALIBRATION + _VALIDATION, _TASK.in_channels, size, size)
        fast = images.to(memory_format=torch.channels_last)
        seconds, expected = _timed(_score_plain, plain, genotype, images, labels)
        times["plain"].append(seconds)
        seconds, found = _timed(_score, ours, genotype, fast, labels)
        times["ours"].append(seconds)
        differing += int((found != expected).sum())
        ratios.append(times["plain"][-1] / times["ours"][-1])
    for way, each in times.items():
        print(f"{way:<6} {60 / statistics.median(each):6.0f} subnets per minute")
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"ratio  {middle:.2f} (quartiles {low:.2f}, {high:.2f}; {torch.get_num_threads()} threads)"
    )
    print(f"{differing} of {_SUBNETS * _VALIDATION} predictions are right in one of the two")


def _timed(how, *arguments) -> tuple[float, Bits]:  # type: ignore[no-untyped-def]
    start = time.perf_counter()
    found = how(*arguments)
    return time.perf_counter() - start, found


def _score(supernet: Supernet, genotype: Genotype, images: Tensor, labels: Tensor) -> Bits:
    network = supernet.extract(genotype)
    recalibrate(network, images[:_CALIBRATION])
    return per_sample(
        ClassificationTask(tuple("0123456789")),
        fold_batch_norm(network),
        images[_CALIBRATION:],
        labels,
    )


def _score_plain(supernet: Supernet, genotype: Genotype, images: Tensor, labels: Tensor) -> Bits:
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
        found = []
        pairs = zip(
            torch.split(images[_CALIBRATION:], _BATCH), torch.split(labels, _BATCH), strict=True
        )
        for batch, truth in pairs:
            found.append((supernet.forward(batch, genotype).argmax(1) == truth).numpy())
    return np.concatenate(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
