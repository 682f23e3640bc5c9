"""Parameters as flags: the fields of a frozen dataclass, read from text, checked, and printed back.

    @dataclass(frozen=True)
    class Parameters:
        load: Seconds = param(0.4e-3, help="time of all loads together", minimum=0)
        tiles: int = param(8, help="how many tiles", minimum=1)
        order: Literal["rows", "columns"] = param("rows", help="which loop is outside")

A field is an int, float, str, bool, one of the quantities below, a `Literal`, a ``tuple[X, ...]`` ("1,2,4"), or any of
them ``| None``. What to do with the values is not decided here.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, Literal

from simcore.errors import ScenarioError, SimcoreError, nearest
from simcore.quantities import (
    format_bandwidth,
    format_bytes,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)

METADATA = "simcore"


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of a type are read and printed; used as ``Annotated[int, Kind(...)]`` it makes a type of its own."""

    what: str
    """What a right value is: "a time such as 0.4ms"."""
    metavar: str
    parse: Callable[[Any], Any]
    format: Callable[[Any], str] = str
    choices: tuple[Any, ...] = ()
    several: bool = False


def _seconds(value: Any) -> float:
    return float(parse_seconds(value))


def _plainly(format_quantity: Callable[[Any], str]) -> Callable[[Any], str]:
    """The printed quantity without its space, as it is typed in a shell."""
    return lambda value: format_quantity(value).replace(" ", "")


Seconds = Annotated[float, Kind("a time such as 0.4ms", "TIME", _seconds, _plainly(format_seconds))]
"""A time, in float seconds; `simcore.quantities.parse_ps` makes picoseconds of it."""
Bytes = Annotated[int, Kind("a size such as 64MiB", "BYTES", parse_bytes, _plainly(format_bytes))]
Bandwidth = Annotated[float, Kind("a bandwidth such as 45GB/s", "BYTES/S", parse_bandwidth, _plainly(format_bandwidth))]


@dataclass(frozen=True, slots=True)
class _Declared:
    """What `param` says of a field beside its default."""

    help: str
    choices: tuple[Any, ...]
    minimum: float | None
    maximum: float | None
    above: float | None


def param(
    default: Any = MISSING,
    *,
    help: str,
    choices: typing.Sequence[Any] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
) -> Any:
    """A field of a scenario's dataclass of parameters.

    Parameters
    ----------
    default : a plain value (seconds, bytes, ...); left out, the flag must be given.
    help : one line.
    choices : the only values allowed.
    minimum, maximum : inclusive bounds, for each element of a tuple; ``above`` is exclusive.
    """
    declared = _Declared(help, tuple(choices), minimum, maximum, above)
    return dataclasses.field(default=default, metadata={METADATA: declared, "help": help})


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    number = float(value)
    if not math.isfinite(number):
        raise ValueError
    return number


_TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() not in _TRUTH:
        raise ValueError
    return _TRUTH[str(value).lower()]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


_PLAIN: Mapping[Any, Kind] = {
    int: Kind("a whole number", "N", _integer),
    float: Kind("a number", "X", _number, lambda value: f"{value:g}"),
    str: Kind("a text", "TEXT", _text),
    bool: Kind("true or false", "BOOL", _truth, lambda value: "true" if value else "false"),
}


def _kind(hint: Any) -> Kind:
    if hint in _PLAIN:
        return _PLAIN[hint]
    if typing.get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, Kind):
                return extra
        return _kind(typing.get_args(hint)[0])
    if typing.get_origin(hint) is Literal:
        values = typing.get_args(hint)
        by_text = {str(value): value for value in values}

        def choose(value: Any) -> Any:
            if str(value) not in by_text:
                raise ValueError
            return by_text[str(value)]

        return Kind(f"one of {', '.join(by_text)}", "|".join(by_text), choose, choices=values)
    if typing.get_origin(hint) is tuple and typing.get_args(hint)[1:] == (Ellipsis,):
        one = _kind(typing.get_args(hint)[0])

        def parse(value: Any) -> tuple[Any, ...]:
            parts = value.split(",") if isinstance(value, str) else tuple(value)
            return tuple(one.parse(part.strip() if isinstance(part, str) else part) for part in parts)

        return Kind(
            f"a list, with commas, of {one.what.removeprefix('a ')}s",
            f"{one.metavar},...",
            parse,
            lambda values: ",".join(map(one.format, values)),
            several=True,
        )
    raise ScenarioError(
        f"a parameter cannot be of type {hint}; known: int, float, str, bool, quantities, Literal, tuple"
    )


