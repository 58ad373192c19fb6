"""Decisions of the coordinator of consumer groups, where their state group leads. Pure.

    a group whose                                       then
    --------------------------------------------------  --------------------------------------------
    members, topics or partitions are others than those  it gets a target (`sticky_assignor`)
    of its target
    member belongs to a process that has ended, or to    the process is expelled
    one that is silent
    member belongs to a node that was removed            it commits and leaves by itself; it is
                                                         expelled if it does neither for a while

A target carries the generation that it was computed for, and an expulsion the term of the leader
that decided it. So two coordinators do no harm, and a new one goes on where the last one has
stopped: members, generation and owners are state of the group.
"""

from collections.abc import Generator, Mapping

from pixy.cluster.consumer_groups.sticky_assignor import AssignableTopic, assign
from pixy.cluster.state import MemberId, Membership, NodeInfo, Owners, Process, Topic


def needed_target(
    membership: Membership, topics: Mapping[str, Topic]
) -> Generator[None, None, dict[bytes, Owners] | None]:
    """The next target of a consumer group: owners by topic id and partition; None if it has it.
    Suspends after each step, which is one topic's.

    Args:
        topics: by name.
    """
    if not membership.members:
        return None
    subscribers: dict[str, list[MemberId]] = {}
    for member_id, member in membership.members.items():
        for name in member.topics:
            subscribers.setdefault(name, []).append(member_id)
    wanted = [topics[name] for name in sorted(subscribers) if name in topics]
    assignable = []
    for topic in wanted:
        assignable.append(_assignable(topic, subscribers[topic.name], membership))
        yield
    assigned = yield from assign(assignable)
    target = {topic.topic_id: owners for topic, owners in zip(wanted, assigned, strict=True)}
    return None if membership.settled and target == _present_target(membership) else target


def _present_target(membership: Membership) -> dict[bytes, Owners]:
    return {topic_id: of.targets for topic_id, of in membership.topics.items() if any(of.targets)}


def _assignable(topic: Topic, members: list[MemberId], membership: Membership) -> AssignableTopic:
    count, of = len(topic.raft_groups), membership.topics.get(topic.topic_id)
    owners, targets = ((), ()) if of is None else (of.owners, of.targets)
    nobody = (None,) * count
    return AssignableTopic(
        members,
        (*owners, *nobody)[:count],
        (*targets, *nobody)[:count],
        topic.replicas or ((),) * count,
    )


def why_ended(
    process: Process, own: Process, nodes: Mapping[int, NodeInfo], starts: Mapping[int, int]
) -> str:
    """The reason why a process is known to have ended; empty if it may run.

    Args:
        own: this process.
        nodes: as metadata knows them; it may be behind.
        starts: incarnations with which other nodes have come here. Metadata may never have one: of
            a node that its leader refuses, or that refuses its leader.
    """
    if process.node_id == own.node_id:
        return "" if process.incarnation >= own.incarnation else "it has started again"
    node = nodes.get(process.node_id)
    registered = 0 if node is None else node.incarnation
    newest = max(registered, starts.get(process.node_id, 0))
    return "it has started again" if process.incarnation < newest else ""
