"""Results of proposals that other nodes wait for."""

import asyncio

from pixy.entry_ids import ProposalId
from pixy.multiraft.proposal_waiters import LeadershipLost, ProposalWaiters

FIRST, SECOND = ProposalId(4, 1, 1), ProposalId(4, 1, 2)
GROUP, OTHER = 1000, 1001


async def test_a_result_goes_to_everybody_who_waits_for_it() -> None:
    watched = ProposalWaiters()
    assert not watched
    waiting = [watched.watch(GROUP, FIRST), watched.watch(GROUP, FIRST)]
    other = watched.watch(GROUP, SECOND)
    elsewhere = watched.watch(OTHER, FIRST)
    watched.applied(GROUP, FIRST, 70)
    assert [each.result() for each in waiting] == [70, 70]
    assert watched
    assert not other.done()
    assert not elsewhere.done()
    watched.applied(GROUP, SECOND, 71)
    watched.applied(OTHER, FIRST, 72)
    assert (other.result(), elsewhere.result()) == (71, 72)
    assert not watched


async def test_results_that_nobody_waits_for_are_ignored() -> None:
    watched = ProposalWaiters()
    watched.applied(GROUP, FIRST, 70)
    other = watched.watch(GROUP, SECOND)
    watched.applied(GROUP, FIRST, 70)
    assert not other.done()
    other.cancel()
    watched.applied(GROUP, SECOND, 71)
    assert not watched


async def test_a_leadership_that_is_lost_ends_all_of_its_group() -> None:
    watched = ProposalWaiters()
    waiting = [watched.watch(GROUP, FIRST), watched.watch(GROUP, SECOND)]
    other = watched.watch(OTHER, FIRST)
    watched.end(GROUP, LeadershipLost())
    assert all(isinstance(each.result(), LeadershipLost) for each in waiting)
    await asyncio.sleep(0)
    assert not other.done()
