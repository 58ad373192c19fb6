"""The rules that make Raft safe, each with a way to disable it: the simulator must detect a
violation then, or it is blind.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest.mock import patch

from pixy.raft import (
    ConfChangeV2,
    ConfState,
    EntriesNotLoaded,
    Entry,
    LogPosition,
    Message,
    MessageType,
    RaftNode,
    StateType,
    StorageAppend,
    Work,
    election,
    leader,
    node,
    raft,
    reads,
)
from pixy.raft.configuration import apply_conf_change
from pixy.raft.log import RaftLog
from pixy.raft.quorum import VoteResult, majority_committed_index, majority_vote_result
from pixy.raft.raft import Raft
from pixy.raft.roles import HANDLERS
from pixy.raft.state import RaftState
from pixy.raft.tracker import Tracker
from pixy.raft.unstable import Unstable
from tests.sim.raft.faults import Profile
from tests.sim.raft.replica import Replica


def _commit_of_any_term(self: Raft) -> bool:
    """Raft §5.4.2."""
    committed, log = self.tracker.committed(), self.log
    if committed <= log.committed or not log.term_or_zero(committed):
        return False
    log.commit_to(committed)
    return True


def _stable_whatever_term(self: Unstable, position: LogPosition) -> None:
    """Entries that were replaced while being written count as stored."""
    if position.index >= self.offset and self.maybe_term(position.index) is not None:
        self.entries = self.entries[position.index + 1 - self.offset :]
        self.offset = position.index + 1
        self.offset_in_progress = max(self.offset_in_progress, self.offset)


def _committed_by_incoming(self: Tracker) -> int:
    return majority_committed_index(self.config.voters, self._match)


def _elected_by_incoming(self: Tracker) -> tuple[int, int, VoteResult]:
    votes = self.votes or {}
    return 0, 0, majority_vote_result(self.config.voters, votes)


def _apply_again(state: RaftState, change: ConfChangeV2, index: int) -> ConfState:
    state.conf_index = min(state.conf_index, index - 1)
    return apply_conf_change(state, change, index)


def _vote_for_any_log(node: RaftState, m: Message) -> None:
    """Raft §5.4.1."""
    with patch.object(RaftLog, "last_position", lambda _: LogPosition(0, 0)):
        _answer_vote(node, m)


_answer_vote = election.handle_vote_request


def _vote_for_all(node: RaftState, m: Message) -> None:
    """Raft §5.2."""
    if m.type is MessageType.VOTE:
        node.vote = 0
        if node.state is not StateType.LEADER:
            node.lead = 0
    _answer_vote(node, m)


def _read_unconfirmed(node: RaftState, m: Message) -> None:
    """Raft §8."""
    reads._answer_read(node, m, node.log.committed)


_append_entries = Raft.append_entries


def _answer_last_position(self: Raft, proposed: Sequence[Entry]) -> LogPosition:
    """The position of a proposal is that of its first entry."""
    return LogPosition(_append_entries(self, proposed).term, self.log.last_index())


_has_unapplied_conf_change = election._has_unapplied_conf_change


def _look_at_entries_in_memory(node: RaftState) -> bool:
    """A campaign waits for the entries that it has to look at."""
    try:
        return _has_unapplied_conf_change(node)
    except EntriesNotLoaded:
        return False


def _append_without_looking(self: RaftLog, term: int, index: int) -> bool:
    """Raft §5.3: the previous entry must match.

    It must at least exist, because a log with a gap is a different kind of failure.
    """
    return index <= self.last_index()


def _handlers(kind: MessageType, handler: Any) -> Any:
    """Use this handler for a message type in every role."""
    tables = {
        state: tuple([handler if at == kind else one for at, one in enumerate(table)])
        for state, table in HANDLERS.items()
    }
    return patch.object(raft, "HANDLERS", tables)


def _leader_handler(kind: MessageType, handler: Any) -> Any:
    tables = dict(HANDLERS)
    tables[StateType.LEADER] = tuple(
        [handler if at == kind else one for at, one in enumerate(tables[StateType.LEADER])]
    )
    return patch.object(raft, "HANDLERS", tables)


_work, _stored = RaftNode.work, RaftNode.stored


def _hear_old_storage(self: RaftNode, append: StorageAppend) -> Sequence[Message]:
    """The end of a write of an earlier term says what is stored."""
    append.term = self.raft.term
    return _stored(self, append)


def _sent_before_stored(kind: MessageType) -> Any:
    """Send messages of this type without waiting for the state they promise."""

    def hasty(self: RaftNode) -> Work | None:
        work = _work(self)
        if work is not None and work.append is not None:
            responses = work.append.responses
            early = [each for each in responses if each.type is kind and each.to != self.raft.id]
            work.append.responses = [each for each in responses if each not in early]
            work.messages = [*work.messages, *early]
        return work

    return patch.object(RaftNode, "work", hasty)


class Rule(NamedTuple):
    """The way to disable a rule, and the focus of runs that soon reveal it.

    Attributes:
        seed: a seed that reveals it. Only a hint: others are tried if it does not.
    """

    profile: Profile
    changes: list[Any]
    seed: int = 1


RULES: dict[str, Rule] = {
    "only entries of the own term are committed by counting": Rule(
        Profile.LEADERS, [patch.object(Raft, "maybe_commit", _commit_of_any_term)], 8
    ),
    "a vote is stored before it is answered": Rule(
        Profile.ELECTIONS, [_sent_before_stored(MessageType.VOTE_RESP)]
    ),
    "a candidate's term is stored before it asks for votes": Rule(
        Profile.LEADERS, [_sent_before_stored(MessageType.VOTE)], 82
    ),
    "an append is stored before it is acknowledged": Rule(
        Profile.MIXED, [_sent_before_stored(MessageType.APP_RESP)], 7
    ),
    "the storage's stale answers are ignored": Rule(
        Profile.LEADERS,
        [
            patch.object(Unstable, "stable_to", _stable_whatever_term),
            patch.object(RaftNode, "stored", _hear_old_storage),
        ],
        44,
    ),
    "one membership change at a time": Rule(
        Profile.MEMBERSHIP,
        [
            patch.object(leader, "_refusal", lambda node, *, leaves: ""),
            patch.object(election, "_has_unapplied_conf_change", lambda node: False),
        ],
    ),
    "a joint configuration decides by both halves": Rule(
        Profile.MEMBERSHIP,
        [
            patch.object(Tracker, "committed", _committed_by_incoming),
            patch.object(Tracker, "tally", _elected_by_incoming),
        ],
        3,
    ),
    "only a log that is complete enough gets votes": Rule(
        Profile.ELECTIONS, [_handlers(MessageType.VOTE, _vote_for_any_log)], 2
    ),
    "one vote in a term": Rule(Profile.ELECTIONS, [_handlers(MessageType.VOTE, _vote_for_all)]),
    "the commit index is stored with the entries": Rule(
        Profile.MEMBERSHIP, [patch.object(Replica, "_with_commit", lambda self, state, commit: state)], 132
    ),
    "a configuration change is not put in force twice": Rule(
        Profile.MEMBERSHIP, [patch.object(node, "apply_conf_change", _apply_again)], 3
    ),
    "a read is confirmed by a quorum": Rule(
        Profile.MIXED, [_leader_handler(MessageType.READ_INDEX, _read_unconfirmed)], 7
    ),
    "a proposal is at the position that was answered": Rule(
        Profile.MIXED, [patch.object(Raft, "append_entries", _answer_last_position)]
    ),
    "what waits for entries goes on when they are loaded": Rule(
        Profile.MIXED, [patch.object(RaftNode, "entries_loaded", lambda _: None)]
    ),
    "a snapshot whose data does not come is awaited no longer": Rule(
        Profile.LEADERS, [patch.object(RaftNode, "snapshot_failed", lambda *_: None)], 35
    ),
    "a campaign waits for unapplied entries": Rule(
        Profile.MEMBERSHIP,
        [patch.object(election, "_has_unapplied_conf_change", _look_at_entries_in_memory)],
        165,
    ),
    "an append matches the entry before it": Rule(
        Profile.LEADERS, [patch.object(RaftLog, "match_term", _append_without_looking)]
    ),
}


@contextmanager
def changed(changes: Iterable[Any]) -> Iterator[None]:
    """Context in which all these changes are made."""
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        yield


def switched_off(rule: str) -> AbstractContextManager[None]:
    """Context in which the rule is disabled."""
    return changed(RULES[rule].changes)
