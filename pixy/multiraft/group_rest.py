"""Rest of one node's raft groups: when a leader asks for it, when a follower may agree, and what
ends it.

Partitions alone rest; state groups, of which there are few, are what a node knows its cluster by.
A leader asks when nothing has been appended for `QUIET_TIMEOUTS` election timeouts, and again after
as many if one of the others had something to do.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from pixy.aio.steps import run_in_steps
from pixy.multiraft.group_driver import GroupDriver
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP, RaftGroup
from pixy.multiraft.resting_groups import CLAIM_EVERY_TICKS, RestClaim, RestingGroups, Waking
from pixy.raft import NONE, RaftNode, StateType

QUIET_TIMEOUTS = 3
_GROUPS_PER_STEP = 50


@dataclass(frozen=True, slots=True)
class RestHooks:
    """Functions of its node that groups at rest need.

    Attributes:
        is_up: true of a node while a connection to it stands.
        claim: sends a node the claim about the groups that rest with it. It may be lost.
    """

    is_up: Callable[[int], bool]
    claim: Callable[[int, RestClaim], None]


class GroupRest:
    """Groups at rest of one driver.

    Args:
        driver: of the groups.
        node_id: this node.
        hooks: see `RestHooks`; None: nothing rests.
        election_tick: ticks of an election timeout.
    """

    def __init__(
        self, driver: GroupDriver, node_id: int, hooks: RestHooks | None, election_tick: int
    ) -> None:
        self._driver = driver
        self._node_id = node_id
        self._hooks = hooks
        self._resting = RestingGroups(election_tick)
        self._ticks = 0

    def __len__(self) -> int:
        return len(self._resting)

    # --- to rest ----------------------------------------------------------------------------------

    def look(self, group: RaftGroup, node: RaftNode) -> None:
        """Ask the followers of a group that this node leads, once nothing has happened for long;
        called once in an election timeout.
        """
        if node.raft.resting:
            return
        self.end(group)
        if self._hooks is None or node.raft.state is not StateType.LEADER:
            return
        node.stop_asking()  # some do not answer
        last = node.raft.log.last_index()
        if last != group.quiet_index or not self._has_nothing_to_do(group):
            group.quiet_index, group.quiet_timeouts = last, 0
            return
        group.quiet_timeouts += 1
        if group.quiet_timeouts >= QUIET_TIMEOUTS:
            group.quiet_timeouts = 0
            node.ask_to_rest()

    def admits(self, group: RaftGroup) -> bool:
        """True if a group may rest as far as this node is concerned, beside its log."""
        return self._hooks is not None and self._has_nothing_to_do(group)

    def _has_nothing_to_do(self, group: RaftGroup) -> bool:
        assert self._hooks is not None
        own, is_up = self._node_id, self._hooks.is_up
        return (
            group.raft_group >= FIRST_PARTITION_GROUP
            and group.application is not None
            and not (group.held or group.reads or group.writing or group.loading or group.has_work)
            and not (group.driving or group.proposals)
            and not self._driver.waits_for_room(group)
            and all(is_up(each) for each in group.storage.conf_state.members if each != own)
        )

    def maybe_begin(self, group: RaftGroup, node: RaftNode) -> None:
        """A message about rest was stepped: its node may rest from here on."""
        if node.may_rest():
            node.rest()
        if node.raft.resting:
            self._resting.begin(group, self._node_id)

    # --- awake ------------------------------------------------------------------------------------

    def is_awake(self, group: RaftGroup) -> bool:
        """True if the core of a group that is taken to rest does not."""
        return group.node is not None and not group.node.raft.resting

    def end(self, group: RaftGroup) -> None:
        """A group was awoken, or removed."""
        self._resting.end(group)

    def wake(self, group: RaftGroup) -> None:
        """Something is to be done that needs the clock."""
        if group.resting:
            self._wake(Waking(group))

    def before(self, group: RaftGroup, node: RaftNode) -> None:
        """A message is about to be stepped in a group at rest, whose clock stands still."""
        node.report_silence(self._resting.unproven_ticks(group))

    def node_changed(self, node_id: int) -> None:
        """A connection to another node has ended or begun."""
        self._wake_all(self._resting.with_node(node_id))

    def heard(self, node_id: int, claim: RestClaim) -> None:
        """A claim of another node has come."""
        self._resting.heard(node_id, claim)

    def tick(self) -> None:
        """Send the claims, before anything else that a tick makes; and end what nothing proves."""
        self._ticks += 1
        if self._hooks is not None and not self._ticks % CLAIM_EVERY_TICKS:
            for node_id, claim in self._resting.claims():
                self._hooks.claim(node_id, claim)
        self._wake_all(self._resting.tick())

    def _wake_all(self, waking: Iterable[Waking]) -> None:
        run_in_steps(self._wake_in_steps(waking))

    def _wake_in_steps(self, waking: Iterable[Waking]) -> Iterator[None]:
        for number, each in enumerate(waking, 1):
            if each.group.resting or each.silent:
                self._wake(each)
            if not number % _GROUPS_PER_STEP:
                yield

    def _wake(self, waking: Waking) -> None:
        group, elapsed, silent = waking
        if group.node is not None:
            group.node.report_silence(elapsed)
            group.node.wake(silent or NONE)
            self._driver.drive(group)
