"""An index of names by a key: sets in insertion order, so that every replica has the same order."""

from collections.abc import Collection, Hashable, Iterator, Set
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class NameIndex(Generic[K]):
    """Names by key.

    Invariant: no key is without names.
    """

    __slots__ = ("_names",)

    def __init__(self) -> None:
        self._names: dict[K, dict[str, None]] = {}

    def __iter__(self) -> Iterator[K]:
        return iter(self._names)

    def __bool__(self) -> bool:
        return bool(self._names)

    def keys(self) -> Set[K]:
        """The keys with names."""
        return self._names.keys()

    def names(self, key: K) -> Collection[str]:
        """The names of a key."""
        return self._names.get(key, {}).keys()

    def add(self, key: K, name: str) -> None:
        """Add a name, unless it is there."""
        self._names.setdefault(key, {})[name] = None

    def discard(self, key: K, name: str) -> None:
        """Remove a name, if it is there."""
        names = self._names.get(key)
        if names is not None:
            names.pop(name, None)
            if not names:
                del self._names[key]

    def replace(self, name: str, before: Collection[K], after: Collection[K]) -> None:
        """A name has other keys."""
        for key in before:
            if key not in after:
                self.discard(key, name)
        for key in after:
            if key not in before:
                self.add(key, name)

    def pop(self, key: K) -> Collection[str]:
        """Remove a key; returns its names."""
        return self._names.pop(key, {}).keys()

    def pop_name(self, key: K) -> str:
        """Remove the newest name of a key, and return it."""
        name, _ = self._names[key].popitem()
        if not self._names[key]:
            del self._names[key]
        return name

    def copy(self) -> "NameIndex[K]":
        """An index that does not change with this one."""
        other: NameIndex[K] = NameIndex()
        other._names = {key: names.copy() for key, names in self._names.items()}
        return other
