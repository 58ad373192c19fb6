"""Directories with impossible terms or configurations: a start refuses them, a check finds them,
and a node with the only vote is mended without a loss.
"""

from pathlib import Path

import pytest

from pixy.cluster import LostMajority, MendedGroups
from pixy.cluster.unsafe_recovery import stopped_node
from pixy.entry_ids import TERM_KEPT_MAX, TERM_MAX
from pixy.errors import CorruptData, DataDirectoryError, FailedPrecondition
from pixy.inspect import ReadOnlyDisk, Verdict, check_directory
from pixy.multiraft.raft_group import RaftGroup
from pixy.raft import ConfState
from pixy.storage import RealDisk, RecordKind, ThreadWorker
from tests.cluster.nodes import Cluster, Sizes, copy_of
from tests.cluster.poisoned import WORST, raise_terms, write_configuration, write_records
from tests.cluster.survivors import formed, formed_with_records

METADATA, SINKS, PARTITION = 1, 2, 1000

CONFIGURATIONS = {
    "no voters": ConfState(),
    "no voters, joint": ConfState((), (), (1,)),
    "a voter twice": ConfState((1, 1)),
    "a learner that votes": ConfState((1,), (1,)),
    "a learner to be that does not vote": ConfState((1,), (), (), (1,)),
    "no node": ConfState((0, 1)),
    "an id that none has": ConfState((1, 2**63)),
}
"""Members that no raft group has."""
NEVER_THERE = {
    "another node": ConfState((7,)),
    "this node and another": ConfState((1, 2)),
    "joint with others": ConfState((1,), (), (2, 3)),
    "a learner": ConfState((1,), (9,)),
}
"""Members that were never in the cluster."""


async def used(cluster: Cluster) -> None:
    await cluster.create_topic()
    await cluster.append(b"one", b"two")
    await cluster.commit(1)
    await cluster.settle()


async def stopped(directory: Path) -> None:
    async with Cluster(directory).running() as cluster:
        await used(cluster)


async def mended(directory: Path) -> dict[str, int]:
    """Mend a directory; returns the entries written again by group."""
    with stopped_node(RealDisk(), directory) as node:
        found = MendedGroups(node)
        await found.write(ThreadWorker)
    return {group.name: group.entries for group in found.groups}


async def goes_on_alone(directory: Path) -> None:
    with stopped_node(RealDisk(), directory) as node:
        await LostMajority(node).go_on_alone(ThreadWorker, bytes(16))


def verdicts(directory: Path) -> list[str]:
    report = check_directory(ReadOnlyDisk(), directory)
    return [finding.found for finding in report.findings if finding.verdict is Verdict.DAMAGED]


async def goes_on(directory: Path) -> None:
    """The node starts twice, has everything, and takes more of each kind."""
    for number in range(2):
        async with Cluster(directory).running() as cluster:
            assert cluster.values()[:2] == [b"one", b"two"]
            assert len(cluster.values()) == 2 + number
            assert cluster.committed()[0] == 1 + number
            await cluster.append(b"more")
            await cluster.commit(2 + number)
            await cluster.create_topic(f"topic{number}")
            terms = {group.term for group in cluster.node._log.driver.groups.values() if group.leads}
            assert max(terms) < 20
    assert verdicts(directory) == []


async def is_refused_found_and_mended(directory: Path, refusal: str, finding: str) -> None:
    with pytest.raises(DataDirectoryError, match=refusal):
        await Cluster(directory).node.start()
    [found] = verdicts(directory)
    assert finding in found
    assert list((await mended(directory)).values()) == [0]
    await goes_on(directory)


