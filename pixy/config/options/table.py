"""The table of options: kinds of values, and the fields that options are made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

V = TypeVar("V")


EVERY_KIND = ("embedded", "kafka")


EMBEDDED_ONLY = ("embedded",)


KAFKA_ONLY = ("kafka",)


NO_KIND: tuple[str, ...] = ()


LONGEST_SECONDS = 292_000_000 * 365 * 24 * 3600.0
"""Kafka's long options, a topic's `retention.ms` among them, are milliseconds in 63 bits."""


LONGEST_KAFKA_SECONDS = 24 * 24 * 3600.0
"""Kafka's other options, and durations in requests to brokers, are milliseconds in 31 bits."""


LARGEST_COUNT = (1 << 31) - 1


LARGEST_BYTES = 1 << 50
"""More than any machine has: a number beyond these is a slip of the pen, and no limit at all."""


class ValueType(Enum):
    """Type of an option; the value describes it in error texts."""

    INTEGER = "a whole number"
    BOOLEAN = "true or false"
    TEXT = "a text"
    TEXTS = "a list of texts"
    SECONDS = "a duration such as 500ms, 5m or 1h30m"
    BYTES = "a number of bytes such as 1048576 or 64MiB"
    CHOICE = "one of the allowed words"


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of one option.

    Args:
        type: type of its value.
        doc: its comment in config.yaml.
        minimum: smallest allowed value.
        above: exclusive lower bound.
        maximum: largest allowed value.
        choices: the allowed words of a CHOICE.
        effect: kinds of cluster that it affects; empty: none in this release.
        secret: never printed, and may be read from a file named by the variable `<name>_FILE`.
        private_file: path of a file that other users of the machine must not read.
    """

    type: ValueType
    doc: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    effect: tuple[str, ...] = EVERY_KIND
    secret: bool = False
    private_file: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """Metadata of a section.

    Args:
        table: class of its options.
        doc: its comment in config.yaml.
        form: a single section, a map from names to sections, or a list of sections.
        effect: as in `Option`, for all its options.
    """

    table: "type[DataclassInstance]"
    doc: str
    form: Literal["one", "map", "list"] = "one"
    effect: tuple[str, ...] = EVERY_KIND


class Leaf(NamedTuple):
    """An option, its dotted path below the table, and the kinds of cluster that it affects."""

    path: str
    option: Option
    effect: tuple[str, ...]


def members(table: "type[DataclassInstance]") -> dict[str, Option | Section]:
    """Options and sections of a table by name, in table order."""
    return {f.name: f.metadata["pixy"] for f in fields(table) if "pixy" in f.metadata}


def leaves(table: "type[DataclassInstance]") -> Iterator[Leaf]:
    """All options below a table that have a path of their own: none inside maps and lists."""
    for name, member in members(table).items():
        if isinstance(member, Option):
            yield Leaf(name, member, member.effect)
        elif member.form == "one":
            for leaf in leaves(member.table):
                effect = tuple(kind for kind in leaf.effect if kind in member.effect)
                yield Leaf(f"{name}.{leaf.path}", leaf.option, effect)


def values_of(section: Any) -> dict[str, Any]:
    """Values of a section's options and subsections by name, in table order."""
    return {name: getattr(section, name) for name in members(type(section))}


def _option(default: V, option: Option) -> V:
    return field(default=default, metadata={"pixy": option})


def integer(
    default: int,
    doc: str,
    *,
    minimum: int = 0,
    maximum: int = LARGEST_COUNT,
    effect: tuple[str, ...] = EVERY_KIND,
) -> int:
    return _option(default, Option(ValueType.INTEGER, doc, minimum=minimum, maximum=maximum, effect=effect))


def size(default: int, doc: str, *, minimum: int = 1, maximum: int = LARGEST_BYTES) -> int:
    return _option(default, Option(ValueType.BYTES, doc, minimum=minimum, maximum=maximum))


def seconds(
    default: float,
    doc: str,
    *,
    above: float | None = None,
    maximum: float = LONGEST_SECONDS,
    effect: tuple[str, ...] = EVERY_KIND,
) -> float:
    minimum = 0 if above is None else None
    option = Option(ValueType.SECONDS, doc, minimum=minimum, above=above, maximum=maximum, effect=effect)
    return _option(default, option)


def boolean(default: bool, doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> bool:
    return _option(default, Option(ValueType.BOOLEAN, doc, effect=effect))


def text(default: str, doc: str, *, effect: tuple[str, ...] = EVERY_KIND, secret: bool = False) -> str:
    return _option(default, Option(ValueType.TEXT, doc, effect=effect, secret=secret))


def private_file(doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> str:
    return _option("", Option(ValueType.TEXT, doc, effect=effect, private_file=True))


def texts(default: tuple[str, ...], doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> tuple[str, ...]:
    return _option(default, Option(ValueType.TEXTS, doc, effect=effect))


def choice(default: str, choices: tuple[str, ...], doc: str, *, effect: tuple[str, ...] = EVERY_KIND) -> str:
    return _option(default, Option(ValueType.CHOICE, doc, choices=choices, effect=effect))


def section(
    table: "type[DataclassInstance]",
    factory: Callable[[], V],
    doc: str,
    *,
    form: Literal["one", "map", "list"] = "one",
    effect: tuple[str, ...] = EVERY_KIND,
) -> V:
    return field(default_factory=factory, metadata={"pixy": Section(table, doc, form=form, effect=effect)})


MIB = 1 << 20
