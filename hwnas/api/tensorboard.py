"""Logs for TensorBoard."""

import importlib.util
from pathlib import Path
from typing import final

from hwnas.errors import ConfigError
from hwnas.training.loop import Row


def check() -> None:
    """Refuse to begin where the package is missing.

    Raises:
        ConfigError: it says how to install it.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise ConfigError(
            "train.tensorboard=true needs the package 'tensorboard': pip install tensorboard"
        )


@final
class TensorBoard:
    """Writes every number of a training's log, by step, for ``tensorboard --logdir``."""

    def __init__(self, folder: Path):
        from torch.utils.tensorboard import SummaryWriter  # needs the package tensorboard

        self._writer = SummaryWriter(str(folder))

    def __call__(self, row: Row) -> None:
        """Write one row; ``loss_largest`` is shown as ``loss/largest``, beside the other losses."""
        for name, value in row.items():
            if name != "step":
                tag = name.replace("_", "/", 1) if name != "gradient_norm" else name
                self._writer.add_scalar(tag, value, int(row["step"]))

    def keep(self) -> None:
        """Write what has not been written yet."""
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
