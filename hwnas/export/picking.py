"""Which models of a search are exported: by name, by id, or by what is asked of them."""

import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

from hwnas.core.errors import ConfigError, RunError, unknown_name
from hwnas.nas.front import Front
from hwnas.tasks import metrics
from hwnas.tasks.metrics import costs_in, maximise_flags, metric_of, quality_in

# The small language of ``pick='accuracy max where latency_ms <= 0.8 and not flash_kib > 300'``.
#
# ::
#
#     query      = [goal] ["where" condition]
#     goal       = column ("max" | "min")
#     condition  = term {"or" term}
#     term       = factor {"and" factor}
#     factor     = "not" factor | "(" condition ")" | operand comparison operand
#     operand    = column | number
#
# Read by recursive descent; nothing of a text is ever evaluated as Python.

Values = Mapping[str, float]  #: of one candidate, by column
Condition = Callable[[Values], bool]
Operand = Callable[[Values], float]

_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
    "!=": operator.ne,
}
_WORDS = ("max", "min", "where", "and", "or", "not")
_TOKEN = (
    r"(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<word>[A-Za-z_][\w.]*)"
    r"|(?P<symbol><=|>=|==|!=|<|>|\(|\))"
)
_DEEPEST = 50  #: parentheses and ``not`` within each other


@final
class ExpressionError(ConfigError):
    """A text that is not of the language; ``shown`` points at the wrong place."""


@dataclass(frozen=True)
class Query:
    """What a text asks for."""

    column: str | None  #: whose extreme is wanted; ``None``: all that fulfil the condition
    maximise: bool
    holds: Condition


@dataclass(frozen=True)
class _Token:
    text: str
    kind: str  #: ``number``, ``word``, ``symbol`` or ``end``
    start: int


def parse(text: str, columns: Collection[str]) -> Query:
    """Return what a text asks for.

    Raises:
        ExpressionError: it is not of the language, or names an unknown column.
    """
    return _Parser(text, columns).query()


@final
class _Parser:
    def __init__(self, text: str, columns: Collection[str]):
        self._text, self._columns = text, columns
        self._tokens = self._split()
        self._at = 0
        self._depth = 0

    def query(self) -> Query:
        column, maximise = None, False
        if not self._next_is("where"):
            column = self._column("a column, or 'where'")
            if not self._next_is("max", "min"):
                raise self._expected("'max' or 'min' behind the column that is to be so")
            maximise = self._take().text == "max"
        holds: Condition = _always
        if self._next_is("where"):
            self._take()
            holds = self._condition()
        if self._token.kind != "end":
            raise self._expected("'where'" if holds is _always else "'and', 'or' or the end")
        return Query(column, maximise, holds)

    def _condition(self) -> Condition:
        return self._joined("or", any, lambda: self._joined("and", all, self._factor))

    def _joined(
        self, word: str, together: Callable[..., bool], part: Callable[[], Condition]
    ) -> Condition:
        """Return parts with a word between them as one condition."""
        parts = [part()]
        while self._next_is(word):
            self._take()
            parts.append(part())
        if len(parts) == 1:
            return parts[0]
        return lambda values: together(holds(values) for holds in parts)

    def _factor(self) -> Condition:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"More than {_DEEPEST} conditions within each other", self._token)
        if self._next_is("not"):
            self._take()
            inner = self._factor()
            found: Condition = lambda values: not inner(values)  # noqa: E731
        elif self._next_is("("):
            self._take()
            found = self._condition()
            if not self._next_is(")"):
                raise self._expected("')', 'and' or 'or'")
            self._take()
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> Condition:
        left = self._operand()
        if self._token.text not in _COMPARISONS:
            raise self._expected(f"one of {', '.join(_COMPARISONS)}")
        compare = _COMPARISONS[self._take().text]
        right = self._operand()
        return lambda values: compare(left(values), right(values))

    def _operand(self) -> Operand:
        if self._token.kind != "number":
            name = self._column("a column or a number")
            return lambda values: values[name]
        token = self._take()
        number, behind = float(token.text), self._token
        if behind.kind == "word" and behind.start == token.start + len(token.text):
            raise self._error("Numbers have no unit: the column's name says it", behind)
        return lambda values: number

    def _column(self, wanted: str) -> str:
        token = self._token
        if token.kind != "word" or token.text in _WORDS:
            raise self._expected(wanted)
        if token.text not in self._columns:
            raise self._error(unknown_name("column", token.text, self._columns).rstrip("."), token)
        return self._take().text

    @property
    def _token(self) -> _Token:
        return self._tokens[self._at]

    def _take(self) -> _Token:
        self._at += 1
        return self._tokens[self._at - 1]

    def _next_is(self, *words: str) -> bool:
        return self._token.text in words

    def _pattern(self) -> re.Pattern[str]:
        """Return what tokens look like: a known column, however its target is called, or others."""
        known = sorted(self._columns, key=len, reverse=True)
        names = "|".join(map(re.escape, known)) or "(?!)"
        return re.compile(rf"(?P<column>(?:{names})(?![\w.]))|{_TOKEN}")

    def _split(self) -> list[_Token]:
        found, at, pattern = [], 0, self._pattern()
        while at < len(self._text):
            if self._text[at].isspace():
                at += 1
                continue
            match = pattern.match(self._text, at)
            if match is None or match.lastgroup is None:
                token = _Token(self._text[at], "", at)
                hint = "Write '==' for 'equal to'" if token.text == "=" else "This means nothing"
                raise self._error(hint, token)
            kind = "word" if match.lastgroup == "column" else match.lastgroup
            found.append(_Token(match[0], kind, at))
            at = match.end()
        return [*found, _Token("", "end", len(self._text))]

    def _expected(self, what: str) -> ExpressionError:
        token = self._token
        got = f"'{token.text}'" if token.text else "the end"
        return self._error(f"Expected {what}, got {got}", token)

    def _error(self, problem: str, token: _Token) -> ExpressionError:
        end = "" if problem.endswith("?") else "."
        error = ExpressionError(f"pick: {problem}{end} Columns: {', '.join(self._columns)}.")
        visible = "".join(c if c.isprintable() else " " for c in self._text)
        width = max(1, len(token.text))
        error.shown = f"  {visible}\n  {' ' * token.start}{'^' * width}"
        return error