@pytest.mark.slow
@pytest.mark.parametrize("term", [TERM_MAX + 1, 2**62, WORST])
@pytest.mark.parametrize("raft_group", [METADATA, PARTITION])
async def test_a_term_that_no_log_has_is_refused_found_and_lowered(
    tmp_path: Path, raft_group: int, term: int
) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    await raise_terms(directory, raft_group, term=term)
    refusal = rf"raft group {raft_group} .* hard state has term {term}, .*`pixy storage recover` mends"
    await is_refused_found_and_mended(
        directory, refusal, f"raft group {raft_group}: its hard state has term {term}"
    )


async def test_all_groups_of_a_node_are_mended_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    await raise_terms(directory)
    assert {"metadata", f"raft group {PARTITION}"} <= set(await mended(directory))
    assert await mended(directory) == {}, "nothing is left"
    await goes_on(directory)


def group_of(cluster: Cluster, name: str) -> RaftGroup:
    if name == "groups":
        return cluster.node.state_groups.group_of("group").group
    return cluster.node._log.driver.groups[METADATA if name == "metadata" else PARTITION]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metadata", "groups", "partition"])
@pytest.mark.parametrize("synced", [False, True])
async def test_entries_with_such_terms_are_written_again(tmp_path: Path, name: str, synced: bool) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.start()
    await cluster.create_topic()
    await cluster.append(b"one")
    await cluster.commit(1)
    group = group_of(cluster, name)
    assert group.node is not None
    group.node.raft.term = 2**40
    await cluster.append(b"two")
    await cluster.commit(1)
    await cluster.create_topic("other")
    if synced:
        await cluster.sync()
    await cluster.settle()
    directory = copy_of(cluster.directory, "copy")
    group.node.raft.term = group.term
    await cluster.node.stop()
    with pytest.raises(DataDirectoryError, match=r"term 1099511627776, at most"):
        await Cluster(directory).node.start()
    assert len(verdicts(directory)) >= 1
    assert len(await mended(directory)) == 1
    await goes_on(directory)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["metadata", "groups", "partition"])
@pytest.mark.parametrize("known", [TERM_MAX, TERM_MAX - 1, TERM_KEPT_MAX + 1])
async def test_the_new_term_is_a_possible_one_and_has_others_behind_it(
    tmp_path: Path, name: str, known: int
) -> None:
    cluster = Cluster(tmp_path / "data")
    await cluster.node.start()
    await cluster.create_topic()
    await cluster.append(b"one")
    await cluster.commit(1)
    group = group_of(cluster, name)
    assert group.node is not None
    group.node.raft.term = known
    await cluster.append(b"two")
    await cluster.commit(1)
    await cluster.create_topic("other")
    await cluster.settle()
    directory = copy_of(cluster.directory, "copy")
    group.node.raft.term = group.term
    await cluster.node.stop()
    await raise_terms(directory, group.raft_group, term=TERM_MAX + 1)
    assert len(await mended(directory)) == 1
    assert await mended(directory) == {}
    await goes_on(directory)


async def test_the_term_of_a_checkpoint_is_not_lowered(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "data", Sizes(checkpoint_entries=1))
    await cluster.node.start()
    group = group_of(cluster, "metadata")
    assert group.node is not None
    group.node.raft.term = TERM_MAX
    for number in range(5):
        await cluster.create_topic(f"topic{number}")
        await cluster.settle()
    directory = copy_of(cluster.directory, "copy")
    group.node.raft.term = group.term
    await cluster.node.stop()
    await raise_terms(directory, METADATA, term=TERM_MAX + 1)
    with pytest.raises(FailedPrecondition, match=f"metadata: .* its checkpoint has term {TERM_MAX}"):
        await mended(directory)


async def test_a_directory_without_such_a_term_stays_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    before = sorted((directory / "journal").iterdir())[-1].read_bytes()
    assert await mended(directory) == {}
    assert sorted((directory / "journal").iterdir())[-1].read_bytes() == before


