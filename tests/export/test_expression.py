import contextlib
import math
import random

import pytest

from hwnas.export.picking import ExpressionError, parse

COLUMNS = ("accuracy", "flash_kib", "latency_ms", "npu.latency_ms")
ROWS = [
    {"accuracy": 0.9, "flash_kib": 100.0, "latency_ms": 0.5, "npu.latency_ms": 1.0},
    {"accuracy": 0.95, "flash_kib": 300.0, "latency_ms": 0.8, "npu.latency_ms": 0.1},
    {"accuracy": 0.8, "flash_kib": 50.0, "latency_ms": 1.5, "npu.latency_ms": 2.0},
]


def chosen(text: str) -> list[int]:
    query = parse(text, COLUMNS)
    return [i for i, row in enumerate(ROWS) if query.holds(row)]


@pytest.mark.parametrize(
    ("condition", "rows"),
    [
        ("latency_ms <= 0.8", [0, 1]),
        ("latency_ms<0.8", [0]),
        ("0.8 > latency_ms", [0]),
        ("accuracy != .9", [1, 2]),
        ("flash_kib == 3e2", [1]),
        ("latency_ms >= npu.latency_ms", [1]),
        ("not latency_ms <= 0.8", [2]),
        ("not not latency_ms <= 0.8", [0, 1]),
        ("latency_ms <= 0.8 and flash_kib < 300", [0]),
        ("flash_kib < 60 or flash_kib > 200 and accuracy > 0.99", [2]),  # 'and' binds tighter
        ("(flash_kib < 60 or flash_kib > 200) and accuracy > 0.9", [1]),
        ("not (flash_kib < 60 or flash_kib > 200)", [0]),
        ("latency_ms > -1 and latency_ms < +2", [0, 1, 2]),
        ("latency_ms > 1\n or\tflash_kib > 250", [1, 2]),
    ],
)
def test_conditions(condition: str, rows: list[int]) -> None:
    assert chosen(f"where {condition}") == rows
    assert chosen(f"accuracy max where {condition}") == rows


def test_goal_is_a_column_and_its_direction() -> None:
    assert (parse("accuracy max", COLUMNS).column, parse("accuracy max", COLUMNS).maximise) == (
        "accuracy",
        True,
    )
    query = parse("npu.latency_ms min where accuracy > 0.5", COLUMNS)
    assert (query.column, query.maximise) == ("npu.latency_ms", False)
    assert parse("where accuracy > 0", COLUMNS).column is None


@pytest.mark.parametrize(
    ("text", "message", "place", "width"),
    [
        ("", "Expected a column, or 'where', got the end", 0, 1),
        ("accuracy", "Expected 'max' or 'min'", 8, 1),
        ("accuracy highest", "Expected 'max' or 'min' behind the column", 9, 7),
        ("acuracy max", "Unknown column 'acuracy'. Did you mean 'accuracy'", 0, 7),
        ("accuracy max latency_ms < 1", "Expected 'where', got 'latency_ms'", 13, 10),
        ("accuracy max where", "Expected a column or a number, got the end", 18, 1),
        ("where latency_ms", "Expected one of <=, >=, <, >, ==, !=, got the end", 16, 1),
        ("where latency_ms = 1", "Write '==' for 'equal to'", 17, 1),
        ("where latency_ms < 1 ms", "Expected 'and', 'or' or the end, got 'ms'", 21, 2),
        ("where latency_ms < 1ms", "Numbers have no unit", 20, 2),
        ("where latency_ms < 1 and", "Expected a column or a number, got the end", 24, 1),
        ("where and latency_ms < 1", "Expected a column or a number, got 'and'", 6, 3),
        ("where (latency_ms < 1", "Expected ')', 'and' or 'or', got the end", 21, 1),
        ("where latency_ms < 1)", "Expected 'and', 'or' or the end, got ')'", 20, 1),
        ("where latency_ms < 1 < 2", "Expected 'and', 'or' or the end, got '<'", 21, 1),
        ("where latency_ms < $5", "This means nothing", 19, 1),
        ("where __import__(1)", "Unknown column '__import__'", 6, 10),
        ("where 'latency_ms' < 1", "This means nothing", 6, 1),
        ("where accuracy.__class__ < 1", "Unknown column 'accuracy.__class__'", 6, 18),
        (f"where {'(' * 60}", "More than 50 conditions within each other", 56, 1),
        (f"where {'not ' * 60}", "More than 50 conditions within each other", 206, 3),
    ],
)
def test_error_points_at_the_wrong_place(text: str, message: str, place: int, width: int) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, COLUMNS)
    assert message in str(caught.value)
    assert "Columns: accuracy, flash_kib, latency_ms, npu.latency_ms." in str(caught.value)
    shown, pointer = caught.value.shown.split("\n")
    assert shown == f"  {text}"
    assert pointer == f"  {' ' * place}{'^' * width}"


@pytest.mark.parametrize("target", ["npu-a", "my board", "4pi", "1e3", "müller", "x or npu"])
def test_columns_of_targets_are_known_whatever_targets_are_called(target: str) -> None:
    column = f"{target}.latency_ms"
    columns = ("accuracy", "latency_ms", column, f"{column[1:]}")
    assert parse(f"{column} min", columns).column == column
    query = parse(f"accuracy max where {column}<4 and 0.5 <= {column}", columns)
    assert query.holds(dict.fromkeys(columns, 1.0))
    assert not query.holds(dict.fromkeys(columns, 1.0) | {column: 5.0})
    with pytest.raises(ExpressionError):
        parse(f"{column}x min", columns)


def test_any_text_is_read_or_refused() -> None:
    rng = random.Random(0)
    words = [*COLUMNS, "max", "min", "where", "and", "or", "not", "(", ")", "<", "<=", "1", "-.5e3"]
    n_read = 0
    for _ in range(5000):
        text = " ".join(rng.choice(words) for _ in range(rng.randrange(9)))
        with contextlib.suppress(ExpressionError):
            query = parse(text, COLUMNS)
            assert isinstance(query.holds(dict.fromkeys(COLUMNS, math.nan)), bool)
            n_read += 1
    assert n_read > 10