def _always(values: Values) -> bool:
    return True


NAMES = ("knee", "most_accurate", "fastest", "smallest", "all")
Offers = Mapping[
    str, Values
]  #: verified values by column, by id; on several targets npu.latency_ms


def pick(front: Front, wanted: str) -> list[str]:
    """Return the ids of what is wanted: a name of ``NAMES``, or an expression.

    Raises:
        ConfigError: nothing on the front is so, or the text means nothing.
        RunError: the front is empty, or no member is left on it after verification.
    """
    if not front.members:  # of several targets: each may have a front
        raise RunError(
            "No network was verified for all targets: choose one with target=TARGET, or name a "
            "network by its id: pick=ID."
        )
    offers = offered(front)
    if not offers:
        raise RunError(
            "No member of the front fits the budget after verification; name one by its id: "
            "pick=ID."
        )
    if wanted == "all":
        return [*offers]
    if wanted in NAMES:
        return [_named(wanted, offers, front.objectives)]
    if re.fullmatch(r"[\w-]+", wanted):
        raise ConfigError(f"{unknown_name('pick', wanted, NAMES)} Or an id, or an expression.")
    columns = sorted(set.intersection(*map(set, offers.values())))
    query = parse(wanted, columns)
    fitting = {name: values for name, values in offers.items() if query.holds(values)}
    if not fitting:
        named = [n for n in columns if n in wanted]
        raise ConfigError(
            f"None of {len(offers)} members of the front fulfils pick='{wanted}'. On the front: "
            f"{_ranges([*offers.values()], named, quality_in(front.objectives))}."
        )
    if query.column is None:
        return [*fitting]
    name, sign = query.column, -1 if query.maximise else 1
    return [_least(fitting, front.objectives, lambda values: sign * values[name])]


def offered(front: Front) -> Offers:
    """Return those that stayed on a front, the worst answers first.

    The metric is that of the artefact itself; on several targets, that where it is worst.
    """
    offers = {
        member.candidate.id: {n: float(f.value) for n, f in sorted(member.all_figures.items())}
        for member in front.remaining
    }
    return dict(sorted(offers.items(), key=lambda o: (-_error(o[1], front.objectives), o[0])))


def knee(offers: Offers, objectives: Sequence[str]) -> str:
    """Return the id of the member farthest above the chord of a front.

    All objectives are scaled to 0 to 1 over the front. With one cost the chord leads from the
    cheapest to the most accurate member; with several it is the plane on which the scaled metric is
    the mean of the scaled costs.

    Source: Das, "On characterizing the 'knee' of the Pareto curve based on normal-boundary
    intersection", Structural Optimization 1999, https://doi.org/10.1007/BF01195985.
    """
    metric, costs = quality_in(objectives), costs_in(objectives)

    def scaled(offer: Values, name: str) -> float:
        values = [other[name] for other in offers.values()]
        low, high = min(values), max(values)
        share = (offer[name] - low) / (high - low) if high > low else 0.0
        return 1 - share if metric_of(name).maximise is not (name == metric) else share

    def height(offer: Values) -> float:
        return scaled(offer, metric) - sum(scaled(offer, c) for c in costs) / len(costs)

    return _least(offers, objectives, lambda offer: -height(offer))


def geometric_mean(offer: Values, name: str) -> float:
    """Return a cost; on several targets the geometric mean of them."""
    values = [value for n, value in offer.items() if n.rpartition(".")[2] == name]
    return math.exp(sum(math.log(max(v, 1e-12)) for v in values) / len(values))


def _named(name: str, offers: Offers, objectives: Sequence[str]) -> str:
    if name == "knee":
        return knee(offers, objectives)
    key: Mapping[str, Callable[[Values], float]] = {
        "most_accurate": lambda offer: _error(offer, objectives),
        "fastest": lambda offer: geometric_mean(offer, "latency_ms"),
        "smallest": lambda offer: geometric_mean(offer, "flash_kib"),
    }
    return _least(offers, objectives, key[name])


def _least(offers: Offers, objectives: Sequence[str], key: Callable[[Values], float]) -> str:
    """Return the id of what has least; among equals decide the metric, the costs, then the id."""
    names = costs_in(objectives)
    signs = [-1.0 if maximise else 1.0 for maximise in maximise_flags(names)]

    def rank(offer: tuple[str, Values]) -> tuple[float | str, ...]:
        costs = (sign * offer[1][name] for sign, name in zip(signs, names, strict=True))
        return (key(offer[1]), _error(offer[1], objectives), *costs, offer[0])

    return min(offers.items(), key=rank)[0]


def _error(offer: Values, objectives: Sequence[str]) -> float:
    """Return the metric of an offer, to be minimised."""
    metric = quality_in(objectives)
    return -offer[metric] if metric_of(metric).maximise else offer[metric]


def _ranges(offers: Sequence[Values], names: Iterable[str], metric: str) -> str:
    found = []
    for name in [*names] or [metric, *(n for n in metrics.cost_names() if n in offers[0])]:
        values = [offer[name] for offer in offers]
        found.append(f"{name} {min(values):.4g} to {max(values):.4g}")
    return ", ".join(found)
