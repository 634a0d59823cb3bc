"""Fingerprints of options."""

from dataclasses import dataclass, field, replace

from hwnas.core.options import ADDED_AFTER_RELEASE, digest, fingerprint_options
from hwnas.hardware import backends
from hwnas.hardware.target import facts
from hwnas.models.families.base import TrainingRecipe
from hwnas.nas.options import SamplerConfig
from hwnas.training.evaluation.interfaces import ScoringConfig, TrainedConfig
from hwnas.training.options import FinishConfig, TrainingConfig
from tests.conftest import target


@dataclass
class _Options:
    first: int = 1
    added: str = field(default="as ever", metadata=ADDED_AFTER_RELEASE)
    listed: list[int] = field(default_factory=list, metadata=ADDED_AFTER_RELEASE)


def test_later_options_enter_only_if_not_default() -> None:
    options = _Options()
    assert fingerprint_options(options) == {"first": 1}
    assert fingerprint_options(replace(options, added="new")) == {"first": 1, "added": "new"}
    assert fingerprint_options(replace(options, listed=[1])) == {"first": 1, "listed": [1]}


def test_fingerprints_of_defaults_are_unchanged() -> None:
    """Runs with other digests are not resumed: mark a new option ``ADDED_AFTER_RELEASE``."""
    digests = {
        type(options).__name__: digest(fingerprint_options(options))
        for options in (
            ScoringConfig(), TrainedConfig(), FinishConfig(),
            # the defaults of earlier runs
            TrainingConfig(dtype="float32", batch_size=128),
        )
    }  # fmt: skip
    digests["SamplerConfig"] = digest(SamplerConfig().fingerprint_options())
    assert digests == EXPECTED_DIGESTS


def test_default_batch_size_enters_fingerprint_as_number() -> None:
    recipe = TrainingRecipe("sgd", lr=0.3, weight_decay=5e-5)
    assert TrainingConfig().decisive(recipe) == TrainingConfig(batch_size=128).decisive(recipe)
    assert TrainingConfig().decisive(recipe)["batch_size"] == 128
    assert TrainingConfig().for_images(127).decisive(recipe)["batch_size"] != 128


EXPECTED_DIGESTS = {
    "SamplerConfig": "a1fa3ece7b755f24",
    "ScoringConfig": "fb759909fe186eab",
    "TrainedConfig": "2692ba510ee899e8",
    "FinishConfig": "6c01829a436fe7ed",
    "TrainingConfig": "42dd0d6218587012",
}


def test_target_facts_omit_unused_later_backends() -> None:
    later = [d.name for d in backends.known() if d.added_after_release]
    assert later
    assert facts(target("npu")).keys().isdisjoint(later)
