"""The wanted records of a partition."""

from typing import NamedTuple

__all__ = ["Span"]


class Span(NamedTuple):
    """The wanted records of a partition: offsets from `first` up to `end`, exclusive."""

    topic: str
    partition: int
    first: int
    end: int
