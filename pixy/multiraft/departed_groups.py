"""Raft groups that this node has departed from: their replicas went to other nodes.

Of such a group its term and vote stay, as long as it may come back: in the journal, in a record
that voids everything else of it. A replica that is back knows nothing of what it has confirmed in
its former life. Its group does not count on that, because it departs only once that has decided
without it. But a member that has missed the decision may: so it does not vote before a snapshot has
told it all (`RaftGroup.is_blank`), and then never for another one in a term in which it has voted.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from pixy.multiraft.group_states import gone_record
from pixy.multiraft.raft_storage import RaftStorage
from pixy.raft import ConfState, HardState
from pixy.storage import Journal


class _Departed(NamedTuple):
    """Term and vote, and the journal file that has them, 0 while they are not durable."""

    state: HardState
    file: int


class DepartedGroups:
    """Departed groups of one node.

    Args:
        journal: the node's journal.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._groups: dict[int, _Departed] = {}

    def __contains__(self, raft_group: int) -> bool:
        return raft_group in self._groups

    def found(self, raft_group: int, state: HardState, file: int) -> None:
        """A start has found one in the journal."""
        self._groups[raft_group] = _Departed(state, file)

    def add(self, raft_group: int, state: HardState, then: Callable[[], None]) -> None:
        """Void what the journal has of a group, whose writes have been appended; `then` is called
        once that is durable.
        """
        self._groups[raft_group] = _Departed(state, 0)

        def durable() -> None:
            self._journal.forget_group(raft_group)
            self._written(raft_group)
            then()

        self._journal.append((gone_record(raft_group, state),), durable)

    def _written(self, raft_group: int) -> None:
        departed = self._groups.get(raft_group)
        if departed is not None:
            self._groups[raft_group] = departed._replace(file=self._journal.files[-1].number)

    def take_back(self, raft_group: int) -> RaftStorage | None:
        """Storage of a group that is back, without members; None for one that this node has not
        departed from. The caller writes its hard state, which is not carried over here any more.
        """
        departed = self._groups.pop(raft_group, None)
        if departed is None:
            return None
        storage = RaftStorage(ConfState())
        storage.hard_state = HardState(departed.state.term, departed.state.vote, 0)
        return storage

    def forget(self, raft_groups: Iterable[int]) -> None:
        """Groups are deleted: nobody comes back."""
        for raft_group in raft_groups:
            self._groups.pop(raft_group, None)

    def carry_over(self, file_number: int) -> None:
        """Write again what only a journal file has that is about to be removed."""
        for raft_group, (state, file) in self._groups.items():
            if file == file_number:
                self._journal.append((gone_record(raft_group, state),), partial(self._written, raft_group))
