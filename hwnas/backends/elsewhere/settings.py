"""The section of a target file for devices out of reach."""

from dataclasses import dataclass

from hwnas.errors import ConfigError


@dataclass
class Elsewhere:
    """What is known of a device beside its facts."""

    #: the file that ``profile measured=CSV`` writes; default: measured/TARGET-SETTING.json
    file: str = ""
    #: the data sheet alone is off by this factor at most, either way: the interval of cost=roofline
    sheet_factor: float = 4.0

    def __post_init__(self) -> None:
        if self.sheet_factor < 1:
            raise ConfigError(
                f"target.elsewhere.sheet_factor must be at least 1, got {self.sheet_factor:g}."
            )
