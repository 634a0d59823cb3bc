"""The registry of metrics: those of hwnas and of installed packages."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hwnas.core.errors import ConfigError
from hwnas.tasks import metrics
from tests.tasks.metrics.installed_metric import install_metric


def test_metrics_keep_their_order() -> None:
    quality = ["accuracy", "balanced_accuracy", "macro_f1", "mae"]
    assert list(metrics.all_metrics())[:10] == [*quality, *metrics.BASE_COSTS]
    assert metrics.BASE_COSTS == (
        "latency_ms", "energy_mj", "sram_kib", "flash_kib", "macs_m", "params_m",
    )  # fmt: skip
    assert {"throughput_ips", "co2_g", "cost_usd_per_m"} <= {*metrics.cost_names()}
    assert "accuracy" not in metrics.cost_names()


def test_metric_needs_only_known_metrics() -> None:
    for name, metric in metrics.all_metrics().items():
        assert metric.name == name
        assert {*metric.needs} <= {*metrics.all_metrics()}
        assert bool(metric.needs) is (metric.derive is not None)
        assert metric.derive is not None or not metric.facts


def test_title_of_target_metric_starts_with_target() -> None:
    assert metrics.metric_of("npu.throughput_ips").title == "npu throughput [images/s]"
    assert metrics.metric_of("npu.throughput_ips").maximise
    with pytest.raises(ConfigError, match=r"Unknown metric 'throughput'\. Did you mean"):
        metrics.metric_of("npu.throughput")


def test_package_metric_is_registered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_metrics: Callable[[], None]
) -> None:
    install_metric(tmp_path, "heat_k = own_metric:METRIC")
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh_metrics()
    assert metrics.metric_of("heat_k").title == "heat [K]"
    assert list(metrics.all_metrics())[-1] == "heat_k"


def test_fractions_show_decimals_and_units_digits() -> None:
    assert metrics.format_value("accuracy", 0.912345) == "0.9123"
    assert metrics.format_value("npu.accuracy", 0.012345, ".3f") == "0.012"
    values = (1.23456e-12, 0.0123456, 12.3456, 123456.7, 1.23456e12)
    expected = ["1.235e-12", "0.01235", "12.35", "123457", "1.235e+12"]
    assert [metrics.format_value("mae", value) for value in values] == expected
    assert metrics.format_value("mae", 1.5e-12, "+.4f") == "+1.5e-12"


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("heat_k = no_such_module:METRIC", "cannot be loaded: ModuleNotFoundError"),
        ("heat_k = own_metric:LABEL", "is no hwnas.tasks.metrics.Metric"),
        ("warmth_k = own_metric:METRIC", "refers to the metric 'heat_k'"),
        ("latency_ms = own_metric:DUPLICATE", "Two metrics are named 'latency_ms'"),
    ],
)
def test_invalid_metric_is_refused_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_metrics: Callable[[], None],
    point: str,
    message: str,
) -> None:
    install_metric(tmp_path, point)
    monkeypatch.syspath_prepend(str(tmp_path))
    fresh_metrics()
    with pytest.raises(ConfigError) as error:
        metrics.all_metrics()
    assert message in str(error.value)
    assert "\n" not in str(error.value)
