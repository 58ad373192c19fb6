"""Events of a mirror, for those who run it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Event:
    """Something that has happened.

    Attributes:
        kind: created, grown, replaced, turned, gone, gap, refused, outage, resumed, progress or
            done.
        text: for people.
        values: for programs, by name.
    """

    kind: str
    text: str
    values: Mapping[str, object] = field(default_factory=dict)


Tell = Callable[[Event], None]
