import itertools
import json
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from hwnas.core import safe_read
from hwnas.core.safe_read import CorruptFileError, parse_json, parse_yaml
from hwnas.core.schema import OPEN, NumberBounds, SchemaError, Size, validate


@dataclass(frozen=True)
class _Box:
    sides: tuple[int, int]
    name: str = "box"


class _Inner(TypedDict):
    share: Annotated[float, NumberBounds(0, 1)]


class _Record(TypedDict):
    n: Size
    kind: NotRequired[Literal["a", "b"]]
    inner: NotRequired[Annotated[_Inner, OPEN]]
    either: NotRequired[str | dict[str, float] | None]
    boxes: NotRequired[list[_Box]]
    more: NotRequired[Any]


def test_valid_value_is_converted() -> None:
    raw = {"n": 3, "kind": "a", "inner": {"share": 1, "else": []}, "boxes": [{"sides": [1, 2]}]}
    record = validate(_Record, raw)
    assert record["boxes"] == [_Box((1, 2))]
    assert isinstance(record["inner"]["share"], float)
    assert record["inner"]["else"] == []
    for either in ("x", {"y": 1}, None):
        assert validate(_Record, {"n": 1, "either": either})["either"] == either


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        ([], "the content is a list of 0; allowed: an object"),
        ({}, "'n' is missing"),
        ({"n": True}, "'n' is true; allowed: a whole number"),
        ({"n": 0}, "'n' is 0; allowed: at least 1 and at most 1e+09"),
        ({"n": 1.5}, "'n' is 1.5; allowed: a whole number"),
        ({"n": 1, "m": 2}, "the content: Unknown field 'm'"),
        ({"n": 1, "kind": "c"}, "'kind' is 'c'; allowed: a or b"),
        ({"n": 1, "kind": ["a"]}, "'kind' is a list of 1; allowed: a or b"),
        ({"n": 1, "inner": {"share": 1.5}}, "'inner.share' is 1.5; allowed: at least 0 and"),
        ({"n": 1, "inner": {"share": float("nan")}}, "allowed: a finite number"),
        ({"n": 1, "either": 3}, "'either' is 3; allowed: text or an object or null"),
        ({"n": 1, "either": {"y": "1"}}, "'either.y' is '1'; allowed: a number"),
        ({"n": 1, "boxes": [{"sides": [1]}]}, "'boxes[0].sides' is a list of 1; allowed: a list"),
        ({"n": 1, "boxes": [{}]}, "'boxes[0].sides' is missing"),
        ({"n": 1, "more": {"x": [float("inf")]}}, "'more.x.0' is inf; allowed: a finite number"),
    ],
)
def test_error_gives_path_and_allowed_values(raw: Any, words: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(words)):
        validate(_Record, raw)


def test_long_value_is_truncated_in_message() -> None:
    with pytest.raises(SchemaError) as error:
        validate(int, "x" * 1000)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "text",
    ['{"a": 1, "a": 1}', "[NaN]", "[-Infinity]", "[" * 100_000, "{", "1" * 5000, '"\ud800', ""],
)
def test_damaged_json_is_refused(text: str) -> None:
    with pytest.raises(CorruptFileError):
        parse_json(text)


def test_deeply_nested_json_is_refused() -> None:
    deep = "[" * 100 + "]" * 100
    with pytest.raises(SchemaError, match="nested more than 32 levels deep"):
        validate(Any, parse_json(deep))


_BOMB = "\n".join(
    ["a: &a [x,x,x,x,x,x,x,x,x]"]
    + [f"{n}: &{n} [{','.join([f'*{m}'] * 9)}]" for m, n in itertools.pairwise("abcdefgh")]
)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1\na: 2", "{x: {a: 1, a: 1}}", "!!python/object/apply:os.system ['id']", "a: !x 1",
        _BOMB, "&a [*a]", "a: [", "[" * 5000, "a: 2001-99-99", "? [a]\n: 1", "a: \x00",
    ],
)  # fmt: skip
def test_damaged_yaml_is_refused(text: str) -> None:
    with pytest.raises(CorruptFileError):
        parse_yaml(text)


def test_yaml_limits_values_after_alias_expansion(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A text without aliases is not limited: plans of a week have over 100,000 values."""
    monkeypatch.setattr(safe_read, "_MAX_NODES", 100)
    assert parse_yaml("[" + "x," * 500 + "]") == ["x"] * 500
    assert parse_yaml("{" + ",".join(map(str, range(300))) + "}") == dict.fromkeys(range(300))
    with pytest.raises(CorruptFileError, match="has more than 643 values"):
        parse_yaml("a: &a [" + "x," * 300 + "]\nb: [" + ",".join(["*a"] * 10) + "]")


def test_yaml_with_few_aliases_is_read() -> None:
    assert parse_yaml("a: &x {b: [1, 2]}\nc: *x") == json.loads('{"a":{"b":[1,2]},"c":{"b":[1,2]}}')
