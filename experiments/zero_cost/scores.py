"""Zero-cost features of a network: its size, and scores of its initial weights.

Sources: synflow is from Tanaka et al., "Pruning neural networks without any data by iteratively
conserving synaptic flow", NeurIPS 2020, https://arxiv.org/abs/2006.05467, as a score of networks
from Abdelfattah et al., "Zero-cost proxies for lightweight NAS", ICLR 2021,
https://arxiv.org/abs/2101.08134; NASWOT from Mellor et al., "Neural architecture search without
training", ICML 2021, https://arxiv.org/abs/2006.04647.
"""

import functools
import math
from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from hwnas.models.families.base import Family
from hwnas.models.families.layers import ReLU6
from hwnas.models.graph import n_macs, n_params
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.training.data import ImageData

SIZES = {"params": n_params, "macs": n_macs}  #: features of the graph
SCORES = ("synflow", "naswot")  #: features of the initial weights
NAMES = (*SIZES, *SCORES)  #: all features

_N_IMAGES = 64  # images of the training split for NASWOT
_SEED = 0  # seed of the initial weights and of the images
_CACHE_SIZE = 100_000  # number of genotypes
_NORMS = (nn.BatchNorm2d, nn.LayerNorm)
_ACTIVATIONS = (
    nn.ReLU, ReLU6, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.SiLU, nn.GELU,
)  # fmt: skip


@final
class ZeroCost:
    """Sizes and scores of the untrained networks of a space: a pure function of the genotype.

    Args:
        names: Requested features, from ``NAMES``.
        family: Builds the networks.
        space: The search space.
        data: Data with the training images.
    """

    def __init__(self, names: Sequence[str], family: Family, space: SearchSpace, data: ImageData):
        self._names, self._family, self._space = tuple(names), family, space
        order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(_SEED))
        self._data, self._sample = data, data.train.take(order[:_N_IMAGES]).images
        self._resized: dict[int, Tensor] = {}
        self._cached_scores = functools.lru_cache(_CACHE_SIZE)(self._compute)

    def features(self, genotype: Genotype) -> Sequence[float]:
        """Return the requested features in the given order; sizes are logarithms."""
        values = self._cached_scores(genotype)
        return [values[name] for name in self._names]

    def _compute(self, genotype: Genotype) -> dict[str, float]:
        graph = self._family.lower(self._space, genotype, self._data.signature)
        values = {name: math.log(size(graph)) for name, size in SIZES.items()}
        if not {*SCORES} & {*self._names}:
            return values
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            network = self._family.build(self._space, genotype, self._data.signature)
        images = self._images(self._family.resolution(self._space, genotype))
        if "naswot" in self._names:
            values["naswot"] = naswot(network, images)
        if "synflow" in self._names:
            values["synflow"] = synflow(network, images.shape[1:])
        return values

    def _images(self, resolution: int) -> Tensor:
        if resolution not in self._resized:
            self._resized[resolution] = self._data.prepare(self._sample, resolution)
        return self._resized[resolution]


def naswot(network: nn.Module, images: Tensor) -> float:
    """Return the NASWOT score: how differently images ``(N, C, R, R)`` activate a network.

    The score is the logarithm of the determinant of a matrix. The matrix has, for each pair of
    images, the number of units that are active for both images or for neither. One is added to the
    diagonal, so that two images with equal activations give a low score instead of minus infinity.
    """
    agreement = torch.eye(len(images), dtype=torch.float64)

    def count(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        sign = (args[0].flatten(1) > 0).float() * 2 - 1
        # (agreeing - differing units) + all units = 2 * agreeing units
        agreement.add_((sign @ sign.T + sign.shape[1]).double() / 2)

    hooks = [
        module.register_forward_pre_hook(count)
        for module in network.modules()
        if isinstance(module, _ACTIVATIONS)
    ]
    with torch.no_grad():
        network.train()(
            images
        )  # batch norm uses batch statistics; there are no running statistics yet
    for hook in hooks:
        hook.remove()
    return float(torch.linalg.slogdet(agreement).logabsdet)


def synflow(network: nn.Module, shape: Sequence[int]) -> float:
    """Return the logarithm of the synaptic flow through all weights. The network is changed.

    All weights are replaced by their magnitudes, and the image consists of ones. The flow through a
    weight is its magnitude times the gradient of the sum of the outputs with respect to it. As in
    the source, norms are removed. Activations are removed as well: no value is negative, and
    saturation would block the flow.

    Args:
        network: The network with initial weights.
        shape: Shape of an image, ``(C, R, R)``.
    """
    network.double().eval()
    _linearise(network)
    for parameter in network.parameters():
        parameter.data.abs_()
    weights = [parameter for parameter in network.parameters() if parameter.dim() > 1]
    image = torch.ones(1, *shape, dtype=torch.float64)
    gradients = torch.autograd.grad(network(image).sum(), weights)
    flows = [(w.detach() * g).sum() for w, g in zip(weights, gradients, strict=True)]
    return float(torch.stack(flows).sum().clamp(1e-300, 1e300).log())


def _linearise(network: nn.Module) -> None:
    """Remove norms and activations."""
    for module in list(network.modules()):
        for name, child in module.named_children():
            if isinstance(child, _NORMS + _ACTIVATIONS):
                setattr(module, name, nn.Identity())
