import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from scipy import stats

from hwnas.core.errors import ConfigError
from hwnas.hardware.timing import (
    Sentinel,
    Timing,
    TimingConfig,
    interleaved,
    measure,
    median_and_p99,
    percentiles,
    summarise,
)

MS = 1e-3


class Machine:
    """A fake timer with a settable duration of one run."""

    def __init__(self, seconds: float = MS):
        self.seconds = seconds
        self.calls: list[int] = []

    def __call__(self, n: int) -> float:
        self.calls.append(n)
        return n * self.seconds


class Script(Machine):
    """A fake timer with a given duration for each run."""

    def __init__(self, seconds: Sequence[float]):
        super().__init__()
        self._script: Iterator[float] = itertools.chain(seconds, itertools.repeat(seconds[-1]))

    def __call__(self, n: int) -> float:
        self.seconds = next(self._script)
        return super().__call__(n)


def test_warm_up_ends_when_repeats_are_stable() -> None:
    # The second call determines the number of runs per repeat.
    timer = Script([0.2, 0.1, 0.09, 0.08, 0.07, 0.06, 0.0595, 0.05])
    timing = measure(timer, TimingConfig(repeats=9))
    assert timer.calls == [1] * (2 + 5 + 9)
    assert timing == Timing(50.0, 50.0, 50.0, 9)


def test_warm_up_of_unstable_machine_is_limited() -> None:
    timer = Script([0.1, 0.2] * 100)
    timing = measure(timer, TimingConfig(repeats=3))
    assert len(timer.calls) == 2 + 2 + 3
    assert timing.low_ms < timing.high_ms
    timer = Script([0.95**n for n in range(40)])  # faster and faster
    measure(timer, TimingConfig(repeats=3))
    assert len(timer.calls) == 2 + 20 + 3


@pytest.mark.parametrize("seconds", [3e-7, 1e-4, 2.4e-3, 0.5])
def test_repeats_have_minimum_duration(seconds: float) -> None:
    timer = Machine(seconds)
    timing = measure(timer, TimingConfig(repeats=5, min_repeat_ms=10))
    (number,) = {*timer.calls[-5:]}
    assert number * seconds >= 10 * MS
    assert number == 1 or number * seconds < 30 * MS
    assert timing.median_ms == pytest.approx(seconds / MS)
    assert timing.n_repeats == 5


def test_median_is_that_of_repeats() -> None:
    timer = Script([0.1, 0.1, 0.1, 0.3, 0.1, 0.2])  # one to count, two to warm up
    assert measure(timer, TimingConfig(repeats=3)).median_ms == pytest.approx(200)


@pytest.mark.parametrize("n", range(6, 60))
def test_interval_of_median_is_narrowest_with_95_percent(n: int) -> None:
    timing = summarise([float(rank) for rank in reversed(range(1, n + 1))])
    low, high = int(timing.low_ms), int(timing.high_ms)
    below = stats.binom(n, 0.5)  # how many of n values lie below the median

    def coverage(low: int, high: int) -> float:
        return float(below.cdf(high - 1) - below.cdf(low - 1))

    assert low + high == n + 1
    assert coverage(low, high) >= 0.95 > coverage(low + 1, high - 1)
    assert timing.median_ms == (n + 1) / 2
    assert timing.n_repeats == n


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_few_repeats_have_the_widest_interval(n: int) -> None:
    timing = summarise([float(rank) for rank in range(n)])
    assert (timing.low_ms, timing.high_ms) == (0.0, n - 1.0)


def test_figure_is_measured_with_its_interval() -> None:
    figure = Timing(2.0, 1.5, 3.0, 9).figure
    assert (figure.value, figure.source, figure.low, figure.high) == (2.0, "measured", 1.5, 3.0)


def test_percentiles_are_of_single_runs() -> None:
    timer = Script([0.0, *(MS * (i * 37 % 101) for i in range(101))])
    assert percentiles(timer, 101) == {
        "p50_ms": pytest.approx(50),
        "p90_ms": pytest.approx(90),
        "p99_ms": pytest.approx(99),
    }
    assert timer.calls == [10] + [1] * 101
    assert {*percentiles(Machine(), 1).values()} == {1.0}


