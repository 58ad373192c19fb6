"""The nodes of a cluster: a table in `metadata`.

Pure and deterministic. A node is its id and its secret, not its address: whoever comes with both is
the node, wherever it runs. Ids are never reused. A node that has left stays in the table, so that
its data directory is recognized.

    registered    asked to join: may connect, and has replicas of nothing
    started       registered, and has come with its proven secret: has replicas, and gets new ones
    removed       leaves, for good: its raft groups need it until their configurations are without
                  it, so it may start again meanwhile; then it is refused as well
    lost          forgotten with its data: removed, and refused whenever it comes
    draining      registered, and gives its replicas to other nodes: gets no new ones

Whoever may ask to join need not exist. So until its first start a node is not dialled, is placed
nothing on, and is a member of state groups only where it is connected: it needs metadata to start.
`WAITING_MAX` nodes may be on that way, and a cluster has at most `NODES_MAX`. Nodes decide so once
all have `LIMITS_LEVEL`; before, a registered node counts as one that has started.

Each start of a node is a command, before the node takes part in anything:

    the start is                                     then
    -----------------------------------------------  ---------------------------------------------
    newer than the known one                         addresses, release and start are replaced
    the known one: same number, same process         nothing: the command was sent again
    the same number, another process                 refused: a copy of the directory has started
    older                                            refused: the directory is an older copy
    newer by more than `INCARNATION_JUMP_MAX`        refused, once all nodes have level 3: no node
                                                     starts so often; the next start of the node
                                                     that it was said of would be an older one
    of a lost node, or with another secret           refused
    of a release that lacks commands in use          refused

Clusters of releases without this table have node 1 alone: it counts as registered, and its first
start enters it.

The feature level of the cluster is the lowest one of its nodes. A command is proposed only if the
cluster has its level, so that every node can apply it. It never falls, because nodes below it are
refused.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pixy.entry_ids import INCARNATION_JUMP_MAX
from pixy.errors import FailedPrecondition, NotFound, PixyError, ResourceExhausted
from pixy.multiraft import MESSAGE_BYTES_MAX
from pixy.proto.state_pb2 import MetadataCommand, NodeRecord, RegisterNode, RemoveNode, StartNode

FIRST_NODE = 1
"""The node that makes the cluster."""

FEATURE_LEVEL = 12
"""Feature level of this release:

    0  a node alone
    1  several nodes: the table of nodes
    2  protocol 2 of connections between nodes (`pixy.peers.handshake`)
    3  commands with limits of topics, partitions and consumer groups; impossible starts; nodes
       count from their first start on, and are limited in number
    4  placement of replicas by the nodes that are reached; a removal names the nodes that
       stay
    5  commands that name a topic or stages say which one had the name
    6  commands that remove offsets and records for a client
    7  nodes say whether their raft groups need one that leaves; commands that set or remove offsets
       or alter topics say what was seen
    8  nodes give copies of partitions
    9  commands that move replicas between nodes; nodes say when they have applied an entry
    10 groups of Kafka's classic protocol; offsets whose metadata is of another program
    11 idempotent producers: ids, and batches that have one
    12 the topic option cleanup_policy
"""

SECOND_PROTOCOL_LEVEL = 2
"""Once all nodes have it, protocol 1 is spoken no more."""

_NODES = 1
"""First level with the table of nodes, hence of every node in it."""

LIMITS_LEVEL = 3
"""First level at which all nodes judge the limits of commands, and starts of nodes."""

REMOVAL_LEVEL = 4
"""First level at which all nodes check the nodes that a removal leaves."""

PLACEMENT_LEVEL = 4
"""First level at which all nodes place replicas by the nodes that are reached."""

IDENTITY_LEVEL = 5
"""First level at which all nodes look whether a name still belongs to what a command was for."""

REMOVING_LEVEL = 6
"""First level at which all nodes remove offsets and records for a client."""

DEPARTURES_LEVEL = 7
"""First level of a node that can be asked whether its raft groups need one that leaves."""

SEEN_LEVEL = 7
"""First level at which all nodes look whether what a command changes is as it was seen."""

COPIES_LEVEL = 8
"""First level of a node that gives copies of its partitions."""

MOVES_LEVEL = 9
"""First level at which all nodes know the commands that move replicas."""

APPLIED_LEVEL = 9
"""First level of a node that can be asked whether it has applied an entry."""

LEAVING_LEVEL = 9
"""First level at which no node says that a state group needs one that leaves, only a partition."""

CLASSIC_LEVEL = 10
"""First level at which all nodes know groups of Kafka's classic protocol."""

