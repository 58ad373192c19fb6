"""States that only a coincidence brings about: counted, so that it is known which ones the seeds
reach.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from typing import Any
from unittest.mock import patch

from pixy.cluster.replicas.partitions import Partitions
from pixy.copies import directory_swap
from pixy.multiraft.dedup_table import DedupVerdict
from pixy.multiraft.driver import Driver
from pixy.multiraft.proposals import Forwarded, Proposals
from pixy.multiraft.raft_group import RaftGroup
from pixy.multiraft.resting_groups import RestingGroups
from pixy.multiraft.snapshots import Snapshots
from pixy.raft import NO_LIMIT, Entry, Message, RaftNode, StateType


class Rare(StrEnum):
    """Rare states."""

    TAIL_OF_TWO_TERMS = (
        "a leader with an uncommitted tail of entries of two terms took a retry that it found in its tail"
    )
    ROWS = "a retry was answered from the rows"
    FORWARDED_TO_ROWS = "a forwarded retry was found in the rows"
    OVERTAKEN = "a snapshot overtook a proposal in flight"
    LOADED = "entries were loaded from the journal for a follower"
    NOT_LOADED = "entries for a follower were not in the journal any more"
    FINISHED_INSTALL = "a start finished an install"
    HANDED_OVER = "a leader handed over because of a slow disk"
    SEVERAL_BATCHES = "a batch of several batches was committed"
    CARRIED_RESET = "a journal file was removed with a log reset carried over"
    RELOCATED = "relocated entries served a start"
    NO_ROOM = "a proposal waited for room"
    KEPT_BACK = "a follower took no append for want of room in its segments"
    TOOK_POSITION = "a replica without the entries, and with all records, took over a position"
    COPIED = "a replica went on with a copy of what it lacked"
    REPLACED_AT_START = "a start replaced the files of a replica by its copy"
    REMOVED_LEADER = "a leader applied its own removal"
    RESTED = "a raft group came to rest on all its nodes"
    WOKE = "a raft group at rest was woken"
    UNPROVEN = "followers at rest were woken because nothing had proven their leader"
    UNHEARD = "a leader at rest was woken because nothing was heard of a follower"


@contextmanager
def counting(counts: Counter[str]) -> Iterator[None]:
    """Count rare states of the nodes that run meanwhile, as far as only their code knows them."""
    with ExitStack() as stack:
        for where, name, spy in (
            (Driver, "propose_for", _propose_for),
            (Driver, "loaded", _loaded),
            (Driver, "_has_room", _has_room),
            (Driver, "_takes", _takes),
            (Driver, "_apply_conf_change", _apply_conf_change),
            (Proposals, "_retry", _retry),
            (Proposals, "_repeated", _repeated),
            (Proposals, "overtaken", _overtaken),
            (Snapshots, "finish_install", _finish_install),
            (Partitions, "_swapped", _swapped),
            (directory_swap, "swap_directories", _swap_at_start),
            (Driver, "hand_over", _hand_over),
            (RaftNode, "rest", _rest),
            (RestingGroups, "end", _end_of_rest),
            (RestingGroups, "tick", _tick_at_rest),
        ):
            stack.enter_context(patch.object(where, name, spy(getattr(where, name), counts)))
        yield


Method = Callable[..., Any]


def _is_of_two_terms(group: RaftGroup) -> bool:
    assert group.node is not None
    log = group.node.raft.log
    tail: list[Entry] = log.slice(group.applied_index + 1, log.last_index() + 1, NO_LIMIT)
    return len({entry.term for entry in tail}) > 1


def _propose_for(method: Method, counts: Counter[str]) -> Method:
    def propose_for(self: Driver, group: RaftGroup, forwarded: Forwarded) -> Any:
        proposal = forwarded.proposal
        if group.leads and proposal in group.tail_ids:
            counts[Rare.TAIL_OF_TWO_TERMS] += _is_of_two_terms(group)
        elif group.leads:
            counts[Rare.FORWARDED_TO_ROWS] += not isinstance(group.rows.judge(proposal), DedupVerdict)
        return method(self, group, forwarded)

    return propose_for


def _retry(method: Method, counts: Counter[str]) -> Method:
    def retry(self: Proposals[Any], sequence: int, proposal: Any) -> None:
        if self._id(sequence) in self._group.tail_ids:
            counts[Rare.TAIL_OF_TWO_TERMS] += _is_of_two_terms(self._group)
        method(self, sequence, proposal)

    return retry


def _repeated(method: Method, counts: Counter[str]) -> Method:
    def repeated(self: Proposals[Any], *arguments: Any) -> None:
        counts[Rare.ROWS] += 1
        method(self, *arguments)

    return repeated


def _overtaken(method: Method, counts: Counter[str]) -> Method:
    def overtaken(self: Proposals[Any]) -> None:
        before = counts[Rare.ROWS]
        method(self)
        counts[Rare.OVERTAKEN] += counts[Rare.ROWS] > before

    return overtaken


def _loaded(method: Method, counts: Counter[str]) -> Method:
    def loaded(self: Driver, group: RaftGroup, entries: list[Entry] | None) -> None:
        counts[Rare.LOADED if entries else Rare.NOT_LOADED] += 1
        method(self, group, entries)

    return loaded


def _has_room(method: Method, counts: Counter[str]) -> Method:
    def has_room(self: Driver, group: RaftGroup, size: int) -> Any:
        has = method(self, group, size)
        counts[Rare.NO_ROOM] += not has
        return has

    return has_room


def _takes(method: Method, counts: Counter[str]) -> Method:
    def takes_append(self: Driver, group: RaftGroup, message: Message) -> Any:
        takes = method(self, group, message)
        counts[Rare.KEPT_BACK] += not takes
        return takes

    return takes_append


def _apply_conf_change(method: Method, counts: Counter[str]) -> Method:
    def apply_conf_change(self: Driver, group: RaftGroup, entry: Entry) -> None:
        assert group.node is not None
        led = group.node.raft.state is StateType.LEADER
        method(self, group, entry)
        counts[Rare.REMOVED_LEADER] += led and group.node.raft.state is not StateType.LEADER

    return apply_conf_change


def _finish_install(method: Method, counts: Counter[str]) -> Method:
    def finish_install(self: Snapshots, group: RaftGroup) -> None:
        counts[Rare.FINISHED_INSTALL] += 1
        method(self, group)

    return finish_install


def _swapped(method: Method, counts: Counter[str]) -> Method:
    def swapped(self: Partitions, *arguments: Any) -> None:
        counts[Rare.COPIED] += 1
        method(self, *arguments)

    return swapped


def _swap_at_start(function: Method, counts: Counter[str]) -> Method:
    def swap(*arguments: Any) -> Any:
        counts[Rare.REPLACED_AT_START] += 1
        return function(*arguments)

    return swap


def _hand_over(method: Method, counts: Counter[str]) -> Method:
    def hand_over(self: Driver, group: RaftGroup) -> None:
        method(self, group)
        counts[Rare.HANDED_OVER] += not group.leads

    return hand_over


def _rest(method: Method, counts: Counter[str]) -> Method:
    def rest(self: RaftNode) -> None:
        counts[Rare.RESTED] += 1
        method(self)

    return rest


def _end_of_rest(method: Method, counts: Counter[str]) -> Method:
    def end(self: RestingGroups, group: RaftGroup) -> None:
        counts[Rare.WOKE] += group.resting
        method(self, group)

    return end


def _tick_at_rest(method: Method, counts: Counter[str]) -> Method:
    def tick(self: RestingGroups) -> Any:
        waking = method(self)
        for each in waking:
            counts[Rare.UNHEARD if each.silent else Rare.UNPROVEN] += 1
        return waking

    return tick
