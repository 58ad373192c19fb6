"""The wanted records of a partition."""

from typing import NamedTuple


class Span(NamedTuple):
    """The wanted records of a partition: offsets from `first` up to `end`, exclusive."""

    topic: str
    partition: int
    first: int
    end: int
