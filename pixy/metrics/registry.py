"""Samples of each family: where a scrape reads them."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from pixy.metrics.buckets import Histogram
from pixy.metrics.families import FAMILIES, Family


class Sample(NamedTuple):
    """One series: values of the family's labels, in their order, and the number."""

    labels: tuple[str, ...]
    value: float | Histogram


Source = Callable[[], Iterable[Sample]]
"""Present samples. It is read while other work of the loop goes on in between, so it iterates over
nothing that changes.
"""


class Registry:
    """Sources by family. A family may have several: one for each cluster."""

    def __init__(self) -> None:
        self._sources: dict[str, list[Source]] = {}

    def add(self, name: str, source: Source) -> None:
        """Add a source of a family."""
        assert name in FAMILIES, f"no family {name}"
        self._sources.setdefault(name, []).append(source)

    def number(self, name: str, read: Callable[[], float], *labels: str) -> None:
        """Add a source of one number."""
        self.add(name, lambda: (Sample(labels, read()),))

    def histogram(self, name: str, histogram: Histogram, *labels: str) -> None:
        """Add a source of one histogram."""
        self.add(name, lambda: (Sample(labels, histogram),))

    def names(self) -> set[str]:
        """Families with a source."""
        return set(self._sources)

    def __iter__(self) -> Iterator[tuple[Family, Iterator[Sample]]]:
        for name, family in FAMILIES.items():
            sources = self._sources.get(name)
            if sources:
                yield family, (sample for source in sources for sample in source())