@dataclass(frozen=True, slots=True)
class Flag:
    """One parameter: ``--name`` on the command line."""

    name: str
    kind: Kind
    default: Any
    declared: _Declared
    optional: bool

    @property
    def option(self) -> str:
        return f"--{self.name.replace('_', '-')}"

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def is_switch(self) -> bool:
        return self.kind is _PLAIN[bool]

    @property
    def choices(self) -> tuple[Any, ...]:
        return self.declared.choices or self.kind.choices

    def read(self, given: Any) -> Any:
        """The value of a text or plain value; `ScenarioError` with flag, value and what would be right."""
        if self.optional and (given is None or given == "none"):
            return None
        if self.kind.several and isinstance(given, str) and not given.strip():
            raise ScenarioError(f"{self.option}: an empty list; needs {self.kind.what}")
        try:
            value = self.kind.parse(given)
        except SimcoreError as error:
            raise ScenarioError(f"{self.option}: {error}") from None
        except (ValueError, TypeError, OverflowError):
            shown = repr(given) if given == "" else given
            hint = ""
            if self.choices and isinstance(given, str):
                hint = f" ({nearest(given, map(str, self.choices))})"
            raise ScenarioError(f"{self.option} {shown}: must be {self.kind.what}{hint}") from None
        for one in value if self.kind.several else (value,):
            self._check(one, given)
        return value

    def _check(self, value: Any, given: Any) -> None:
        declared, shown = self.declared, f"{self.option} {given}"
        if declared.choices and value not in declared.choices:
            hint = nearest(str(value), map(str, declared.choices))
            raise ScenarioError(f"{shown}: must be one of {', '.join(map(str, declared.choices))} ({hint})")
        if declared.minimum is not None and value < declared.minimum:
            raise ScenarioError(f"{shown}: must be at least {self._bound(declared.minimum)}")
        if declared.above is not None and value <= declared.above:
            raise ScenarioError(f"{shown}: must be more than {self._bound(declared.above)}")
        if declared.maximum is not None and value > declared.maximum:
            raise ScenarioError(f"{shown}: must be at most {self._bound(declared.maximum)}")

    def _bound(self, bound: float) -> str:
        return f"{bound:,}" if self.kind.format is str or not bound else self.kind.format(bound)

    def show(self, value: Any) -> str:
        """The value as it would be typed."""
        return "none" if value is None else self.kind.format(value)


def flags_of(parameters: type) -> tuple[Flag, ...]:
    """The flags of a dataclass of parameters, in the order of its fields.

    Raises `ScenarioError` if it is not a frozen dataclass, or has a field of a type that cannot be a flag.
    """
    made = getattr(parameters, "__dataclass_params__", None)
    if made is None or not made.frozen:
        raise ScenarioError(f"{parameters.__name__} must be a frozen dataclass: @dataclass(frozen=True)")
    try:
        hints = typing.get_type_hints(parameters, include_extras=True)
    except NameError as error:
        raise ScenarioError(f"{parameters.__name__}: a type of its fields is unknown: {error}") from None
    flags = []
    for field in dataclasses.fields(parameters):
        hint, optional = hints[field.name], False
        if typing.get_origin(hint) in (typing.Union, types.UnionType):
            members = [member for member in typing.get_args(hint) if member is not type(None)]
            optional = len(members) < len(typing.get_args(hint))
            hint = members[0] if len(members) == 1 else hint
        default = field.default
        if default is MISSING and field.default_factory is not MISSING:
            default = field.default_factory()
        declared = field.metadata.get(METADATA) or _Declared(field.metadata.get("help", ""), (), None, None, None)
        try:
            kind = _kind(hint)
            flag = Flag(field.name, kind, default, declared, optional)
            if isinstance(default, str):
                flag = dataclasses.replace(flag, default=flag.read(default))
        except ScenarioError as error:
            raise ScenarioError(f"{parameters.__name__}.{field.name}: {error}") from None
        flags.append(flag)
    return tuple(flags)


def read_all(parameters: type, flags: typing.Sequence[Flag], given: Mapping[str, Any]) -> Any:
    """The dataclass made of texts or plain values by name, defaults where none is given.

    Raises `ScenarioError` for an unknown name, a missing one, or a value that is no good.
    """
    known = {flag.name: flag for flag in flags}
    for name in given:
        if name not in known:
            raise ScenarioError(f"unknown parameter {name!r}: {nearest(name, known)}")
    values = {}
    for flag in flags:
        if flag.name in given:
            values[flag.name] = flag.read(given[flag.name])
        elif flag.required:
            raise ScenarioError(f"{flag.option} is missing: {flag.declared.help or flag.kind.what}")
        else:
            values[flag.name] = flag.default
    return parameters(**values)
