import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hwnas.core.errors import TableError
from hwnas.core.quantity import Quantity
from hwnas.hardware.backends.base import CostContext
from hwnas.hardware.backends.offline import COST, OfflineSettings
from hwnas.hardware.backends.offline.backend import backend as offline_backend
from hwnas.hardware.backends.onnx_files import random_model
from hwnas.hardware.costs.cost_model import CostModel
from hwnas.hardware.costs.measured_cost import fused_graph
from hwnas.hardware.device_models import device_file
from hwnas.hardware.device_models.device_file import (
    MeasuredDevice,
    select_first_networks,
    select_next_networks,
)
from hwnas.hardware.device_models.features import FeatureEncoder
from hwnas.hardware.device_models.fitted_roofline import (
    EXPECTED,
    Floats,
    OperatorWork,
    operator_work,
)
from hwnas.hardware.device_models.predictor import DevicePrior
from hwnas.models.families import get
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace
from hwnas.nas.candidates import Candidate
from hwnas.workflows.profile_kit import next_to_measure
from tests.conftest import target, with_settings


@pytest.fixture(scope="module")
def networks(small: SearchSpace, task: Signature) -> list[Graph]:
    family, rng = get(small.family), random.Random(0)
    return [family.lower(small, small.sample(rng), task) for _ in range(500)]


@pytest.fixture(scope="module")
def known(networks: list[Graph]) -> OperatorWork:
    return operator_work(networks)


@pytest.fixture(scope="module")
def truth(known: OperatorWork) -> Floats:
    """Latencies of a device that follows the roofline with unexpected parameters."""
    rng = np.random.default_rng(3)
    logs = EXPECTED.mean + 0.7 * EXPECTED.std * rng.standard_normal(len(EXPECTED.mean))
    ms, _ = FeatureEncoder(known, 1)(known).roofline(logs)
    return 2.5 * ms * np.exp(0.01 * rng.standard_normal(len(ms)))


def device(known: OperatorWork, truth: Floats, n: int) -> tuple[MeasuredDevice, np.ndarray]:
    pool = np.arange(200)
    chosen = pool[select_first_networks(FeatureEncoder(known, 1)(known)[pool], n, DevicePrior())]
    return MeasuredDevice(known[pool], known[chosen], truth[chosen], 1, "float32-1t-b1", ()), chosen


def test_measured_networks_are_proposed_last(
    small: SearchSpace, task: Signature, known: OperatorWork, truth: Floats
) -> None:
    family, rng = get(small.family), random.Random(0)
    candidates = [
        Candidate(
            i,
            small.sample(rng),
            {"accuracy": Quantity(0.5, "measured"), "latency_ms": Quantity(ms, "modelled")},
        )
        for i, ms in enumerate(truth[:40].tolist())
    ]
    described = MeasuredDevice(known, known[np.arange(30)], truth[:30], 1, "float32-1t-b1", ())
    measured = {candidate.id for candidate in candidates[:30]}
    lower = partial(family.lower, small, signature=task)
    for proposed in (candidates, candidates[:30]):
        order = [g.id for g in next_to_measure(described, proposed, lower, 8)]
        assert len({*order}) == len(order) == 8
        new = {c.id for c in proposed} - measured
        assert {*order} <= (new or measured)


def test_operator_work_matches_networks(networks: list[Graph], known: OperatorWork) -> None:
    macs = [sum(node.op.n_macs for node in net) for net in networks]
    np.testing.assert_allclose(known.macs.sum(1), macs)
    assert ((known.kind >= 0).sum(1) == [len(net) for net in networks]).all()


def test_slopes_of_roofline_match_differences(known: OperatorWork) -> None:
    roofline, step = FeatureEncoder(known, 1)(known)[np.arange(50)].roofline, 1e-6
    rng = np.random.default_rng(0)
    for _ in range(5):
        logs = EXPECTED.mean + 0.3 * EXPECTED.std * rng.standard_normal(len(EXPECTED.mean))
        _, slopes = roofline(logs)
        for i, slope in enumerate(slopes.T):
            up, down = logs.copy(), logs.copy()
            up[i], down[i] = up[i] + step, down[i] - step
            result = (roofline(up)[0] - roofline(down)[0]) / (2 * step)
            np.testing.assert_allclose(slope, result, atol=1e-5)


@pytest.mark.parametrize(("n", "mape"), [(10, 0.06), (20, 0.03)])
def test_few_networks_predict_others(
    networks: list[Graph], known: OperatorWork, truth: Floats, n: int, mape: float
) -> None:
    result, _ = device(known, truth, n)
    value, std = result.predictor.predict(result.encoded(networks[200:]))
    error = np.abs(value / truth[200:] - 1)
    inside = np.abs(value - truth[200:]) <= result.predictor.interval_factor * std
    assert error.mean() < mape
    assert inside.mean() > 0.9


def test_wrong_measurement_is_detected(known: OperatorWork, truth: Floats) -> None:
    correct_device, chosen = device(known, truth, 20)
    assert correct_device.outlier() is None
    detected = []
    for wrong in range(0, 20, 4):
        ms = truth[chosen].copy()
        ms[wrong] *= 1.5
        detected.append(
            MeasuredDevice(
                correct_device.reference, correct_device.measured, ms, 1, "", ()
            ).outlier()
            == wrong
        )
    assert sum(detected) >= 4


