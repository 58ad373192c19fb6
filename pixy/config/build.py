"""Builds the configuration objects from a parsed tree, in one walk that collects all problems.

Decides only whether a key is known and whether its value fits. Rules between options are in
`checks`. A key without a value counts as absent.
"""

import difflib
from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from pixy.config.options import Config, Option, Section, ValueType, members
from pixy.config.tree import Branch, Items, Node, Place, Problem, Scalar
from pixy.config.values import check_characters, parse_value

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_PROBLEMS_MAX = 100
"""The walk ends there: a file with more is not one of this daemon."""
_HOMES_MAX = 3
"""A name of more sections, such as `name`, is no hint to any."""

T = TypeVar("T", bound="DataclassInstance")


def nearest(name: str, known: Iterable[str]) -> str:
    """Hint for an unknown name: the nearest known name, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"allowed: {', '.join(names)}"


def _home(name: str) -> str:
    """Hint for an option or section of another place; empty if there is none of that name."""
    homes = list(_sections_with(name, Config, ""))
    if not homes or len(homes) > _HOMES_MAX:
        return ""
    return f"it belongs under {' or '.join(homes)}" if homes[0] else "it belongs at the top level"


def _sections_with(name: str, table: "type[DataclassInstance]", path: str) -> Iterator[str]:
    """Paths of the sections that have an option or a section of this name."""
    known = members(table)
    if name in known:
        yield path
    for child, member in known.items():
        if isinstance(member, Section):
            below = f"{path}.{child}" if path else child
            yield from _sections_with(
                name, member.table, f"{below}.<name>" if member.form == "map" else below
            )


class Builder:
    """One walk along the table; fills `problems` and `places`."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.places: dict[str, Place] = {}
        """Place where each option and section was set, by dotted path. Absent ones have defaults.
        """

    def build(self, table: type[T], branch: Branch, path: str = "") -> T:
        """The section that a branch describes. Invalid options are added to `problems` and keep
        defaults.
        """
        known = members(table)
        values: dict[str, Any] = {}
        for name, (place, node) in branch.entries.items():
            if len(self.problems) >= _PROBLEMS_MAX:
                break
            where = f"{path}.{name}" if path else name
            member = known.get(name)
            if member is None:
                self._report(place, f"{where} is not an option; {_home(name) or nearest(name, known)}")
                continue
            if isinstance(node, Scalar) and node.type == "null":
                continue
            self.places[where] = place
            value = self._member(member, node, where, place)
            if value is not None:
                values[name] = value
        return table(**values)

    def _member(self, member: Option | Section, node: Node, path: str, place: Place) -> Any:
        if isinstance(member, Option):
            return self._option(member, node, path, place)
        if member.form == "list":
            return self._list(member, node, path, place)
        if not isinstance(node, Branch):
            self._report(place, f"{path} is a section: indent its options below it")
            return None
        if member.form == "map":
            return self._map(member, node, path)
        return self.build(member.table, node, path)

    def _option(self, option: Option, node: Node, path: str, place: Place) -> Any:
        try:
            if isinstance(node, Scalar):
                return parse_value(option, node)
            if isinstance(node, Items) and option.type is ValueType.TEXTS:
                texts = [item.text for item in node.items if isinstance(item, Scalar)]
                if len(texts) == len(node.items):
                    for text in texts:
                        check_characters(text)
                    return tuple(texts)
        except ValueError as error:
            self._report(place, f"{path} {error}")
            return None
        written = "a list" if isinstance(node, Items) else "a section"
        self._report(place, f"{path} is {written}; expected {option.type.value}")
        return None

    def _list(self, section: Section, node: Node, path: str, place: Place) -> Any:
        if not isinstance(node, Items):
            self._report(place, f"{path} must be a list")
            return None
        built = []
        for position, item in enumerate(node.items):
            where = f"{path}[{position}]"
            if isinstance(item, Branch):
                built.append(self.build(section.table, item, where))
            else:
                self._report(item.place, f"{where} must have options: {', '.join(members(section.table))}")
        return tuple(built) or None

    def _map(self, section: Section, node: Branch, path: str) -> Any:
        built = {}
        for name, (place, item) in node.entries.items():
            where = f"{path}.{name}"
            self.places[where] = place
            if isinstance(item, Branch):
                built[name] = self.build(section.table, item, where)
            elif isinstance(item, Scalar) and item.type == "null":
                built[name] = section.table()
            else:
                self._report(place, f"{where} is a section: indent its options below it")
        return MappingProxyType(built)

    def _report(self, place: Place, message: str) -> None:
        self.problems.append(Problem(place, message))
