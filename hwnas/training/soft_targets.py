"""Recorded outputs of a teacher for all batches of a training, shared by its students.

Batches follow from the seed and the step number, so trainings with equal options use the same
images. Outputs are stored per step for augmented images, and per image for images without
augmentation.

Sources: Beyer et al., "Knowledge distillation: A good teacher is patient and consistent", CVPR
2022, https://arxiv.org/abs/2106.05237 (teacher and student must use the same views); Shen & Xing,
"A Fast Knowledge Distillation Framework for Visual Recognition", ECCV 2022,
https://arxiv.org/abs/2112.01528 (outputs may be stored).
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
from hwnas.training.inference import FLOAT32, forward
from hwnas.training.options import TrainingConfig
from hwnas.training.parallel import ProcessGroup, ThreadPool

_MAX_BYTES = 1 << 30  # total size; larger outputs are computed in each training instead
_PLAIN_FILE = "as_they_are"  # file of the images without augmentation
_COMPLETE_FILE = "whole"  # exists once all files are complete
_BATCH = 256  # images without augmentation
_KEY = "logits"  # of outputs of any task; the name in files of earlier versions


@final
@dataclass
class SoftTargets:
    """Outputs of a teacher, read from the files that ``record`` wrote.

    Args:
        folder: Folder of the files.
        n_steps: Steps per epoch.
    """

    folder: Path
    n_steps: int
    _loaded: dict[str, Tensor] = field(default_factory=dict)

    def loss_targets(self, batch: TrainingBatch, step_context: StepContext) -> Tensor:
        """Return the teacher's outputs for a batch in the form that the task's loss takes."""
        if batch.rows is not None:
            outputs = self._file(_PLAIN_FILE)[batch.rows]
        else:
            epoch, position = divmod(step_context.step, self.n_steps)
            # The test of memory after an error has smaller batches, whose targets do not matter.
            outputs = self._file(str(epoch))[position][: len(batch.targets)]
        return batch.data.task.distillation_targets(outputs.float()).to(batch.loss_targets.device)

    def _file(self, name: str) -> Tensor:
        if name not in self._loaded:
            self._loaded.clear()  # only one epoch is needed at a time
            self._loaded[name] = load_file(self.folder / f"{name}.safetensors")[_KEY]
        return self._loaded[name]


@final
@dataclass(frozen=True)
class AugmentedViews:
    """The images of a training, in batches ``(N, C, R, R)``, at a teacher's resolution."""

    material: TrainingData
    config: TrainingConfig
    seed: int
    resolution: int  #: height and width of the teacher's input, in pixels
    first_epoch: int = 0  #: epoch with which the training starts

    @property
    def n_steps(self) -> int:
        """Steps per epoch."""
        return batches.steps_per_epoch(self.config.images_per_step, len(self.material.data.train))

    @property
    def epochs(self) -> range:
        """Indices of the epochs of the training."""
        return range(self.first_epoch, self.first_epoch + self.config.epochs)

    @property
    def n_images(self) -> int:
        """Number of different images; each augmentation of an image counts, each original once."""
        steps = self.config.epochs * self.n_steps
        n_changed = (
            math.ceil(steps * (1 - self.config.plain_fraction)) * self.config.images_per_step
        )
        changed, plain = self._batch(0).rows is None, self._batch(steps - 1).rows is not None
        return changed * n_changed + plain * len(self.material.data.train)

    @property
    def n_recorded(self) -> int:
        """``n_images``, or 0 if the outputs for them take more than 1 GiB and are not recorded."""
        n = self.n_images
        return n if 2 * self.material.data.task.n_outputs * n <= _MAX_BYTES else 0

    def augmented(self, epoch: int) -> Iterator[Tensor]:
        """Yield the augmented images of an epoch, one batch ``(N, C, R, R)`` per step."""
        first = (epoch - self.first_epoch) * self.n_steps
        for step in range(first, first + self.n_steps):
            batch = self._batch(step)
            if batch.rows is not None:  # this step and all later ones have no augmentation
                return
            yield batch.at(self.resolution)

    def plain(self) -> Iterator[Tensor]:
        """Yield all training images without augmentation, in batches ``(N, C, R, R)``.

        Nothing is yielded if the training augments the images of all steps.
        """
        data = self.material.data
        if self._batch(self.config.epochs * self.n_steps - 1).rows is None:
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
    """Return the outputs of a teacher for all batches; compute and store those that are missing.

    Args:
        network: The teacher; it is put into evaluation mode.
        folder: Folder of the files; its name identifies everything that determines the outputs.
        views: Images of the training.
        progress: Progress in images.
        dtype: Number format of the forward pass: ``float32`` or ``bfloat16``.

    Returns:
        The recorded outputs; ``None`` if they would take more than 1 GiB.
    """
    n_images = views.n_recorded
    if not n_images:
        return None
    network.eval()
    thread_pool = ThreadPool(torch.get_num_threads())

    def outputs(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return forward(lambda: network(images), images, dtype).half()

    def compute(shown: Iterator[Tensor], advance: Callable[[int], None]) -> list[Tensor]:
        results: list[Tensor] = []
        while group := list(islice(shown, thread_pool.n_threads)):
            results += thread_pool.run([partial(outputs, images) for images in group])
            advance(sum(map(len, group)))
        return results

    parts = {_PLAIN_FILE: (views.plain, torch.cat)}
    parts |= {str(e): (partial(views.augmented, e), torch.stack) for e in views.epochs}
    complete = folder / _COMPLETE_FILE
    if not complete.is_file():
        with progress.phase("Teacher answers", n_images) as advance:
            for name, (images, join) in parts.items():
                path = folder / f"{name}.safetensors"
                if not path.is_file() and (results := compute(images(), advance)):
                    _write(path, join(results))
        files.write_file(complete, b"")
    return SoftTargets(folder, views.n_steps)


def _write(path: Path, outputs: Tensor) -> None:
    files.write_file_with(path, lambda temporary: save_file({_KEY: outputs}, temporary))
