"""A parser of Spark's DDL for columns and types, without Spark.

An example is ``ticker string NOT NULL, bids array<struct<price: decimal(10, 2)>>``.

The grammar is that of ``colTypeList``, ``complexColTypeList`` and ``dataType`` in Spark 4's
``SqlBaseParser.g4``. Like PySpark's ``StructType.fromDDL`` it takes a list of columns with or without colons,
and the ``struct<...>`` of ``df.schema.simpleString()``. It refuses what Spark refuses, with the place of the
mistake: programs without a JVM load declarations, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, NoReturn

MAX_DECIMAL_PRECISION = 38
MAX_TIME_PRECISION = 6

#: Types of one word, each with the name that Spark shows it by.
_WORDS = {
    "boolean": "boolean",
    "tinyint": "tinyint",
    "byte": "tinyint",
    "smallint": "smallint",
    "short": "smallint",
    "int": "int",
    "integer": "int",
    "bigint": "bigint",
    "long": "bigint",
    "float": "float",
    "real": "float",
    "double": "double",
    "date": "date",
    "timestamp_ltz": "timestamp",
    "timestamp_ntz": "timestamp_ntz",
    "binary": "binary",
    "void": "void",
    "variant": "variant",
}
_DECIMALS = frozenset({"decimal", "dec", "numeric"})
_LENGTHS = {"char": "char", "character": "char", "varchar": "varchar"}
_PLACES = frozenset({"geometry", "geography"})
_YEAR_MONTH = ("year", "month")
_DAY_TIME = ("day", "hour", "minute", "second")
_COLLATIONS = re.compile(
    r"""
      (?:system\.builtin\.)?
      (?:utf8_binary|utf8_lcase|unicode|[a-z]{2,3}(?:_[a-z]{3,4})?)
      (?:_(?:ci|cs|ai|as|rtrim))*
    """,
    re.VERBOSE | re.IGNORECASE,
)

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Words that Spark reads as numbers.
_NUMBER = re.compile(r"[0-9]+(e[0-9]+)?(l|s|y|f|d|bd)?", re.IGNORECASE)
_SPACE = "[ \t\n\x0b\f\r\u00a0\u1680\u2000-\u200a\u2028\u202f\u205f\u3000]+"
_TOKENS = re.compile(
    rf"""
      (?P<space>   {_SPACE} | --[^\r\n]* | /\*(?!\+).*?\*/ )
    | (?P<string>  r'[^']*' | r"[^"]*" | '(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" )
    | (?P<quoted>  `(?:[^`]|``)*` )
    | (?P<word>    [A-Za-z0-9_]+ )
    | (?P<sign>    [<>(),:.] )
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)


class Token(NamedTuple):
    """A piece of the text; ``kind`` is string, quoted, word, sign or end."""

    kind: str
    text: str
    at: int


@dataclass(frozen=True)
class Type:
    """A type: its name as Spark shows it, its numbers in brackets, and the types and columns inside it.

    ``unit`` is the ``day to second`` of an interval, or the collation of a string.
    """

    name: str
    numbers: tuple[int, ...] = ()
    elements: tuple[Type, ...] = ()
    columns: tuple[Column, ...] = ()
    unit: str = ""

    def __str__(self) -> str:
        if self.name == "struct":
            return f"struct<{columns_text(self.columns, ': ')}>"
        if self.elements:
            return f"{self.name}<{', '.join(map(str, self.elements))}>"
        if self.name == "interval":
            return f"interval {self.unit}".strip()
        text = self.name
        if self.numbers:
            text += f"({', '.join(map(str, self.numbers))})"
        elif self.name in _PLACES:
            text += "(ANY)"
        if self.unit:
            text += f" collate {self.unit}"
        return text

    def every(self) -> Iterator[Type]:
        """This type and all that are inside it."""
        yield self
        for element in self.elements:
            yield from element.every()
        for column in self.columns:
            yield from column.type.every()

    def nullable(self) -> Type:
        """The type, with ``NOT NULL`` nowhere in it."""
        elements = [element.nullable() for element in self.elements]
        columns = [column.nullable() for column in self.columns]
        return replace(self, elements=tuple(elements), columns=tuple(columns))


@dataclass(frozen=True)
class Column:
    """A column of a table, or a field of a struct. ``required`` is NOT NULL."""

    name: str
    type: Type
    required: bool = False

    def nullable(self) -> Column:
        return replace(self, type=self.type.nullable(), required=False)


def parse(text: str) -> tuple[Column, ...]:
    """The columns of a DDL schema, in order.

    :raises ValueError: says what is wrong with it, and where
    """
    return _Parser(text).schema()


def columns_text(columns: tuple[Column, ...], between: str = " ") -> str:
    """Columns as DDL that Spark reads as they are; comments are left out."""
    texts = []
    for column in columns:
        text = f"{quoted(column.name)}{between}{column.type}"
        if column.required:
            text += " NOT NULL"
        texts.append(text)
    return ", ".join(texts)


def quoted(name: str) -> str:
    """A column's name as SQL and Spark's functions take it: in back-ticks, unless it is a plain word."""
    if _PLAIN.fullmatch(name):
        return name
    return "`" + name.replace("`", "``") + "`"


