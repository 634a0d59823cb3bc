"""What a teacher answers to the batches of a training: computed once, learned from by many.

A batch follows from the seed and the step's number alone, so all networks that are trained by the
same options see the same images. What the teacher says of them is kept in files: of changed images
step by step, of images as they are one by one.

Source: Beyer et al., "Knowledge distillation: A good teacher is patient and consistent", CVPR 2022,
https://arxiv.org/abs/2106.05237: the teacher must see the very views that are learned from; Shen &
Xing, "A Fast Knowledge Distillation Framework for Visual Recognition", ECCV 2022,
https://arxiv.org/abs/2112.01528: its answers may be kept.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import final

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hwnas.core import files
from hwnas.core.progress import Progress
from hwnas.training import batches
from hwnas.training.batches import StepContext, TrainingBatch, TrainingData
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ProcessGroup, ThreadPool
from hwnas.training.precision import FLOAT32, forward

_LARGEST = 1 << 30  # bytes, of all files: where answers take more, they are computed each time
_AS_THEY_ARE = "as_they_are"
_WHOLE = "whole"  # the file that says that all answers are there
_BATCH = 256  # images as they are
_KEY = "logits"  # of outputs, whatever the task: files of earlier versions are read


@final
@dataclass
class SoftTargets:
    """Reads the answers that ``record`` wrote.

    Args:
        folder: Where they are.
        n_steps: Of an epoch.
    """

    folder: Path
    n_steps: int
    _loaded: dict[str, Tensor] = field(default_factory=dict)

    def of(self, batch: TrainingBatch, step_context: StepContext) -> Tensor:
        """Return what is learned from the answers to the images of a step's batch."""
        if batch.places is not None:
            outputs = self._file(_AS_THEY_ARE)[batch.places]
        else:
            epoch, position = divmod(step_context.step, self.n_steps)
            outputs = self._file(str(epoch))[position]
        return batch.data.task.distillation_targets(outputs.float()).to(batch.loss_targets.device)

    def _file(self, name: str) -> Tensor:
        if name not in self._loaded:
            self._loaded.clear()  # epochs follow each other
            self._loaded[name] = load_file(self.folder / f"{name}.safetensors")[_KEY]
        return self._loaded[name]


@final
@dataclass(frozen=True)
class AugmentedViews:
    """The images that a training shows, as a teacher reads them: ``(N, C, R, R)``."""

    material: TrainingData
    config: TrainingConfig
    seed: int
    resolution: int
    first_epoch: int = 0  #: its number

    @property
    def n_steps(self) -> int:
        """Steps of an epoch."""
        return batches.steps_per_epoch(self.config.batch_size, len(self.material.data.train))

    @property
    def epochs(self) -> range:
        """Their numbers."""
        return range(self.first_epoch, self.first_epoch + self.config.epochs)

    @property
    def n_images(self) -> int:
        """How many there are: those as they are once, changed ones as often as they are shown."""
        steps = self.config.epochs * self.n_steps
        n_changed = math.ceil(steps * (1 - self.config.plain_fraction)) * self.config.batch_size
        changed, plain = self._batch(0).places is None, self._batch(steps - 1).places is not None
        return changed * n_changed + plain * len(self.material.data.train)

    @property
    def n_recorded(self) -> int:
        """How many of them are answered once for all: none where answers take more than 1 GiB."""
        n = self.n_images
        return n if 2 * self.material.data.task.n_outputs * n <= _LARGEST else 0

    def changed(self, epoch: int) -> Iterator[Tensor]:
        """Yield the images of an epoch, step by step, until they are shown as they are."""
        first = (epoch - self.first_epoch) * self.n_steps
        for step in range(first, first + self.n_steps):
            batch = self._batch(step)
            if batch.places is not None:  # and so are all that come later
                return
            yield batch.at(self.resolution)

    def as_they_are(self) -> Iterator[Tensor]:
        """Yield all training images, unless the training never shows them so."""
        data = self.material.data
        if self._batch(self.config.epochs * self.n_steps - 1).places is None:
            return
        n = len(data.train)
        for start in range(0, n, _BATCH):
            part = data.train.take(torch.arange(start, min(n, start + _BATCH)))
            yield data.prepare(part.images, self.resolution)

    def _batch(self, step: int) -> TrainingBatch:
        first, total = self.first_epoch * self.n_steps, self.config.epochs * self.n_steps
        step_context = StepContext(self.seed, first + step, step / total)
        return batches.draw(self.material, self.config, step_context, ProcessGroup())


def record(
    network: nn.Module,
    folder: Path,
    views: AugmentedViews,
    progress: Progress,
    dtype: str = FLOAT32,
) -> SoftTargets | None:
    """Return the answers of a teacher to all batches of a training; compute those not kept yet.

    Args:
        network: The teacher; it is put into evaluation mode.
        folder: Whose name stands for all that decides the answers.
        views: What the training shows.
        progress: Is told of images.
        dtype: Of its forward pass.

    Returns:
        ``None`` where they would take more than 1 GiB.
    """
    n_images = views.n_recorded
    if not n_images:
        return None
    network.eval()
    thread_pool = ThreadPool(torch.get_num_threads())

    def outputs(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return forward(lambda: network(images), images, dtype).half()

    def answered(shown: Iterator[Tensor], advance: Callable[[int], None]) -> list[Tensor]:
        found: list[Tensor] = []
        while together := list(islice(shown, thread_pool.n_threads)):
            found += thread_pool.run([partial(outputs, images) for images in together])
            advance(sum(map(len, together)))
        return found

    parts = {_AS_THEY_ARE: (views.as_they_are, torch.cat)}
    parts |= {str(e): (partial(views.changed, e), torch.stack) for e in views.epochs}
    whole = folder / _WHOLE
    if not whole.is_file():
        with progress.phase("Teacher answers", n_images) as advance:
            for name, (shown, together) in parts.items():
                path = folder / f"{name}.safetensors"
                if not path.is_file() and (found := answered(shown(), advance)):
                    _keep(path, together(found))
        files.write_file(whole, b"")
    return SoftTargets(folder, views.n_steps)


def _keep(path: Path, outputs: Tensor) -> None:
    files.write_file_with(path, lambda temporary: save_file({_KEY: outputs}, temporary))
