"""Parameters that an instance's owner may set: an allow-list per datastore, and one way to read a value.

A value becomes the text that goes into the server's file, and that text becomes itself again. What cannot be
read, or lies outside of its bounds, is refused with a reason that names the parameter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from fractions import Fraction
from typing import Any, Final, assert_never

import msgspec


class Kind(StrEnum):
    """The API's words for types. A string has choices, or is a list of them."""

    INTEGER = "integer"
    FLOAT = "float"
    BOOLEAN = "boolean"
    STRING = "string"


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One that may be set.

    ``least``, ``most``: bounds in ``unit``. ``also``: values outside of them that mean something (-1: as the
    datastore sees fit). ``restart``: a running server takes it with its next start only. ``several``: a list
    of choices, with commas.
    """

    name: str
    kind: Kind
    least: float = 0
    most: float = 2**31 - 1
    also: tuple[float, ...] = ()
    choices: tuple[str, ...] = ()
    several: bool = False
    unit: str = ""
    restart: bool = False


class BadValue(Exception):
    """A parameter that cannot be set so. ``reason`` does not repeat its ``name``."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name
        self.reason = reason


class Allowed(msgspec.Struct, frozen=True):
    """The parameters of one datastore. ``suffix``: how a number with this unit is written in its file.

    ``defaults``: what is set where the owner says nothing, by memory and volume in MiB (None: not known).
    ``unfit``: why these texts cannot work together, or with so much memory; None if
    nothing speaks against them.
    """

    parameters: dict[str, Parameter]
    suffix: Callable[[Fraction, str], str]
    defaults: Callable[[int, int | None], dict[str, str]]
    unfit: Callable[[Mapping[str, str], int], BadValue | None]

    def texts(self, values: Mapping[str, Any]) -> dict[str, str]:
        """All values as they go into the server's file. Raises :class:`BadValue`."""
        return {name: self.text_of(name, value) for name, value in values.items()}

    def text_of(self, name: str, value: Any) -> str:
        """One value as it goes into the server's file. Raises :class:`BadValue`."""
        found = self.parameters.get(name)
        if found is None:
            raise BadValue(name[:100], "it is no parameter that can be set here")
        match found.kind:
            case Kind.BOOLEAN:
                return _truth(found, value)
            case Kind.STRING:
                return _word(found, value)
            case Kind.INTEGER | Kind.FLOAT:
                return self.suffix(_number(found, value), found.unit)
            case _ as never:
                assert_never(never)

    def readable(self, values: Mapping[str, Any]) -> dict[str, str]:
        """As :meth:`texts`, without what cannot be set (any more)."""
        found: dict[str, str] = {}
        for name, value in values.items():
            try:
                found[name] = self.text_of(name, value)
            except BadValue:
                continue
        return found


_MEMORY: Final = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_TIME: Final = {"US": 1, "MS": 1000, "S": 10**6, "MIN": 60 * 10**6, "H": 3600 * 10**6, "D": 86400 * 10**6}
_NUMBER: Final = re.compile(r"([+-]?[0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]{0,3})", re.ASCII)


def size_of(unit: str) -> tuple[str, int] | None:
    """Bytes or microseconds in one of a unit like ``8kB`` or ``min``; None for what has none."""
    digits = re.match(r"[0-9]*", unit)
    assert digits is not None
    many, word = int(digits[0] or 1), unit[digits.end() :].upper()
    if word in _MEMORY:
        return "memory", many * _MEMORY[word]
    if word in _TIME:
        return "time", many * _TIME[word]
    return None


def _number(of: Parameter, value: Any) -> Fraction:
    found = _read_number(of, value)
    if found in of.also:
        return found
    if not of.least <= found <= of.most:
        also = "".join(f", or {plain(one)}" for one in of.also)
        unit = f" {of.unit}" if of.unit else ""
        raise BadValue(
            of.name, f"{_shown(value)} is not from {plain(of.least)} to {plain(of.most)}{unit}{also}"
        )
    return found


def _read_number(of: Parameter, value: Any) -> Fraction:
    kind = "a whole number" if of.kind is Kind.INTEGER else "a number"
    example = {"memory": ', or one with its unit like "64MB"', "time": ', or one with its unit like "5min"'}
    base = size_of(of.unit)
    wanted = f"{kind}{f' of {of.unit}' if of.unit else ''}{example[base[0]] if base else ''}"
    match = None if isinstance(value, bool | None) else _NUMBER.fullmatch(_digits(value))
    if match is None:
        raise BadValue(of.name, f"{_shown(value)} is not {wanted}")
    found, word = Fraction(match[1]), match[2]
    if word:
        given = size_of(word if len(word) > 1 or word.upper() not in "KMGT" else f"{word}B")
        if base is None or given is None or given[0] != base[0]:
            raise BadValue(of.name, f"{_shown(value)} is not {wanted}")
        found = found * given[1] / base[1]
    if of.kind is Kind.INTEGER and found.denominator != 1:
        raise BadValue(of.name, f"{_shown(value)} is not {wanted}")
    return found


def _digits(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.9f}" if abs(value) < 1e15 else "too much"
    return str(value).strip() if isinstance(value, int | str) else ""


def _truth(of: Parameter, value: Any) -> str:
    word = str(value).lower() if isinstance(value, bool | int | str) else ""
    if word in ("true", "on", "1", "yes"):
        return "on"
    if word in ("false", "off", "0", "no"):
        return "off"
    raise BadValue(of.name, f"{_shown(value)} is neither true nor false")


def _word(of: Parameter, value: Any) -> str:
    choices = {choice.lower(): choice for choice in of.choices}
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
    known = isinstance(text, str | int)
    words = [word.strip() for word in str(text).split(",")] if of.several else [str(text)]
    if known and of.several and words == [""]:
        return ""
    if not known or len(set(words)) < len(words) or not all(word.lower() in choices for word in words):
        among = "a list, with commas, of" if of.several else "one of"
        raise BadValue(of.name, f"{_shown(value)} is not {among} {', '.join(of.choices)}")
    return ",".join(choices[word.lower()] for word in words)


def plain(number: float | Fraction) -> str:
    """A number without the digits that it does not need."""
    return str(int(number)) if number == int(number) else f"{float(number):.9f}".rstrip("0")


def _shown(value: Any) -> str:
    return repr(value)[:60]


def listed(*parameters: Parameter) -> dict[str, Parameter]:
    """By name."""
    found = {parameter.name: parameter for parameter in parameters}
    assert len(found) == len(parameters)
    return found


def whole(
    name: str, least: float, most: float, unit: str = "", *also: float, restart: bool = False
) -> Parameter:
    """A whole number."""
    return Parameter(
        name=name, kind=Kind.INTEGER, least=least, most=most, unit=unit, also=also, restart=restart
    )


def real(name: str, least: float, most: float, unit: str = "", *also: float) -> Parameter:
    """A number with a fraction."""
    return Parameter(name=name, kind=Kind.FLOAT, least=least, most=most, unit=unit, also=also)


def switch(name: str, *, restart: bool = False) -> Parameter:
    """On or off."""
    return Parameter(name=name, kind=Kind.BOOLEAN, restart=restart)


def choice(name: str, *choices: str, restart: bool = False, several: bool = False) -> Parameter:
    """One of these words, or a list of them."""
    return Parameter(name=name, kind=Kind.STRING, choices=choices, restart=restart, several=several)
