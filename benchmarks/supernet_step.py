"""Sandwich step compared with a plain implementation: same blocks, batch and resolutions.

python -m benchmarks.supernet_step [SPACE] runs both interleaved in one process, on the same
subnets, and prints images times subnets per second of each, and the median of the ratios of
neighbours. It first checks that both compute the same loss and the same gradients.
"""

import random
import statistics
import sys
import time
from collections.abc import Callable

from hwnas.core import processes

processes.tune_process()

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from benchmarks.plain_supernet import PlainSupernet  # noqa: E402
from hwnas.core.progress import NullProgress  # noqa: E402
from hwnas.models import families, spaces  # noqa: E402
from hwnas.models.graph import Signature  # noqa: E402
from hwnas.models.spaces import Genotype, SearchSpace  # noqa: E402
from hwnas.training.batches import TrainingBatch  # noqa: E402
from hwnas.training.data import DatasetConfig, load_data  # noqa: E402
from hwnas.training.options import TrainingConfig  # noqa: E402
from hwnas.training.sandwich import Sandwich, sample_sandwich  # noqa: E402

_BATCH, _STEPS, _RANDOM = 128, 12, 2
_TASK = Signature(1, 10)


def main(name: str = "mbconv_small") -> None:
    networks = spaces.load_space(spaces.find(name))
    family = families.get(networks.family)
    torch.manual_seed(0)
    ours, plain = family.supernet(networks, _TASK), PlainSupernet(networks, _TASK)
    plain.copy_from(ours.module)
    side = family.resolution(networks, networks.largest())
    images = torch.randint(0, 256, (_BATCH, side, side, _TASK.in_channels), dtype=torch.uint8)
    labels = torch.randint(0, _TASK.n_outputs, (_BATCH,))
    batch = TrainingBatch(
        images, labels, labels, load_data(DatasetConfig("digits"), side, NullProgress())
    )
    sizes = [int(size) for size in networks.options("resolution")]
    # Clones: contiguous() leaves images of one channel as they are, and all layers follow them.
    nchw = {size: batch.at(size).clone(memory_format=torch.contiguous_format) for size in sizes}
    sandwich = Sandwich(
        ours, networks, lambda genotype: family.resolution(networks, genotype), TrainingConfig()
    )
    ways: dict[str, Callable[[list[Genotype]], float]] = {
        "plain": lambda genotypes: _step_plain(plain, genotypes, nchw, labels, networks),
        "ours": lambda genotypes: _step(sandwich, genotypes, batch),
    }
    _check(networks, {"plain": plain.module, "ours": ours.module}, ways)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(_STEPS + 2):
        for way, step in ways.items():
            genotypes = sample_sandwich(networks, _RANDOM, random.Random(number))
            start = time.perf_counter()
            step(genotypes)
            times[way].append(time.perf_counter() - start)
    n = _BATCH * (2 + _RANDOM)
    for way, seconds in times.items():
        print(f"{way:<6} {n / statistics.median(seconds[2:]):7.0f} images x subnets per second")
    ratios = [p / o for p, o in zip(times["plain"][2:], times["ours"][2:], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(
        f"ratio  {middle:.2f} (quartiles {low:.2f}, {high:.2f}; {torch.get_num_threads()} threads)"
    )


def _step(sandwich: Sandwich, genotypes: list[Genotype], batch: TrainingBatch) -> float:
    module = sandwich.supernet.module.train()
    module.zero_grad()
    losses, _ = sandwich.accumulate(genotypes, batch)
    return losses[0]


def _step_plain(
    supernet: PlainSupernet,
    genotypes: list[Genotype],
    images: dict[int, Tensor],
    labels: Tensor,
    networks: SearchSpace,
) -> float:
    module = supernet.module.train()
    module.zero_grad()

    def logits(genotype: Genotype) -> Tensor:
        size = int(networks.values(genotype)["resolution"])
        return supernet.forward(images[size], genotype)

    first, *others = genotypes
    answers = logits(first)
    loss = F.cross_entropy(answers, labels, label_smoothing=0.1)
    torch.autograd.backward(loss)
    teacher = answers.detach().softmax(1)
    for genotype in others:
        torch.autograd.backward(F.cross_entropy(logits(genotype), teacher))
    return float(loss.detach())


def _check(
    networks: SearchSpace,
    modules: dict[str, nn.Module],
    ways: dict[str, Callable[[list[Genotype]], float]],
) -> None:
    """Stop if the two implementations differ in their loss or in the norm of their gradients."""
    genotypes = sample_sandwich(networks, _RANDOM, random.Random(0))
    found = []
    for way, step in ways.items():
        loss = step(genotypes)
        norms = [p.grad.norm() for p in modules[way].parameters() if p.grad is not None]
        found.append((loss, float(torch.stack(norms).norm())))
    torch.testing.assert_close(torch.tensor(found[0]), torch.tensor(found[1]), rtol=1e-3, atol=1e-5)


if __name__ == "__main__":
    main(*sys.argv[1:])
