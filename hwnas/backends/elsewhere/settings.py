"""The section of a target file for devices out of reach."""

from dataclasses import dataclass

from hwnas.bounds import check, within
from hwnas.errors import ConfigError


@dataclass
class Elsewhere:
    """What is known of a device beside its facts."""

    #: the file that ``profile measured=CSV`` writes; default: measured/TARGET-SETTING.json
    file: str = ""
    #: how many times what its data sheet allows a device takes: the interval of cost=roofline
    slower_low: float = within("[1, 1000]", 1.0)
    slower_high: float = within("[1, 1000]", 20.0)

    def __post_init__(self) -> None:
        check(self, "target.elsewhere.")
        if self.slower_low > self.slower_high:
            raise ConfigError(
                "target.elsewhere.slower_low must be at most slower_high, got "
                f"{self.slower_low:g} and {self.slower_high:g}."
            )
