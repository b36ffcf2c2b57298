"""The part of PromQL that our rules and panels use: what it accepts is PromQL, and it says which series it reads.

After prometheus.io/docs/prometheus/latest/querying: operators with precedence and vector matching, aggregations,
functions, instant and range selectors. Types are checked where a mistake is easy: a rate wants a range, all else not.
"""

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![a-z0-9])
    |(?P<duration>(?:\d+(?:ms|[smhdwy]))+)
    |(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)
    |(?P<op>=~|!~|!=|==|<=|>=|[-+*/%^<>=(){}\[\],]))""",
    re.VERBOSE,
)
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", "<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"), ("^",))
_AGGREGATIONS = {"sum", "min", "max", "avg", "count", "group", "topk", "bottomk", "quantile", "count_values"}
_OVER_RANGES = {"rate", "increase", "irate", "max_over_time", "min_over_time", "avg_over_time", "changes", "delta"}
_FUNCTIONS = {"histogram_quantile", "absent", "time", "vector", "clamp_max", "clamp_min", "label_replace", "round"}
_KEYWORDS = {"by", "without", "on", "ignoring", "group_left", "group_right", "bool", "offset"}


class PromqlError(Exception):
    """An error that names where an expression stops being PromQL."""


@dataclass
class Query:
    """`selectors`: (metric, labels in its matchers). `labels`: in `by`, `on` and their like.

    `bare`: metrics in no aggregation, so that the result has the labels of the pod that exports them; those behind
    `unless` and `and` do not count. `summed`: present values that are summed as they are: while a pod is replaced,
    Prometheus has two of each.
    """

    selectors: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    bare: list[str] = field(default_factory=list)
    summed: list[str] = field(default_factory=list)


def parse(text: str) -> Query:
    """Raises PromqlError."""
    parser = _Parser(_tokens(text))
    parser.binary(0)
    if parser.peek():
        raise PromqlError(f"{parser.peek()!r} after the end of the expression")
    return parser.query


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens, position = [], 0
    while text[position:].strip():
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            raise PromqlError(f"no token at {text[position:].strip()[:20]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    return tokens


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self._at = 0
        self._within: list[str] = []
        """The aggregations, and `unless` or `and`, that what comes next is an argument of; the innermost last."""
        self.query = Query()

    def peek(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def binary(self, level: int) -> bool:
        """True: a range vector."""
        if level == len(_LEVELS):
            return self._unary()
        ranged = self.binary(level + 1)
        while (operator := self.peek()) in _LEVELS[level]:
            self._next()
            self._take("bool")
            if self.peek() in ("on", "ignoring"):
                self._next()
                self._labels()
                if self.peek() in ("group_left", "group_right"):
                    self._next()
                    if self.peek() == "(":
                        self._labels()
            self._within += [operator] if operator in ("unless", "and") else []
            if ranged or self.binary(level + 1):
                raise PromqlError("an operator on a range vector")
            self._within = self._within[: -1 if operator in ("unless", "and") else None]
        return ranged

    def _unary(self) -> bool:
        if self.peek() in ("-", "+"):
            self._next()
        kind, token = self._next()
        if kind in ("number", "string"):
            return False
        if token == "(":
            ranged = self.binary(0)
            self._expect(")")
            return ranged
        if token == "{":
            raise PromqlError("a selector without a metric's name")
        if kind != "name" or token in _KEYWORDS:
            raise PromqlError(f"{token!r} where a value belongs")
        if token in _AGGREGATIONS:
            return self._aggregation(token)
        return self._call(token) if self.peek() == "(" else self._selector(token)

    def _aggregation(self, function: str) -> bool:
        grouped = self._grouping()
        self._within.append(function)
        self._arguments(ranges=False)
        self._within.pop()
        if not grouped:
            self._grouping()
        return False

    def _grouping(self) -> bool:
        if self.peek() not in ("by", "without"):
            return False
        self._next()
        self._labels()
        return True

    def _call(self, function: str) -> bool:
        if function not in _FUNCTIONS | _OVER_RANGES:
            raise PromqlError(f"{function!r} is no function that we know")
        self._arguments(ranges=function in _OVER_RANGES)
        return False

    def _arguments(self, *, ranges: bool) -> None:
        self._expect("(")
        while self.peek() != ")":
            if self.binary(0) != ranges:
                raise PromqlError("a range vector is missing" if ranges else "a range vector where none belongs")
            if self.peek() != ")":
                self._expect(",")
        self._expect(")")

    def _selector(self, metric: str) -> bool:
        labels = []
        if self._take("{"):
            while self.peek() != "}":
                kind, label = self._next()
                operator, (value, _) = self._next()[1], self._next()
                if kind != "name" or operator not in ("=", "!=", "=~", "!~") or value != "string":
                    raise PromqlError(f'a matcher of {metric} is not label="value"')
                labels.append(label)
                if self.peek() != "}":
                    self._expect(",")
            self._expect("}")
        self.query.selectors.append((metric, tuple(labels)))
        self.query.bare += [] if self._within else [metric]
        if not self._take("["):
            self.query.summed += [metric] if self._within[-1:] == ["sum"] else []
            return False
        if self._next()[0] != "duration":
            raise PromqlError(f"the range of {metric} is no duration")
        self._expect("]")
        return True

    def _labels(self) -> None:
        self._expect("(")
        while self.peek() != ")":
            kind, label = self._next()
            if kind != "name":
                raise PromqlError(f"{label!r} is no label")
            self.query.labels.add(label)
            if self.peek() != ")":
                self._expect(",")
        self._expect(")")

    def _take(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._at += 1
        return True

    def _expect(self, token: str) -> None:
        if not self._take(token):
            raise PromqlError(f"{self.peek() or 'the end'!r} where {token!r} belongs")

    def _next(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise PromqlError("the expression ends too early")
        self._at += 1
        return self._tokens[self._at - 1]