PRODUCERS_LEVEL = 11
"""First level at which all nodes keep tables of idempotent producers."""

POLICY_LEVEL = 12
"""First level at which all nodes keep the records of topics with `cleanup_policy=compact`."""

NODES_MAX = 100
"""Registered nodes of a cluster."""

WAITING_MAX = 8
"""Registered nodes that have never started."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node.

    Attributes:
        secret: 16 random bytes; empty in a data directory of a release without secrets.
        address, grpc_address: where nodes and clients reach it, as "host:port".
        rack: its place, as configured.
        incarnation: number of its newest known start.
        version: the release that it runs.
        removed, lost: see the module.
        process: random bytes of the process of that start.
        feature_level: newest commands that it knows.
        max_message_bytes, largest_message_bytes: its `producer.max_message_bytes` as of that start,
            and the largest of all starts; 0 if its release does not tell.
        draining: see the module.
    """

    node_id: int
    secret: bytes
    address: str
    grpc_address: str
    rack: str
    incarnation: int
    version: str
    removed: bool = False
    process: bytes = b""
    feature_level: int = _NODES
    lost: bool = False
    max_message_bytes: int = 0
    largest_message_bytes: int = 0
    draining: bool = False

    @property
    def has_started(self) -> bool:
        """False for a node that has only asked to join."""
        return self.incarnation > 0 or self.node_id == FIRST_NODE