@pytest.mark.slow
async def test_a_node_of_several_is_told_what_to_do_instead(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    survivor = await formed(directory)
    survivor.end()
    await raise_terms(directory)
    with pytest.raises(
        FailedPrecondition, match=r"members are 1, 2, 3, so node 1 cannot mend it alone: .*forget"
    ):
        await mended(directory)
    await goes_on_alone(directory)
    assert verdicts(directory) == []
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic("again")


@pytest.mark.slow
@pytest.mark.parametrize("term", [TERM_MAX, TERM_MAX - 1, TERM_KEPT_MAX + 1])
async def test_a_node_that_goes_on_alone_has_terms_for_its_elections(tmp_path: Path, term: int) -> None:
    directory = tmp_path / "data"
    survivor = await formed(directory)
    survivor.end()
    await raise_terms(directory, term=term)
    await goes_on_alone(directory)
    assert verdicts(directory) == []
    async with Cluster(directory).running() as cluster:
        await cluster.create_topic("again")
        assert max(group.term for group in cluster.node._log.driver.groups.values()) < 20


@pytest.mark.slow
@pytest.mark.parametrize("members", CONFIGURATIONS.values(), ids=CONFIGURATIONS)
@pytest.mark.parametrize("raft_group", [METADATA, PARTITION])
async def test_members_that_no_group_has_are_refused_found_and_mended(
    tmp_path: Path, raft_group: int, members: ConfState
) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    await write_configuration(directory, raft_group, members)
    refusal = rf"raft group {raft_group} cannot be used: its hard state has a configuration that is none: "
    await is_refused_found_and_mended(
        directory, refusal, f"raft group {raft_group}: its hard state has a configuration that is none"
    )


@pytest.mark.slow
@pytest.mark.parametrize("members", NEVER_THERE.values(), ids=NEVER_THERE)
@pytest.mark.parametrize("raft_group", [METADATA, PARTITION])
async def test_members_that_were_never_there_are_refused_found_and_mended(
    tmp_path: Path, raft_group: int, members: ConfState
) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    await write_configuration(directory, raft_group, members)
    belongs = "node 1 belongs to a cluster of several nodes, and cannot be reached by them"
    never = (
        rf"raft group {raft_group} cannot be used: its hard state has node \d as a member, which never was in"
    )
    await is_refused_found_and_mended(
        directory,
        belongs if raft_group == METADATA else never,
        f"raft group {raft_group}: its hard state has node",
    )


async def test_members_and_terms_are_mended_at_once(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    await write_configuration(directory, PARTITION, ConfState())
    await raise_terms(directory)
    await mended(directory)
    await goes_on(directory)


@pytest.mark.slow
async def test_members_are_not_guessed_where_there_were_other_nodes(tmp_path: Path) -> None:
    directory = tmp_path / "data"
    survivor = await formed_with_records(directory, b"a")
    survivor.end()
    await write_configuration(directory, PARTITION, ConfState((1, 1)))
    with pytest.raises(FailedPrecondition, match=r"members are 1, so node 1 cannot mend it alone"):
        await mended(directory)
    await goes_on_alone(directory)
    assert verdicts(directory) == []
    async with Cluster(directory).running() as cluster:
        assert cluster.values() == [b"a"]


@pytest.mark.parametrize("incarnation", [2**32 - 1, 2**32, 2**63])
async def test_a_start_that_the_next_cannot_exceed_is_refused_and_found(
    tmp_path: Path, incarnation: int
) -> None:
    directory = tmp_path / "data"
    await stopped(directory)
    await write_records(directory, (RecordKind.INCARNATION, 0, 0, incarnation, 0, 0, None, b""))
    with pytest.raises(
        CorruptData, match=f"incarnation {incarnation} of the node: the next start is a higher one"
    ):
        await Cluster(directory).node.start()
    [found, *_] = verdicts(directory)
    assert f"incarnation {incarnation} of the node: the next start is a higher one" in found


async def test_what_is_no_data_directory_is_not_mended(tmp_path: Path) -> None:
    with pytest.raises(DataDirectoryError, match="is not the data directory of a node"):
        await mended(tmp_path)
