"""Units of records that the journal writes in one flush, and reports one after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pixy.storage.disk import Buffer
from pixy.storage.journal.journal_format import ENTRY_KINDS, UnitRecord, command_group, record_head

_TOLD_UNITS_MAX = 64
_TOLD_BYTES_MAX = 64 << 10
"""Limits of the units reported per loop iteration, at least one. Their callbacks take 1 or 2 ms."""

FreesSpace = Callable[[int, Buffer], bool]
"""True for a command, by raft group and payload, that frees space on the disk."""


@dataclass(slots=True)
class GatheredUnits:
    """Units of one flush.

    Attributes:
        buffers: a head and a payload for each record, in the order of the units.
        tokens: one for each unit.
        bytes: size of the buffers.
        counts: number of records of each unit that does not have exactly one, by its place in
            `tokens`.
        lowest, highest: indexes of the entries, by raft group.
        since: loop time of the first unit.
        told, told_buffers: number of units that are reported, and of their buffers.
        may_use_spare: they may be written to the spare bytes of a file.
    """

    buffers: list[Buffer] = field(default_factory=list)
    tokens: list[Any] = field(default_factory=list)
    bytes: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    lowest: dict[int, int] = field(default_factory=dict)
    highest: dict[int, int] = field(default_factory=dict)
    since: float = 0.0
    told: int = 0
    told_buffers: int = 0
    may_use_spare: bool = False

    def add(self, records: Sequence[UnitRecord]) -> None:
        """Add the records of the unit whose token is added next."""
        heads = [record_head(record) for record in records]
        self.counts[len(self.tokens)] = len(records)
        for head, (kind, _, raft_group, index, _, _, _, payload) in zip(heads, records, strict=True):
            self.buffers.append(head)
            self.buffers.append(payload)
            self.bytes += len(head) + len(payload)
            if kind in ENTRY_KINDS:
                self.note(raft_group, index)

    def note(self, raft_group: int, index: int) -> None:
        """Note an entry in `lowest` and `highest`."""
        self.lowest[raft_group] = min(index, self.lowest.get(raft_group, index))
        self.highest[raft_group] = max(index, self.highest.get(raft_group, index))

    def has_command(self, is_wanted: FreesSpace) -> bool:
        """True if there is a command that is wanted."""
        return any(
            raft_group is not None and is_wanted(raft_group, payload)
            for raft_group, payload in zip(
                map(command_group, self.buffers[::2]), self.buffers[1::2], strict=True
            )
        )

    def next_tokens(self) -> list[Any]:
        """Tokens of the next units, those to report in one iteration."""
        first, at = self.told, self.told_buffers
        end = min(first + _TOLD_UNITS_MAX, len(self.tokens))
        behind = at + 2 * (end - first)
        if self.counts or sum(map(len, self.buffers[at + 1 : behind : 2])) >= _TOLD_BYTES_MAX:
            end, behind = self._few_bytes(first, at, end)
        self.told, self.told_buffers = end, behind
        return self.tokens[first:end]

    def _few_bytes(self, unit: int, at: int, end: int) -> tuple[int, int]:
        """The unit and the buffer behind the next units with few bytes, at least one."""
        size = 0
        while unit < end and size < _TOLD_BYTES_MAX:
            behind = at + 2 * self.counts.get(unit, 1)
            size += sum(map(len, self.buffers[at + 1 : behind : 2]))
            unit, at = unit + 1, behind
        return unit, at