class NodeTable:
    """All nodes that ever were in the cluster.

    Attributes:
        nodes: by id, those that have left included. Invariant: replaced by each change, never
            changed in place. So are the lists below, which every message between nodes asks for.
        registered: ids of the registered nodes, ascending; those that are down included.
        started: ids of the registered nodes that have started, ascending; at least one.
        feature_level: newest commands that every registered node knows.
        next_node_id: id of the next node. Invariant: above every id ever assigned.
    """

    def __init__(self) -> None:
        self._set({})
        self.next_node_id = FIRST_NODE + 1

    def _set(self, nodes: dict[int, NodeInfo]) -> None:
        ids = [node.node_id for node in nodes.values() if not node.removed]
        registered = sorted(ids if FIRST_NODE in nodes else [FIRST_NODE, *ids])
        # While a checkpoint is restored there may be none yet that is not removed.
        level = min([nodes[id].feature_level if id in nodes else 0 for id in registered], default=0)
        started = [id for id in registered if id not in nodes or nodes[id].has_started]
        self.nodes, self.registered, self.feature_level = nodes, registered, level
        self.started = registered if level < LIMITS_LEVEL else started or registered

    def placeable(self) -> list[int]:
        """Ids of the nodes that get new replicas, ascending; at least one."""
        started = self.started
        staying = [id for id in started if id not in self.nodes or not self.nodes[id].draining]
        return staying or started

    def waiting(self) -> list[int]:
        """Ids of the registered nodes that have never started, ascending."""
        return sorted({*self.registered} - {*self.started})

    @property
    def largest_message_bytes(self) -> int:
        """Largest `producer.max_message_bytes` that a node ever had, 0 if none has told."""
        return max((node.largest_message_bytes for node in self.nodes.values()), default=0)

    def add_first(self, record: NodeRecord) -> None:
        """Enter the node that makes the cluster."""
        self._put(node_of(record))

    def judge(self, command: RegisterNode) -> int | PixyError | None:
        """Id of the node if it is registered already, or why it cannot be; None if it can."""
        if not command.secret:
            return FailedPrecondition("a node without a secret cannot join")
        known = next(
            (node for node in self.nodes.values() if hmac.compare_digest(node.secret, command.secret)), None
        )
        if known is not None and known.removed:
            return FailedPrecondition(why_left(known.node_id))
        if known is not None and command.incarnation <= known.incarnation:
            return known.node_id
        refusal = self._refusal_of_level(command) or self._refusal_of_jump(known, command)
        return self._refusal_of_number() if refusal is None and known is None else refusal

    def register(self, command: RegisterNode) -> int | PixyError:
        """Enter a new node; returns its id."""
        judged = self.judge(command)
        if judged is not None:
            return judged
        known = (each.node_id for each in self.nodes.values() if each.secret == command.secret)
        node_id = next(known, self.next_node_id)
        self._put(_started(node_id, command))
        self._drop_lost()
        return node_id

    def _refusal_of_number(self) -> PixyError | None:
        """Reason to refuse one more node, None if there may be one."""
        if self.feature_level < LIMITS_LEVEL:
            return None
        nodes, waiting = len(self.registered), len(self.waiting())
        if nodes >= NODES_MAX:
            return ResourceExhausted(f"the cluster has {nodes} nodes, {NODES_MAX} are allowed").at_limit(
                "nodes"
            )
        if waiting >= WAITING_MAX:
            return ResourceExhausted(
                f"{waiting} nodes have joined and not started yet, {WAITING_MAX} are allowed"
            ).at_limit("nodes")
        return None

    def _drop_lost(self) -> None:
        """Keep no more than `NODES_MAX` nodes that were given up before they had started."""
        if self.feature_level >= LIMITS_LEVEL:
            lost = sorted(node.node_id for node in self.nodes.values() if node.lost and not node.has_started)
            dropped = {*lost[: max(0, len(lost) - NODES_MAX)]}
            self._set({id: node for id, node in self.nodes.items() if id not in dropped})

    def start(self, command: StartNode) -> PixyError | None:
        """Note the start of a node; returns the reason if it is refused."""
        known = self.nodes.get(command.node_id)
        if known is None and command.node_id != FIRST_NODE:
            return FailedPrecondition(f"node {command.node_id} is unknown in this cluster")
        if known is not None:
            reason = _why_refused(known, command)
            if reason is not None:
                return FailedPrecondition(reason)
            if command.incarnation == known.incarnation:
                return None
        refusal = self._refusal_of_level(command) or self._refusal_of_jump(known, command)
        if refusal is None:
            size = min(command.max_message_bytes, MESSAGE_BYTES_MAX)
            started = replace(
                _started(command.node_id, command),
                removed=known is not None and known.removed,
                draining=known is not None and known.draining,
                max_message_bytes=size,
                largest_message_bytes=max(size, 0 if known is None else known.largest_message_bytes),
            )
            self._put(started)
        return refusal

    def leaving(self, node_id: int) -> NodeInfo | PixyError:
        """The node that is to leave, or is removed; or the reason why it cannot leave."""
        node, registered = self.nodes.get(node_id), self.registered
        if node_id in registered and self.started == [node_id]:
            return FailedPrecondition(f"node {node_id} is the only node of its cluster")
        if node is None:
            return NotFound(f"no node {node_id}; nodes are {', '.join(map(str, registered))}")
        return node

    def remove(self, node: NodeInfo, *, lost: bool) -> NodeInfo:
        """Mark a node as removed, or lost; returns it."""
        gone = replace(node, removed=True, lost=lost)
        self._put(gone)
        return gone

    def drain(self, node_id: int, *, draining: bool) -> PixyError | None:
        """Have a node give its replicas away, or no longer."""
        node = self.nodes.get(node_id)
        if node is None or node.removed:
            nodes = ", ".join(map(str, self.registered))
            return NotFound(f"no node {node_id} that stays; nodes are {nodes}")
        if node.draining != draining:
            self._put(replace(node, draining=draining))
        return None

    def _refusal_of_level(self, command: RegisterNode | StartNode) -> PixyError | None:
        level = max(command.feature_level, _NODES)
        if level >= self.feature_level:
            return None
        return FailedPrecondition(
            f"release {command.version} has feature level {level}, the cluster has {self.feature_level}: it needs a "
            "newer release"
        )

    def _refusal_of_jump(self, known: NodeInfo | None, command: RegisterNode | StartNode) -> PixyError | None:
        if self.feature_level < LIMITS_LEVEL:
            return None  # nodes of earlier releases take it, and have to have the same state
        highest = INCARNATION_JUMP_MAX + (0 if known is None else known.incarnation)
        if command.incarnation <= highest:
            return None
        return FailedPrecondition(
            f"a node comes with start {command.incarnation}: it does not get beyond start {highest} meanwhile"
        )

    def _put(self, node: NodeInfo) -> None:
        self._set({**self.nodes, node.node_id: node})
        self.next_node_id = max(self.next_node_id, node.node_id + 1)

    # --- checkpoints ------------------------------------------------------------------------------

    def restore(self, record: NodeRecord) -> None:
        """Add a node of a checkpoint."""
        self._put(node_of(record))


