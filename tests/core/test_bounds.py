"""Every numeric option has an interval, and values outside it are refused at once."""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwnas.__main__ import run
from hwnas.core import options
from hwnas.core.errors import ConfigError
from hwnas.core.options import AllowedRange, Option, iter_options
from hwnas.training.options import FinetuningConfig
from hwnas.workflows.config import SCHEMAS

_REQUIRED_OPTIONS = {
    "search": ["+target=sketch"],
    "audit": ["run=a"],
    "export": ["run=a"],
    "verify": ["a", "+target=sketch"],
    "tabular": ["accuracy=table"],
}


def _numeric() -> Iterator[tuple[str, Option]]:
    for verb, schema in SCHEMAS.items():
        yield from ((verb, o) for o in iter_options(schema) if options.is_numeric(o.field.type))
    yield from (
        ("finishing", o) for o in iter_options(FinetuningConfig) if options.is_numeric(o.hint)
    )


@pytest.mark.parametrize(("verb", "option"), [*_numeric()], ids=lambda v: getattr(v, "name", v))
def test_numeric_option_has_finite_interval(verb: str, option: Option) -> None:
    interval = options.allowed_range(option.field)
    assert interval is not None, (
        f"{option.name} of {verb} declares no interval: use options.bounded"
    )
    low, high = (float(end) for end in interval.text[1:-1].split(","))
    assert low < high
    assert math.isfinite(low)
    assert math.isfinite(high)
    assert not any(number in interval for number in (math.nan, math.inf, -math.inf))
    default = option.default
    if isinstance(default, int | float):
        assert default in interval


_SAMPLE = [
    ("search", "n_trials", "1e20"),
    ("search", "trained.fidelities", "[1,nan]"),
    ("search", "target.roofline.tile", "[8,0,8]"),
    ("search", "target.facts.price_usd_per_h", "inf"),
    ("search", "train.progressive", "nan"),
    ("audit", "n_networks", "99999999999"),
    ("export", "prune", "nan"),
    ("tabular", "benchmark.reference", "{accuracy: nan}"),
    ("verify", "target.roofline.on_chip_kib", "-1"),
]


@pytest.mark.parametrize(("verb", "name", "value"), _SAMPLE)
def test_error_names_option_outside_its_interval(
    verb: str, name: str, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["hwnas"])
    command = "search" if verb == "tabular" else verb
    assert run([command, *_REQUIRED_OPTIONS[verb], f"{name}={value}"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert name in line
    assert re.search(r" in [\[(]", line), line
    assert not any(tmp_path.iterdir())


def test_brackets_include_or_exclude_interval_ends() -> None:
    half_open = AllowedRange("[0, 1)")
    assert 0 in half_open
    assert 1 not in half_open
    assert 1 in AllowedRange("(0, 1]")
    assert 0 not in AllowedRange("(0, 1]")
    assert str(AllowedRange("[1, 1_000]")) == "[1, 1000]"


def test_error_for_too_many_epochs_gives_duration() -> None:
    from hwnas.training.options import TrainingConfig

    with pytest.raises(ConfigError, match=r"train\.epochs must be a whole number in .*a day"):
        TrainingConfig(epochs=10**20)
    with pytest.raises(ConfigError, match=r"got -1\.$"):
        TrainingConfig(epochs=-1)


def test_error_names_option_group_that_target_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["search", "+target=sketch", "target.power.active_w_low=1"]) == 2
    assert "the target has no target.power" in capsys.readouterr().err