CONFIG = TimingConfig(drift=0.05, retries=3)
TIMING = Timing(1.0, 1.0, 1.0, 9)


class Block:
    """A measured block during which the speed of the machine changes."""

    def __init__(self, machine: Machine, slowdowns: Sequence[float]):
        self._machine, self._slowdowns, self.n = machine, slowdowns, 0

    def __call__(self) -> list[Timing]:
        self._machine.seconds = MS * self._slowdowns[min(self.n, len(self._slowdowns) - 1)]
        self.n += 1
        return [Timing(float(self.n), 0.0, 9.0, 9)] * 2


@pytest.mark.parametrize(
    ("slowdowns", "n_blocks"),
    [
        ([1.0], 1),
        ([1.04], 1),  # within the allowed drift
        ([0.9], 1),  # faster is no disturbance
        ([1.1, 1.0], 3),  # the second ends before the machine is known to be quiet
        ([2.0, 2.0, 1.0], 4),
    ],
)
def test_block_is_repeated_until_it_is_quiet(slowdowns: Sequence[float], n_blocks: int) -> None:
    machine = Machine()
    block = Block(machine, slowdowns)
    timings = Sentinel(machine, CONFIG).watch(block)
    assert block.n == n_blocks
    assert timings == [Timing(float(n_blocks), 0.0, 9.0, 9)] * 2  # the last, not flagged


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_disturbed_block_is_flagged_after_retries(retries: int) -> None:
    machine = Machine()
    block = Block(machine, [1.5])
    timings = Sentinel(machine, TimingConfig(retries=retries)).watch(block)
    assert block.n == retries + 1
    assert [timing.drifted for timing in timings] == [True, True]


def test_slow_machine_before_block_is_a_disturbance() -> None:
    machine = Machine()
    sentinel = Sentinel(machine, TimingConfig(retries=0))
    machine.seconds = 2 * MS
    (timing, _) = sentinel.watch(Block(machine, [1.0]))
    assert timing.drifted


def _readings(*slowdowns: float) -> Sentinel:
    """Return a sentinel with these first readings, of three timings each."""
    probe = Machine()
    Sentinel(probe, CONFIG)
    n_before = len(probe.calls) - 8 * 3  # to decide how often a reading runs
    timings = [MS] * n_before + [MS * s for s in slowdowns for _ in range(3)]
    return Sentinel(Script(timings), CONFIG)


def test_level_is_lower_quartile_of_readings() -> None:
    # Neither the median, where slow readings are normal, nor the minimum, an outlier.
    mostly_slow = _readings(2, 2, 1, 2, 1, 2, 1, 2, 2)
    assert mostly_slow.disturbed()
    one_fast = _readings(1, 1, 1, 0.5, 1, 1, 1, 1, 1)
    assert not one_fast.disturbed()
    assert one_fast.readings_ms == pytest.approx([1, 1, 1, 0.5, 1, 1, 1, 1, 1])


def test_slower_machine_becomes_new_level() -> None:
    machine = Machine()
    sentinel = Sentinel(machine, TimingConfig(retries=0))
    machine.seconds = 2 * MS
    flags = [sentinel.watch(lambda: [TIMING])[0].drifted for _ in range(60)]
    assert flags[0]
    assert not flags[-1]
    assert flags == sorted(flags, reverse=True)


@pytest.mark.parametrize(
    "wrong",
    [
        {"repeats": 2},
        {"min_repeat_ms": 0},
        {"drift": 0},
        {"drift": 1},
        {"retries": -1},
    ],
)
def test_invalid_config_is_refused(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"timing.{name} .*{next(iter(wrong.values()))}"):
        TimingConfig(**wrong)  # type: ignore[arg-type]


