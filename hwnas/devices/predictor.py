"""The latency of every network on a device, from few measured ones, with intervals."""

from dataclasses import dataclass
from typing import final

from scipy import stats

from hwnas.devices import process
from hwnas.devices.features import Features
from hwnas.devices.prior import Prior
from hwnas.devices.process import Blocks, Posterior
from hwnas.devices.work import Floats

FEWEST = 3  #: measured networks that anything can be said from
COVERAGE = 0.95  #: of intervals


@final
@dataclass(frozen=True)
class Predictor:
    """What is known of a device after some networks were measured there."""

    prior: Prior
    parameters: Floats  #: of the roofline, see ``roofline.PARAMETERS``
    posterior: Posterior

    def predict(self, features: Features) -> tuple[Floats, Floats]:
        """Return latencies in ms and their standard deviation, those of a new measurement."""
        blocks = Blocks.of(features, self.parameters, self.prior.roofline.std)
        return self.posterior.predict(blocks)

    @property
    def reach(self) -> float:
        """Standard deviations that an interval reaches: Student's t, half a degree a network."""
        degrees = max(2.0, len(self.posterior.ms) / 2)
        return float(stats.t.ppf((1 + COVERAGE) / 2, degrees))


def fit(features: Features, ms: Floats, prior: Prior) -> Predictor:
    """Return what measured networks say of a device.

    Args:
        features: Of the measured networks, three at least.
        ms: What each took.
        prior: What is expected of the device.
    """
    parameters = features.roofline.fit(ms, prior.roofline)
    blocks = Blocks.of(features, parameters, prior.roofline.std)
    return Predictor(prior, parameters, process.fit(blocks, ms, prior.process))