class _Parser:
    """Reads one schema from left to right, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(_tokens(text))
        self._next = 0

    def schema(self) -> tuple[Column, ...]:
        one_struct = self._peek().text.lower() == "struct" and self._peek(1).text == "<"
        if one_struct:
            columns = self._type().columns
        else:
            columns = self._columns()
        if self._peek().kind != "end":
            self._refuse("a comma and the next column, or the end,")
        return columns

    def _columns(self) -> tuple[Column, ...]:
        columns = [self._column()]
        while self._take(","):
            columns.append(self._column())
        return tuple(columns)

    def _column(self) -> Column:
        name = self._name()
        self._take(":")
        kind = self._type()
        required = False
        if self._take("not"):
            self._expect("null")
            required = True
        if self._take("comment"):
            self._comment()
        return Column(name, kind, required)

    def _name(self) -> str:
        token = self._peek()
        if token.kind == "quoted":
            self._next += 1
            return token.text[1:-1].replace("``", "`")
        if token.kind != "word" or _NUMBER.fullmatch(token.text):
            self._refuse("a column's name (of letters, digits and _, or in back-ticks)")
        self._next += 1
        return token.text

    def _comment(self) -> None:
        if self._peek().kind != "string":
            self._refuse("the comment, in quotes,")
        while self._peek().kind == "string":  # neighbours are one text
            self._next += 1

    def _type(self) -> Type:
        token = self._peek()
        if token.kind != "word":
            self._refuse("a type")
        self._next += 1
        name = token.text.lower()
        readers: dict[str, Callable[[], Type]] = {
            "string": lambda: Type("string", unit=self._collation()),
            "timestamp": self._timestamp,
            "time": self._time,
            "interval": self._interval,
            "array": self._array,
            "map": self._map,
            "struct": self._struct,
        }
        if name in _WORDS:
            return Type(_WORDS[name])
        if name in readers:
            return readers[name]()
        if name in _DECIMALS:
            return self._decimal(token)
        if name in _LENGTHS:
            self._expect("(")
            numbers = (self._number(),)
            self._expect(")")
            return Type(_LENGTHS[name], numbers, unit=self._collation())
        if name in _PLACES:
            self._expect("(")
            found = Type(name)
            if not self._take("any"):
                found = Type(name, (self._number(),))
            self._expect(")")
            return found
        raise ValueError(f"{token.text!r} {self._place(token)} is not a type of Spark's")

    def _array(self) -> Type:
        self._expect("<")
        element = self._type()
        self._expect(">")
        return Type("array", elements=(element,))

    def _map(self) -> Type:
        self._expect("<")
        key = self._type()
        self._expect(",")
        value = self._type()
        self._expect(">")
        return Type("map", elements=(key, value))

    def _struct(self) -> Type:
        self._expect("<")
        if self._take(">"):
            return Type("struct")
        columns = self._columns()
        self._expect(">")
        return Type("struct", columns=columns)

    def _decimal(self, token: Token) -> Type:
        precision = 10
        scale = 0
        if self._take("("):
            precision = self._number()
            if self._take(","):
                scale = self._number()
            self._expect(")")
        if precision > MAX_DECIMAL_PRECISION or scale > precision:
            problem = f"has a precision above {MAX_DECIMAL_PRECISION}, or a scale above its precision"
            raise ValueError(f"{token.text}({precision}, {scale}) {self._place(token)} {problem}")
        return Type("decimal", (precision, scale))

    def _timestamp(self) -> Type:
        if self._without_time_zone():
            return Type("timestamp_ntz")
        return Type("timestamp")

    def _time(self) -> Type:
        precision = MAX_TIME_PRECISION
        if self._take("("):
            token = self._peek()
            precision = self._number()
            if precision > MAX_TIME_PRECISION:
                problem = f"the time's precision {precision} {self._place(token)}"
                raise ValueError(f"{problem} is above {MAX_TIME_PRECISION}")
            self._expect(")")
        self._without_time_zone()
        return Type("time", (precision,))

    def _without_time_zone(self) -> bool:
        if not self._take("without"):
            return False
        self._expect("time")
        self._expect("zone")
        return True

    def _interval(self) -> Type:
        first = self._peek().text.lower()
        units: tuple[str, ...] = ()
        for known in (_YEAR_MONTH, _DAY_TIME):
            if first in known:
                units = known
        if not units or self._peek().kind != "word":
            return Type("interval")
        self._next += 1
        if not self._take("to"):
            return Type("interval", unit=first)
        smaller = units[units.index(first) + 1 :]
        last = self._peek().text.lower()
        if last not in smaller:
            self._refuse(f"a unit that is smaller than {first}")
        self._next += 1
        return Type("interval", unit=f"{first} to {last}")

    def _collation(self) -> str:
        if not self._take("collate"):
            return ""
        first = self._peek()
        name = self._name()
        while self._take("."):
            name += f".{self._name()}"
        if not _COLLATIONS.fullmatch(name):
            raise ValueError(f"{name!r} {self._place(first)} is not a collation of Spark's")
        return name

    def _number(self) -> int:
        token = self._peek()
        if token.kind != "word" or not re.fullmatch("[0-9]+", token.text):
            self._refuse("a whole number")
        self._next += 1
        return int(token.text)

    def _peek(self, ahead: int = 0) -> Token:
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def _take(self, text: str) -> bool:
        token = self._peek()
        found = token.kind in {"word", "sign"} and token.text.lower() == text
        if found:
            self._next += 1
        return found

    def _expect(self, text: str) -> None:
        if not self._take(text):
            expected = f"'{text}'"
            if text.isalpha():
                expected = text.upper()
            self._refuse(expected)

    def _refuse(self, expected: str) -> NoReturn:
        token = self._peek()
        if token.kind == "end":
            raise ValueError(f"it ends where {expected} should follow")
        raise ValueError(f"{token.text!r} {self._place(token)} stands where {expected} should")

    def _place(self, token: Token) -> str:
        return f"at character {token.at + 1}"


def _tokens(text: str) -> Iterator[Token]:
    at = 0
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            problem = f"{text[at]!r} at character {at + 1} belongs to no name or type"
            raise ValueError(f"{problem}: put unusual names into back-ticks")
        if match.lastgroup != "space":
            yield Token(match.lastgroup or "", match[0], at)
        at = match.end()
    yield Token("end", "", at)