def removal(node_id: int, staying: Iterable[int], feature_level: int) -> MetadataCommand:
    """The command that removes a node.

    Args:
        staying: the nodes that can do without it, as was checked; see `RemoveNode`.
        feature_level: of the cluster. A node below `REMOVAL_LEVEL` would not check them, and one
            below `MOVES_LEVEL` not move replicas: they would get other states.
    """
    command = RemoveNode(
        node_id=node_id,
        staying=staying if feature_level >= REMOVAL_LEVEL else (),
        moves_replicas=feature_level >= MOVES_LEVEL,
    )
    return MetadataCommand(remove_node=command)


def node_record(node: NodeInfo) -> NodeRecord:
    """A node as a message."""
    return NodeRecord(
        node_id=node.node_id,
        secret=node.secret,
        address=node.address,
        grpc_address=node.grpc_address,
        rack=node.rack,
        incarnation=node.incarnation,
        process=node.process,
        version=node.version,
        feature_level=node.feature_level,
        removed=node.removed,
        lost=node.lost,
        max_message_bytes=node.max_message_bytes,
        largest_message_bytes=node.largest_message_bytes,
        draining=node.draining,
    )


def node_of(record: NodeRecord) -> NodeInfo:
    """The node of a message."""
    return NodeInfo(
        record.node_id,
        record.secret,
        record.address,
        record.grpc_address,
        record.rack,
        record.incarnation,
        record.version,
        record.removed,
        record.process,
        max(record.feature_level, _NODES),
        record.lost,
        record.max_message_bytes,
        record.largest_message_bytes,
        record.draining,
    )


def _started(node_id: int, command: RegisterNode | StartNode) -> NodeInfo:
    return NodeInfo(
        node_id,
        command.secret,
        command.address,
        command.grpc_address,
        command.rack,
        command.incarnation,
        command.version,
        process=command.process,
        feature_level=max(command.feature_level, _NODES),
    )


def _why_refused(known: NodeInfo, command: StartNode) -> str | None:
    """Reason to refuse a start of a node that is known, None if there is none."""
    if known.lost:
        return why_left(known.node_id)
    # A directory of a release without secrets gets one with its next start.
    if known.secret and not hmac.compare_digest(known.secret, command.secret):
        return other_secret(known)
    return why_older(known, command.incarnation, command.process)


def other_secret(node: NodeInfo) -> str:
    """Reason to refuse a node that comes with another secret than it was registered with."""
    return f"node {node.node_id} comes with another secret: two nodes have its id"


def why_older(known: NodeInfo, incarnation: int, process: bytes) -> str | None:
    """Reason to refuse a start of a node as an older one than the newest that is known."""
    if (incarnation, process) == (known.incarnation, known.process) or incarnation > known.incarnation:
        return None
    return (
        f"node {known.node_id} comes with start {incarnation}, but has been here with start {known.incarnation}: its data directory is "
        "an older copy, or is used twice; forget the node and let it join as a new one, with an empty directory"
    )


def why_left(node_id: int) -> str:
    """Reason to refuse a node that has left the cluster."""
    return f"node {node_id} has left the cluster: with an empty data directory it can join as a new one"
