"""Results of the last proposals of each node to a raft group: they make retries harmless.

A node gives each proposal a sequence, and sends it again with the same sequence until it knows the
outcome. It has at most `WINDOW` of them under way: the newest is less than `WINDOW` above the
oldest without an outcome. So a group that keeps the results of the last `WINDOW` sequences of each
node can tell for every proposal that is sent again whether it was applied:

    incarnation      sequence                        the proposal is
    ---------------  ------------------------------  ---------------------------------------------
    below the row's  any                             refused: its process has ended
    the row's        at least WINDOW below the last  refused: nobody waits for it any more
    the row's        kept                            a repetition: answered with the kept result
    the row's        any other                       new
    above the row's  any                             new; the row starts over when it is applied
    any              above `INDEX_MAX`            never sent by a correct node: not kept

Rows are part of the group's state: they change when an entry is applied, and go with applied
positions and checkpoints. Nothing here depends on a clock, and no row ever ends: a node that has
left cannot come back, so its row is never asked for again. That is at most `WINDOW` results for
each node that ever proposed something. The road not taken: an entry in each of ten thousand groups
whenever a node leaves.
"""

from array import array
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from pixy import errors
from pixy.entry_ids import INDEX_MAX, ProposalId
from pixy.errors import PixyError
from pixy.proto.state_pb2 import ProposerRow

WINDOW = 8
"""Sequences that a node may have under way in one raft group."""


class DedupVerdict(Enum):
    """Judgement of a proposal without a kept result."""

    NEW = auto()
    OUTDATED = auto()


class DedupSnapshot(NamedTuple):
    """Rows as of some entry, cheap to take."""

    rows: "tuple[_Row, ...]"

    def encoded(self) -> list[ProposerRow]:
        """The rows as messages, for applied positions and checkpoints."""
        return [row.encoded() for row in self.rows]


class _Row:
    """The last results of one node.

    `kept` has pairs of sequence and value, for a small object that is used for every proposal.
    Invariant: pair `sequence % WINDOW` is that of the highest applied sequence of that remainder,
    or (0, 0); `errors` has the sequences whose result is an error.
    """

    __slots__ = ("errors", "incarnation", "kept", "last", "node_id")

    def __init__(self, node_id: int, incarnation: int) -> None:
        self.node_id = node_id
        self.incarnation = incarnation
        self.last = 0
        self.kept = array("q", bytes(2 * 8 * WINDOW))
        self.errors: dict[int, PixyError] | None = None

    def record(self, sequence: int, result: object) -> None:
        at = sequence % WINDOW * 2
        before = self.kept[at]
        if sequence < before:
            return  # outdated: its proposer waits for it no longer
        if self.errors and before in self.errors:
            # Replaced, not changed: a copy may have it.
            self.errors = {failed: error for failed, error in self.errors.items() if failed != before}
        self.kept[at] = sequence
        self.kept[at + 1] = result if isinstance(result, int) else 0
        self.last = max(self.last, sequence)
        if isinstance(result, PixyError):
            self.errors = {**(self.errors or {}), sequence: result}

    def copy(self) -> "_Row":
        other = _Row.__new__(_Row)
        other.node_id, other.incarnation, other.last = self.node_id, self.incarnation, self.last
        other.kept, other.errors = self.kept[:], self.errors
        return other

    def encoded(self) -> ProposerRow:
        oldest = self.last - WINDOW
        kept = sorted([sequence for sequence in self.kept[::2] if sequence and sequence > oldest])
        failed = self.errors or {}
        texts = [error_text(failed.get(sequence)) for sequence in kept]
        while texts and not texts[-1]:
            texts.pop()
        return ProposerRow(
            node_id=self.node_id,
            incarnation=self.incarnation,
            sequences=kept,
            values=[self.kept[sequence % WINDOW * 2 + 1] for sequence in kept],
            errors=texts,
        )


class DedupTable:
    """The rows of one raft group."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Iterable[ProposerRow] = ()) -> None:
        self._rows = [_decoded(row) for row in rows]

    def _row(self, node_id: int) -> _Row | None:
        for row in self._rows:
            if row.node_id == node_id:
                return row
        return None

    def judge(self, proposal: ProposalId) -> int | PixyError | DedupVerdict:
        """The result of a proposal if it was applied; else whether it may be proposed.

        The result of a command that has none is 0, as that of a batch at offset 0.
        """
        node_id, incarnation, sequence = proposal
        row = self._row(node_id)
        if row is None or incarnation > row.incarnation:
            return DedupVerdict.NEW
        if incarnation < row.incarnation or sequence <= row.last - WINDOW:
            return DedupVerdict.OUTDATED
        at = sequence % WINDOW * 2
        if row.kept[at] != sequence:
            return DedupVerdict.NEW
        error = None if row.errors is None else row.errors.get(sequence)
        return row.kept[at + 1] if error is None else error

    def record(self, proposal: ProposalId, result: object) -> None:
        """Record the result of an applied proposal: an offset or number, an error, or nothing."""
        node_id, incarnation, sequence = proposal
        if sequence > INDEX_MAX:
            return  # of a node that is not correct
        for row in self._rows:
            if row.node_id == node_id:
                if type(result) is int and row.incarnation == incarnation and sequence > row.last:
                    if row.errors:
                        break
                    # What nearly all proposals are: the next one, a batch.
                    at, kept = sequence % WINDOW * 2, row.kept
                    kept[at], kept[at + 1], row.last = sequence, result, sequence
                    return
                break
        else:
            row = _Row(node_id, incarnation)
            self._rows.append(row)
        if incarnation < row.incarnation:
            return  # of a start that has ended: nobody asks for it
        if row.incarnation != incarnation:
            self._rows[self._rows.index(row)] = row = _Row(node_id, incarnation)
        row.record(sequence, result)

    def snapshot(self) -> DedupSnapshot:
        """The rows as they are."""
        return DedupSnapshot(tuple([row.copy() for row in self._rows]))


def error_text(error: PixyError | None) -> str:
    """An error as it is stored, empty for none."""
    return "" if error is None else f"{type(error).__name__}:{error}"


def stored_error(text: str) -> PixyError:
    """The error of a text of `error_text`."""
    name, _, reason = text.partition(":")
    known = getattr(errors, name, PixyError)
    # Classes with arguments of their own are never the result of a command.
    return known(reason) if known.__init__ is PixyError.__init__ else PixyError(reason)


def _decoded(message: ProposerRow) -> _Row:
    row = _Row(message.node_id, message.incarnation)
    texts = [*message.errors, *[""] * len(message.sequences)]
    for sequence, value, text in zip(message.sequences, message.values, texts, strict=False):
        if sequence <= INDEX_MAX:  # else no correct node has written the row
            row.record(sequence, stored_error(text) if text else value)
    return row
