"""The section ``vela`` of a target."""

from dataclasses import dataclass


@dataclass
class Vela:
    """What Arm's Vela compiles for."""

    accelerator: str
    system_config: str
    memory_mode: str
    config: str = "Arm/vela.ini"  #: shipped with Vela, or a path
