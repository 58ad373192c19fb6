"""Elections at once where a leader is gone.

Raft's followers wait for an election timeout, because they cannot know whether a silent leader is
gone. A node whose connection has ended and that cannot be reached again is: its followers forget
it, and campaign one after the other, in the order of their ids, so that votes are seldom split. The
first one is not always electable, or heard before the others know; so each tries again until there
is a leader. Raft's timeouts remain behind all that.

With a thousand groups, the campaigns are spread over iterations of the event loop.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence

from pixy.aio.steps import run_in_steps
from pixy.multiraft import Driver, RaftGroup
from pixy.raft import NONE, RandomSource, StateType

_GROUPS_PER_STEP = 50
_RETRIES_S = (0.03, 0.08, 0.15, 0.3, 0.5)
"""Waits before the next attempts of a node."""
_TURN_S = 0.1
"""Head start of a candidate before the one behind it."""
_PATIENT_ATTEMPTS = 2
"""First attempts that leave a candidate alone: votes are written to two disks, one after the other.
Later ones end a split vote.
"""


class Failover:
    """Elections of one node.

    Args:
        driver: of its groups.
        is_up: tells whether a node can be reached.
        random: spreads further attempts.
    """

    def __init__(self, driver: Driver, is_up: Callable[[int], bool], random: RandomSource) -> None:
        self._driver = driver
        self._is_up = is_up
        self._random = random
        self._loop = asyncio.get_running_loop()
        self._stopped = False

    def stop(self) -> None:
        """Begin no further election."""
        self._stopped = True

    def lost(self, node_id: int) -> None:
        """A node is gone: elect leaders of the groups that it has led."""
        led = [group for group in self._driver.groups.values() if group.leader == node_id]
        run_in_steps(self._forget(led, node_id))

    def elect(self, group: RaftGroup) -> None:
        """Campaign in a group without a leader, again until there is one."""
        self._driver.campaign(group)
        self._try_again([group], 0)

    def _forget(self, groups: Sequence[RaftGroup], node_id: int) -> Iterator[None]:
        mine: list[RaftGroup] = []
        for number, group in enumerate(groups, 1):
            if self._stopped or self._is_up(node_id):
                return
            if group.node is not None and group.leader == node_id:
                group.node.forget_leader()
                self._driver.drive(group)
                turn = self._turn(group)
                if turn == 0:
                    self._driver.campaign(group)
                if turn is not None:
                    mine.append(group)
            if not number % _GROUPS_PER_STEP:
                yield
        self._try_again(mine, 0)

    def _turn(self, group: RaftGroup) -> int | None:
        """Nodes that campaign before this one; None if this one has no vote."""
        node_id = self._driver.node_id
        voters = [each for each in sorted(group.storage.conf_state.voters) if self._is_up(each)]
        return voters.index(node_id) if node_id in voters else None

    def _try_again(self, groups: Sequence[RaftGroup], attempt: int) -> None:
        if not groups or attempt == len(_RETRIES_S):
            return
        delay = _RETRIES_S[attempt] * (0.75 + self._random.randrange(50) / 100)
        self._loop.call_later(delay, self._again, groups, attempt)

    def _again(self, groups: Sequence[RaftGroup], attempt: int) -> None:
        if not self._stopped:
            run_in_steps(self._campaign_again(groups, attempt))

    def _campaign_again(self, groups: Sequence[RaftGroup], attempt: int) -> Iterator[None]:
        left: list[RaftGroup] = []
        for number, group in enumerate(groups, 1):
            if self._stopped:
                return
            if group.node is not None and group.leader == NONE:
                left.append(group)
                if self._may_campaign(group, group.node.raft.state, attempt):
                    self._driver.campaign(group)
            if not number % _GROUPS_PER_STEP:
                yield
        self._try_again(left, attempt + 1)

    def _may_campaign(self, group: RaftGroup, state: StateType, attempt: int) -> bool:
        if state is StateType.CANDIDATE and attempt < _PATIENT_ATTEMPTS:
            return False
        turn = self._turn(group)
        return turn is not None and turn * _TURN_S <= sum(_RETRIES_S[: attempt + 1])
