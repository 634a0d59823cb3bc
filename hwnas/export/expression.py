"""The small language of ``pick='accuracy max where latency_ms <= 0.8 and not flash_kib > 300'``.

::

    query      = [goal] ["where" condition]
    goal       = column ("max" | "min")
    condition  = term {"or" term}
    term       = factor {"and" factor}
    factor     = "not" factor | "(" condition ")" | operand comparison operand
    operand    = column | number

Read by recursive descent; nothing of a text is ever evaluated as Python.
"""

import operator
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import final

from hwnas.errors import ConfigError, unknown

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
            raise self._error(unknown("column", token.text, self._columns).rstrip("."), token)
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