def test_interval_width_is_that_of_searched_networks(
    networks: list[Graph], known: OperatorWork, truth: Floats
) -> None:
    result, chosen = device(known, truth, 10)

    def half(nets: Sequence[Graph]) -> float:
        figures = [result.latency(net) for net in nets]
        return float(np.median([(f.upper - f.value) / f.value for f in figures]))

    assert result.interval_half_width == pytest.approx(half(networks[:200]))
    assert result.interval_half_width > 1.1 * half([networks[i] for i in chosen])


def test_next_networks_are_most_valuable(
    networks: list[Graph], known: OperatorWork, truth: Floats
) -> None:
    result, _ = device(known, truth, 8)
    pool = result.encoded(networks[200:300])
    _, std = result.predictor.predict(pool)
    worth = np.zeros(100)
    worth[int(np.argmax(std))] = 1.0
    assert select_next_networks(pool, 1, result.predictor, worth)[0] == int(np.argmax(std))


def test_device_file_round_trips(
    tmp_path_factory: pytest.TempPathFactory,
    networks: list[Graph],
    known: OperatorWork,
    truth: Floats,
) -> None:
    result, _ = device(known, truth, 10)
    path = tmp_path_factory.mktemp("device") / "device.json"
    result.save(path)
    assert device_file.load_device_file(path).latency(networks[300]) == result.latency(
        networks[300]
    )
    content = path.read_text()
    path.write_text(content.replace('"format": 1', '"version": 1'))  # as in older files
    assert device_file.load_device_file(path).latency(networks[300]) == result.latency(
        networks[300]
    )
    for damaged, message in (
        (content[:100], "not JSON"),
        (
            content.replace('"format": 1', '"format": 2'),
            "format 2 is from a newer version of hwnas",
        ),
        (
            content.replace('"measured": [[[', '"measured": [[[99, 1, 1, 1, 1], ['),
            r"0\]\[0\]' is 99",
        ),
        (content.replace('"ms": [', '"ms": [1.0, '), "latencies of"),
    ):
        path.write_text(damaged)
        with pytest.raises(TableError, match=f"cannot be read: .*{message}"):
            device_file.load_device_file(path)


def test_unmeasured_space_is_refused(
    tmp_path: Path, small: SearchSpace, known: OperatorWork, truth: Floats
) -> None:
    t4 = with_settings(target("nvidia_t4"), OfflineSettings(str(tmp_path / "device.json")))
    result, _ = device(known, truth, 10)
    replace(result, spaces=(small.name,)).save(tmp_path / "device.json")

    def lower(genotype: Genotype) -> Graph:
        raise AssertionError("nothing is lowered")

    def model(*spaces: str) -> CostModel:
        costed = CostContext(t4, lower, lower, lower, spaces, command="hwnas profile")
        return offline_backend(t4).cost_models[COST](costed)

    model(small.name)
    with pytest.raises(TableError, match=r"none of tiny\. Make a kit with: hwnas profile kit=DIR"):
        model(small.name, "tiny")
    (tmp_path / "device.json").unlink()
    with pytest.raises(TableError, match=r"is missing\. Make a kit with: hwnas profile kit=DIR"):
        model(small.name)


def test_verification_uses_cost_model_of_search(
    tmp_path: Path, networks: list[Graph], known: OperatorWork, truth: Floats
) -> None:
    t4 = with_settings(target("nvidia_t4"), OfflineSettings(str(tmp_path / "device.json")))
    device(known, truth, 10)[0].save(tmp_path / "device.json")  # possibly of other spaces
    backend, lowered = offline_backend(t4), networks[300]
    (tmp_path / "m.onnx").write_bytes(random_model(fused_graph(lowered, t4)))
    images = np.zeros((1, *lowered[0].op.in_shape), np.float32)

    def latency(cost: str) -> Quantity:
        files = {".onnx": tmp_path / "m.onnx"}
        return (
            backend.artefacts(None, cost)
            .evaluate(files, lowered, [images])[1]
            .figures["latency_ms"]
        )

    def lower(genotype: Genotype) -> Graph:
        return lowered

    costed = CostContext(t4, lower, lower, lower, ("tiny",))
    genotype = Genotype("tiny", ())
    searched = backend.cost_models["roofline"](costed).cost(genotype).figures["latency_ms"]
    assert latency("roofline") == searched
    assert (
        latency(COST)
        == device_file.load_device_file(tmp_path / "device.json").latency(lowered)
        != searched
    )
    (tmp_path / "device.json").unlink()
    backend = offline_backend(t4)
    assert latency("roofline") == searched
    with pytest.raises(TableError, match="is missing"):
        latency(COST)


def test_parts_of_data_sheet_latency_add_up(networks: list[Graph]) -> None:
    backend, lowered = offline_backend(target("nvidia_t4")), networks[300]

    def lower(genotype: Genotype) -> Graph:
        return lowered

    costed = CostContext(target("nvidia_t4"), lower, lower, lower, ("tiny",))
    cost = backend.cost_models["roofline"](costed).cost(Genotype("tiny", ()))
    parts = [cost.details[f"{part}_bound_ms"] for part in ("compute", "memory", "launch")]
    assert sum(part or 0 for part in parts) == pytest.approx(cost.figures["latency_ms"].value)
