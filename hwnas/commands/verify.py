"""``python -m hwnas verify``: prints what repeating a proof finds, as it is found."""

from rich.console import Console

from hwnas.api.verifying import verify
from hwnas.commands.console import Phases
from hwnas.export.options import VerifyConfig


def run(config: VerifyConfig) -> None:
    """Repeat the proof of an export."""
    verify(config, Phases(Console()))
