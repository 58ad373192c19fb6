"""Parsed but uninterpreted values with their places: scalars, lists and branches.

File, environment and flags become one such tree, each overlaid on the one before. One walk along
the table of options then interprets it, and every problem names its place.

A document may be hostile: depth and number of values are bounded, with all aliases followed, before
anything is built of them. Problems name keys and places and never show a value of the document,
which may be a secret.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import yaml

from pixy.escaping import escape

_DEPTH_MAX = 32
_VALUES_MAX = 50_000
"""Values of a document, and values that are read when its aliases are followed."""
_QUOTED = re.compile(r"'([^']*)'|\"([^\"]*)\"")
_SYNTAX = re.compile(r".?|\\.*|<[a-z ]+>", re.DOTALL)
"""Quotations of pyyaml that are shown: one character, its escape, a kind of token."""
_PROBLEM_CHARACTERS_MAX = 1000

ScalarType = Literal["text", "number", "boolean", "null"]

_TAG = "tag:yaml.org,2002:"
_TYPES: dict[str, ScalarType] = {
    f"{_TAG}bool": "boolean",
    f"{_TAG}null": "null",
    f"{_TAG}int": "number",
    f"{_TAG}float": "number",
}


class Place(NamedTuple):
    """Source of a value: a file and line, or a variable or flag with line 0."""

    source: str
    line: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}" if self.line else self.source


class Problem(NamedTuple):
    """A problem and its place."""

    place: Place
    message: str

    def __str__(self) -> str:
        """One line of bounded length, whatever a file has in its keys and values."""
        text = escape(f"{self.place}: {self.message}")
        return text if len(text) <= _PROBLEM_CHARACTERS_MAX else f"{text[:_PROBLEM_CHARACTERS_MAX]}..."


@dataclass(frozen=True, slots=True)
class Scalar:
    """A single value, as written."""

    text: str
    type: ScalarType
    place: Place


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    items: "tuple[Node, ...]"
    place: Place


@dataclass(slots=True)
class Branch:
    """A mapping. The only mutable node: overlays change it."""

    place: Place
    entries: "dict[str, BranchEntry]" = field(default_factory=dict)


class BranchEntry(NamedTuple):
    """One key of a branch: its place and its value."""

    place: Place
    node: "Node"


Node = Scalar | Items | Branch


def plain_scalar(text: str, place: Place) -> Scalar:
    """A value from outside a file: typed as an unquoted YAML scalar, but never null."""
    resolver = yaml.SafeLoader("")
    tag = resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]  # untyped in types-PyYAML
    kind = _TYPES.get(tag, "text")
    return Scalar(text, "text" if kind == "null" else kind, place)


def lay_over(branch: Branch, path: tuple[str, ...], node: Node) -> None:
    """Sets the node at a path below a branch, and creates missing branches on the way.

    A node on the way that is not a branch stays: it is reported as a problem of its own.
    """
    for name in path[:-1]:
        entry = branch.entries.get(name)
        if entry is None or (isinstance(entry.node, Scalar) and entry.node.type == "null"):
            entry = BranchEntry(node.place, Branch(node.place))
            branch.entries[name] = entry
        if not isinstance(entry.node, Branch):
            return
        branch = entry.node
    branch.entries[path[-1]] = BranchEntry(node.place, node)


def from_yaml(text: str | bytes, source: str, *, numbered: bool = True) -> tuple[Node | None, list[Problem]]:
    """Reads one YAML document.

    Args:
        text: the document.
        source: its name in problems.
        numbered: True to record line numbers in places.

    Returns:
        its tree, None if it is empty or unreadable; and the problems found.
    """
    reader = _YamlReader(source, numbered)
    try:
        node = yaml.compose(text, Loader=_BoundedLoader)
        return (None if node is None else reader.read(node)), reader.problems
    except _TooLarge as error:
        reader.report(error.problem_mark, str(error.problem))
    except yaml.MarkedYAMLError as error:
        reader.report(error.problem_mark, f"not valid YAML: {_without_values(error)}")
    except yaml.YAMLError as error:
        reader.report(None, f"not valid YAML: {' '.join(str(error).split())}")
    return None, reader.problems


def _without_values(error: yaml.MarkedYAMLError) -> str:
    """The problem, without the words of the document that the text quotes."""
    text = str(error.problem or error.context)

    def shown(found: re.Match[str]) -> str:
        return found[0] if _SYNTAX.fullmatch(found[1] or found[2] or "") else "'...'"

    return _QUOTED.sub(shown, text)


class _TooLarge(yaml.MarkedYAMLError):
    """The document exceeds a limit."""

    def __init__(self, problem: str, mark: "yaml.Mark | None") -> None:
        super().__init__(problem=problem, problem_mark=mark)


class _BoundedLoader(yaml.SafeLoader):
    """Composes nodes while they are neither too deep nor too many."""

    def __init__(self, stream: str | bytes) -> None:
        super().__init__(stream)
        self._depth = 0
        self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        self._depth += 1
        self._values += 1
        if self._depth > _DEPTH_MAX:
            raise _TooLarge(f"nested more than {_DEPTH_MAX} levels deep", self._mark())
        if self._values > _VALUES_MAX:
            raise _TooLarge(f"more than {_VALUES_MAX} values", self._mark())
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[arg-type]  # None, above the root
        self._depth -= 1
        return node

    def _mark(self) -> "yaml.Mark":
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # untyped in types-PyYAML
        return mark


class _YamlReader:
    """Converts pyyaml's nodes."""

    def __init__(self, source: str, numbered: bool) -> None:
        self.problems: list[Problem] = []
        self._source = source
        self._numbered = numbered
        self._open: set[int] = set()
        self._values = 0

    def report(self, mark: "yaml.Mark | None", message: str) -> None:
        self.problems.append(Problem(self._place(mark), message))

    def read(self, node: yaml.Node) -> Node:
        place = self._place(node.start_mark)
        self._values += 1
        if self._values > _VALUES_MAX:
            raise _TooLarge(f"more than {_VALUES_MAX} values when its aliases are followed", node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return Scalar(node.value, _TYPES.get(node.tag, "text"), place)
        if id(node) in self._open:
            self.report(node.start_mark, "an alias that contains itself")
            return Scalar("", "null", place)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                return Items(tuple(self.read(item) for item in node.value), place)
            assert isinstance(node, yaml.MappingNode)
            return self._read_mapping(node, place)
        finally:
            self._open.discard(id(node))

    def _read_mapping(self, node: yaml.MappingNode, place: Place) -> Branch:
        branch = Branch(place)
        merged: dict[str, BranchEntry] = {}
        for key, value in node.value:
            if key.tag == f"{_TAG}merge":
                for name, entry in self._merged(value).items():
                    merged.setdefault(name, entry)
            elif not isinstance(key, yaml.ScalarNode):
                self.report(key.start_mark, "a key must be a text")
            elif key.value in branch.entries:
                first = branch.entries[key.value].place
                self.report(key.start_mark, f"{key.value} is given twice, first in line {first.line}")
            else:
                branch.entries[key.value] = BranchEntry(self._place(key.start_mark), self.read(value))
        for name, entry in merged.items():
            branch.entries.setdefault(name, entry)
        return branch

    def _merged(self, value: yaml.Node) -> dict[str, BranchEntry]:
        entries: dict[str, BranchEntry] = {}
        for node in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            branch = self.read(node)
            if not isinstance(branch, Branch):
                self.report(node.start_mark, "<< needs a mapping")
                continue
            for name, entry in branch.entries.items():
                entries.setdefault(name, entry)
        return entries

    def _place(self, mark: "yaml.Mark | None") -> Place:
        return Place(self._source, mark.line + 1 if mark is not None and self._numbered else 0)