def test_p99_and_median_are_of_same_runs() -> None:
    times = [*([MS] * 97), 5 * MS, 6 * MS, 7 * MS] * 21
    result = median_and_p99(Script([9.0, 9.0, MS, *times]))
    assert result is not None
    timing, p99 = result
    assert p99.value == pytest.approx(6)
    assert p99.source == "measured"
    assert 5 <= p99.lower <= p99.value <= p99.upper <= 7 + 1e-9
    assert (timing.median_ms, timing.n_repeats) == (1.0, 2000)


@pytest.mark.parametrize("seed", range(20))
def test_p99_is_never_below_the_median(seed: int) -> None:
    """The speed of the machine changes by factors between and during measurements."""
    rng = random.Random(seed)
    times = [MS * rng.choice((1, 2, 10)) * rng.lognormvariate(0, 0.5) for _ in range(2003)]
    result = median_and_p99(Script(times))
    assert result is not None
    timing, p99 = result
    assert timing.median_ms <= p99.value
    assert timing.low_ms <= p99.lower
    assert timing.high_ms <= p99.upper


@pytest.mark.parametrize(("seconds", "n"), [(1e-6, 2000), (0.02, 1000), (3.0, 400)])
def test_p99_of_slow_networks_has_fewer_runs(seconds: float, n: int) -> None:
    machine = Machine(seconds)
    result = median_and_p99(machine)
    assert result is not None
    assert result[1].value == pytest.approx(seconds / MS)
    assert machine.calls == [1] * (n + 3)


def test_p99_beyond_time_limit_is_not_measured() -> None:
    assert median_and_p99(Machine(0.1), limit_s=41) is not None
    assert median_and_p99(Machine(0.1), limit_s=41, uncounted=1) is None
    assert median_and_p99(Machine(0.3), limit_s=60) is None


def test_intervals_of_quantiles_have_nominal_coverage() -> None:
    """In 95 % of draws, both quantiles of an exponential distribution are in their intervals."""
    rng = random.Random(0)
    median_inside = p99_inside = 0
    for _ in range(200):
        result = median_and_p99(Script([1.0] * 3 + [rng.expovariate(1) for _ in range(400)]))
        assert result is not None
        timing, p99 = result
        median_inside += timing.low_ms <= stats.expon.ppf(0.5) * 1e3 <= timing.high_ms
        p99_inside += p99.lower <= stats.expon.ppf(0.99) * 1e3 <= p99.upper
    assert min(median_inside, p99_inside) >= 180


def test_interleaved_ratio_is_robust_to_slowdown() -> None:
    rng = random.Random(0)
    speeds = [1.0] * 11 + [1 + turn / 10 for turn in range(100)]  # a tenth slower at each turn
    first = Script([0.02 * speed * rng.uniform(0.99, 1.01) for speed in speeds])
    second = Script([0.03 * speed for speed in speeds])
    result = interleaved(first, second, TimingConfig(repeats=3))
    assert result.first.n_repeats == result.second.n_repeats == 9
    assert result.ratio.value == pytest.approx(2 / 3, rel=0.01)
    assert result.ratio.source == "measured"
    assert 0.65 < result.ratio.lower < result.ratio.value < result.ratio.upper < 0.69
    assert result.first.high_ms > 1.5 * result.first.low_ms


def test_periodic_disturbance_does_not_bias_ratio() -> None:
    calls = itertools.count()

    def timer(n: int) -> float:
        """Return equal durations, except that every second call takes three times as long."""
        return n * MS * (3 if next(calls) % 2 else 1)

    result = interleaved(timer, timer, TimingConfig(repeats=9))
    assert result.ratio.lower < 1 < result.ratio.upper


@pytest.mark.parametrize(("seconds", "turns"), [(0.5, 4), (MS, 12)])
def test_comparison_of_slow_runs_has_fewer_turns(seconds: float, turns: int) -> None:
    timer = Machine(seconds)
    result = interleaved(timer, Machine(2 * seconds), TimingConfig(repeats=4, min_repeat_ms=8))
    probes = 2 + 10
    assert len(timer.calls) == probes + 4 * turns
    assert result.first.n_repeats == turns
    assert result.ratio.value == pytest.approx(0.5)
