import contextlib
import math
import random

import pytest

from hwnas.core.errors import ConfigError
from hwnas.export.picking import parse

COLUMNS = ("accuracy", "flash_kib", "latency_ms", "npu.latency_ms")
ROWS = [
    {"accuracy": 0.9, "flash_kib": 100.0, "latency_ms": 0.5, "npu.latency_ms": 1.0},
    {"accuracy": 0.95, "flash_kib": 300.0, "latency_ms": 0.8, "npu.latency_ms": 0.1},
    {"accuracy": 0.8, "flash_kib": 50.0, "latency_ms": 1.5, "npu.latency_ms": 2.0},
]


@pytest.mark.parametrize(
    ("limits", "rows"),
    [
        ("latency_ms <= 0.8", [0, 1]),
        ("latency_ms<0.8", [0]),
        ("flash_kib >= 3e2", [1]),
        ("accuracy > .9", [1]),
        ("npu.latency_ms < 1", [1]),
        ("latency_ms <= 0.8 and flash_kib < 300", [0]),
        ("latency_ms > -1\n and\tlatency_ms < +2.", [0, 1, 2]),
        ("accuracy > 0.99", []),
    ],
)
def test_limits_select_rows(limits: str, rows: list[int]) -> None:
    for text in (
        f"where {limits}",
        f"accuracy max where {limits}",
        f" accuracy max  where {limits} ",
    ):
        query = parse(text, COLUMNS)
        assert [i for i, row in enumerate(ROWS) if query.holds(row)] == rows


def test_goal_has_column_and_direction() -> None:
    query = parse("accuracy max", COLUMNS)
    assert (query.column, query.maximise, [*query.limits]) == ("accuracy", True, [])
    query = parse("npu.latency_ms min where accuracy > 0.5", COLUMNS)
    assert (query.column, query.maximise) == ("npu.latency_ms", False)
    assert parse("where accuracy > 0", COLUMNS).column is None


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "accuracy", "accuracy highest", "max", "accuracy maxwhere latency_ms < 1",
        "accuracy max latency_ms < 1", "accuracy max where", "where latency_ms",
        "where latency_ms = 1", "where latency_ms < 1 ms", "where latency_ms < 1ms",
        "where latency_ms < 1 and", "where and latency_ms < 1", "where (latency_ms < 1)",
        "where latency_ms < 1 < 2", "where latency_ms < $5", "where __import__(1)",
        "where 'latency_ms' < 1", "where not latency_ms < 1", "where latency_ms < accuracy",
        "where latency_ms < 1 or accuracy > 0",
    ],
)  # fmt: skip
def test_invalid_expression_names_allowed_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected \[COLUMN max\|min\]") as error:
        parse(text, COLUMNS)
    assert "Columns: accuracy, flash_kib, latency_ms, npu.latency_ms." in str(error.value)


@pytest.mark.parametrize(
    ("text", "name"),
    [("acuracy max", "acuracy"), ("where accuracy.__class__ < 1", "accuracy.__class__")],
)
def test_unknown_column_raises(text: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"Unknown column '{name}'. Did you mean 'accuracy'"):
        parse(text, COLUMNS)


@pytest.mark.parametrize("target", ["npu-a", "my board", "4pi", "1e3", "müller", "x or npu"])
def test_target_columns_support_unusual_names(target: str) -> None:
    column = f"{target}.latency_ms"
    columns = ("accuracy", "latency_ms", column, f"{column[1:]}")
    assert parse(f"{column} min", columns).column == column
    query = parse(f"accuracy max where {column}<4 and {column} >= 0.5", columns)
    assert query.holds(dict.fromkeys(columns, 1.0))
    assert not query.holds(dict.fromkeys(columns, 1.0) | {column: 5.0})
    with pytest.raises(ConfigError):
        parse(f"{column}x min", columns)


def test_random_text_is_parsed_or_raises() -> None:
    rng = random.Random(0)
    tokens = [*COLUMNS, "max", "min", "where", "and", "<", "<=", "1", "-.5e3"]
    n_parsed = 0
    for _ in range(5000):
        text = " ".join(rng.choice(tokens) for _ in range(rng.randrange(9)))
        with contextlib.suppress(ConfigError):
            query = parse(text, COLUMNS)
            assert isinstance(query.holds(dict.fromkeys(COLUMNS, math.nan)), bool)
            n_parsed += 1
    assert n_parsed > 10
