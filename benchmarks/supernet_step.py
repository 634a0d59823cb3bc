"""Sandwich step compared with a plain implementation: same blocks, batch and resolutions.

    python -m benchmarks.supernet_step [SPACE]

The script first checks that both compute the same loss and the same gradients. Then it runs both
interleaved in one process, on the same subnets. It prints the number of images times subnets per
second of each, and the median ratio of consecutive steps.
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

_BATCH, _STEPS, _N_RANDOM = 128, 12, 2
_SIGNATURE = Signature(1, 10)


def main(name: str = "mbconv_small") -> None:
    space = spaces.load_space(spaces.find(name))
    family = families.get(space.family)
    torch.manual_seed(0)
    ours, plain = family.supernet(space, _SIGNATURE), PlainSupernet(space, _SIGNATURE)
    plain.copy_from(ours.module)
    side = family.resolution(space, space.largest())
    images = torch.randint(0, 256, (_BATCH, side, side, _SIGNATURE.in_channels), dtype=torch.uint8)
    labels = torch.randint(0, _SIGNATURE.n_outputs, (_BATCH,))
    batch = TrainingBatch(
        images, labels, labels, load_data(DatasetConfig("digits"), side, NullProgress())
    )
    resolutions = [int(option) for option in space.options("resolution")]
    # clone(), because contiguous() does not change images of one channel; layers keep the format.
    nchw = {r: batch.at(r).clone(memory_format=torch.contiguous_format) for r in resolutions}
    sandwich = Sandwich(
        ours, space, lambda genotype: family.resolution(space, genotype), TrainingConfig()
    )
    implementations: dict[str, Callable[[list[Genotype]], float]] = {
        "plain": lambda genotypes: _step_plain(plain, genotypes, nchw, labels, space),
        "ours": lambda genotypes: _step(sandwich, genotypes, batch),
    }
    _check(space, {"plain": plain.module, "ours": ours.module}, implementations)
    times: dict[str, list[float]] = {title: [] for title in implementations}
    for number in range(_STEPS + 2):
        for title, step in implementations.items():
            genotypes = sample_sandwich(space, _N_RANDOM, random.Random(number))
            start = time.perf_counter()
            step(genotypes)
            times[title].append(time.perf_counter() - start)
    n = _BATCH * (2 + _N_RANDOM)
    for title, seconds in times.items():
        print(f"{title:<6} {n / statistics.median(seconds[2:]):7.0f} images x subnets per second")
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
    space: SearchSpace,
) -> float:
    module = supernet.module.train()
    module.zero_grad()

    def logits(genotype: Genotype) -> Tensor:
        resolution = int(space.values(genotype)["resolution"])
        return supernet.forward(images[resolution], genotype)

    first, *others = genotypes
    outputs = logits(first)
    loss = F.cross_entropy(outputs, labels, label_smoothing=0.1)
    torch.autograd.backward(loss)
    teacher = outputs.detach().softmax(1)
    for genotype in others:
        torch.autograd.backward(F.cross_entropy(logits(genotype), teacher))
    return float(loss.detach())


def _check(
    space: SearchSpace,
    modules: dict[str, nn.Module],
    implementations: dict[str, Callable[[list[Genotype]], float]],
) -> None:
    """Stop if the two implementations differ in their loss or in the norm of their gradients."""
    genotypes = sample_sandwich(space, _N_RANDOM, random.Random(0))
    results = []
    for name, step in implementations.items():
        loss = step(genotypes)
        norms = [p.grad.norm() for p in modules[name].parameters() if p.grad is not None]
        results.append((loss, float(torch.stack(norms).norm())))
    torch.testing.assert_close(
        torch.tensor(results[0]), torch.tensor(results[1]), rtol=1e-3, atol=1e-5
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
