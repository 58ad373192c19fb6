"""Times from the proposal of an entry until it is applied."""

from pathlib import Path

from tests.cluster.drivers import BATCH, DriverNetwork, DriverNode


async def test_one_entry_of_a_group_is_timed_at_a_time(node: DriverNode) -> None:
    times = node.driver.commit_times.seconds
    await node.lead()
    timed = sum(times.counts)
    for _ in range(3):
        node.propose(b"x", BATCH)
    assert sum(times.counts) == timed
    await node.settle()
    assert sum(times.counts) == timed + 1
    node.propose(b"x", BATCH)
    await node.settle()
    assert sum(times.counts) == timed + 2


async def test_leaders_are_counted_that_are_heard_of_anew(tmp_path: Path) -> None:
    network = DriverNetwork(tmp_path, 1, 2, 3)
    await network.elect(1)
    assert [network[each].driver.leader_changes for each in (1, 2, 3)] == [1, 1, 1]
    await network.elect(2)
    assert [network[each].driver.leader_changes for each in (1, 2, 3)] == [2, 2, 2]
    network.close()
