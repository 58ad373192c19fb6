"""An order of names in which a scan goes piece by piece while names come and go."""

from collections.abc import Iterable, Iterator


class ScanOrder:
    """A set of names, scanned in pieces.

    The last name takes the place of a removed one, and a scan goes from the end to the front. So it
    meets each name that is there from the beginning of the scan to its end, a moved one perhaps
    twice.

    Invariant: `_at[_names[index]] == index`.
    """

    __slots__ = ("_at", "_names")

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = list(names)
        self._at = {name: index for index, name in enumerate(self._names)}

    def add(self, name: str) -> None:
        """Add a name, unless it is there."""
        if name not in self._at:
            self._at[name] = len(self._names)
            self._names.append(name)

    def remove(self, name: str) -> None:
        """Remove a name."""
        index, last = self._at.pop(name), self._names.pop()
        if last != name:
            self._names[index] = last
            self._at[last] = index

    def pieces(self, size: int) -> Iterator[list[str]]:
        """All names, at most `size` at a time."""
        end = len(self._names)
        while (end := min(end, len(self._names))) > 0:
            begin = max(end - size, 0)
            yield self._names[begin:end]
            end = begin
