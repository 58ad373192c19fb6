"""The rules that make three nodes one log, each with a way to disable it: the simulator must detect
a violation then, or it is blind.
"""

from collections.abc import Collection
from dataclasses import replace
from math import inf
from typing import Any
from unittest.mock import patch

from pixy.cluster.log import applied_positions, journal_retention, partition_snapshots
from pixy.cluster.log import replica as replicas
from pixy.cluster.log.applied_positions import AppliedPositionWriter
from pixy.cluster.log.checkpoints import Checkpoints
from pixy.cluster.log.incarnation import Incarnation
from pixy.cluster.log.node_log import NodeLog
from pixy.cluster.log.peer_starts import PeerStarts
from pixy.cluster.log.replica import PartitionReplica
from pixy.cluster.replicas import partitions
from pixy.cluster.replicas import state_group_recovery as recovery
from pixy.cluster.snapshots import copy_fetching
from pixy.copies import StagedCopy, copy_download, directory_swap
from pixy.multiraft import Driver, driver, hard_states, proposals
from pixy.multiraft.group_clock import GroupClock
from pixy.multiraft.group_rest import GroupRest
from pixy.multiraft.proposals import Proposals
from pixy.multiraft.raft_storage import RaftStorage
from pixy.multiraft.resting_groups import RestingGroups
from pixy.raft import ConfState, RaftNode, node
from pixy.raft.raft import Raft
from pixy.storage import CheckpointStore, Journal, LogWriter, WriterPace
from pixy.storage.partition.segment import Segment
from tests.sim.cluster import broken
from tests.sim.cluster.faults import FaultKind
from tests.sim.cluster.machine import Machine
from tests.sim.cluster.swarm import CALM, Focus, Swarm
from tests.sim.kit import broken as at_rest
from tests.sim.kit.rules import Rule
from tests.sim.raft.rules import RULES as RAFT_RULES

_CRASHES = (FaultKind.CRASH, FaultKind.CRASH_LEADER, FaultKind.CRASH_AT)
_ELECTIONS = (FaultKind.CRASH_LEADER, FaultKind.ISOLATE_LEADER, FaultKind.TRANSFER, FaultKind.SPLIT)


def plain(swarm: Swarm) -> Swarm:
    """All nodes have the same options, and all partitions get records."""
    return replace(swarm, own_sizes={}, quiet_from_s=inf, days_off=0)


def aimed(*kinds: FaultKind, journal: dict[str, int] | None = None, **sizes: Any) -> Focus:
    """A focus on some kinds of faults, equally often, with these options of the nodes."""

    def focus(swarm: Swarm) -> Swarm:
        changed = replace(swarm.sizes, journal=replace(swarm.sizes.journal, **(journal or {})), **sizes)
        return replace(plain(swarm), faults=dict.fromkeys(kinds, 1), faults_count=14, sizes=changed)

    return focus


def _entry_by_entry(swarm: Swarm) -> Swarm:
    """Stories of figure 8 in which each entry is a message of its own."""
    raft = replace(swarm.sizes.raft, max_size_per_message=0, max_inflight_messages=1)
    return replace(
        plain(swarm),
        sizes=replace(swarm.sizes, raft=raft),
        layout=replace(swarm.layout, conf_state=ConfState((1, 2, 3))),
        weather=replace(CALM, delays_s=(0.01, 0.02)),
        faults={FaultKind.FIGURE_8: 1},
        faults_count=4,
    )


def _late_packets(swarm: Swarm) -> Swarm:
    """Many leaders, and packets that arrive when their sender leads."""
    weather = replace(CALM, late_s=0.5, late=0.15)
    swarm = aimed(FaultKind.TRANSFER, FaultKind.ISOLATE_LEADER)(swarm)
    return replace(swarm, weather=weather, request_s=0.03)


def _at_rest(*kinds: FaultKind) -> Focus:
    """Few requests and short timeouts: partitions rest while faults happen."""

    def focus(swarm: Swarm) -> Swarm:
        swarm = aimed(*kinds)(swarm)
        raft = replace(swarm.sizes.raft, election_tick=4)
        return replace(
            swarm,
            sizes=replace(swarm.sizes, raft=raft),
            layout=replace(swarm.layout, conf_state=ConfState((1, 2, 3))),
            weather=replace(CALM, lost=0.02),
            faults_count=4,
            quiet_from_s=0.5,
            duration_s=14.0,
            request_s=0.6,
        )

    return focus


def _quiet(swarm: Swarm) -> Swarm:
    """A partition without new records, whose leaders change while the others fill the journals; one
    node syncs its segments late.
    """
    swarm = aimed(
        FaultKind.LAGGARD,
        FaultKind.TRANSFER,
        FaultKind.CRASH_LEADER,
        FaultKind.CRASH_ALL,
        journal={"retain_bytes": 0, "file_bytes": 1500, "max_unapplied_bytes": 1 << 20},
    )(swarm)
    late = replace(swarm.sizes, pace=WriterPace(gather_s=0.1, sync_after_s=6.0))
    return replace(
        swarm,
        layout=replace(swarm.layout, conf_state=ConfState((1, 2, 3))),
        own_sizes={3: late},
        quiet_from_s=0.7,
        request_s=0.03,
    )


_behind = aimed(FaultKind.LAGGARD, *_CRASHES, journal={"retain_bytes": 0, "file_bytes": 1500})
"""Replicas that need copies, and processes that end meanwhile."""


def _rule(changes: Collection[Any], seed: int = 1, focus: Focus = plain) -> Rule[Swarm]:
    return Rule(changes, focus, seed)


RULES: dict[str, Rule[Swarm]] = {
    "a leader counts its own entries when they are durable": _rule(
        [patch.object(RaftNode, "append_payload", broken.counted_at_once)], seed=2
    ),
    "an append is durable before it is acknowledged": _rule(
        [patch.object(RaftNode, "work", broken.acknowledged_at_once)], seed=2
    ),
    "a vote is durable before it is answered": _rule(
        [patch.object(RaftNode, "work", broken.voted_at_once)], seed=2
    ),
    "a candidate's term is durable before it asks for votes": _rule(
        [patch.object(RaftNode, "work", broken.asked_for_votes_at_once)], seed=2
    ),
    "only entries of the own term are committed by counting": _rule(
        [patch.object(Raft, "become_leader", broken.lead_all_terms)], seed=7, focus=_entry_by_entry
    ),
    "only committed entries are applied": _rule(
        [patch.object(RaftNode, "own_stored", broken.committed_when_stored)], seed=2
    ),
    "a start takes entries for committed as far as it knows": _rule(
        [
            patch.object(recovery, "recovered_group", broken.all_committed),
            patch.object(partitions, "recovered_group", broken.all_committed),
        ],
        seed=4,
    ),
    "a read is confirmed by a quorum": _rule(
        RAFT_RULES["a read is confirmed by a quorum"].changes, seed=13, focus=aimed(*_ELECTIONS)
    ),
    "a retry has the identity of the first attempt": _rule(
        [patch.object(Proposals, "_retry", broken.retry_as_new)], seed=6, focus=aimed(*_ELECTIONS)
    ),
    "a retry is looked for in the tail": _rule(
        [
            patch.object(proposals, "judge", broken.judge_by_rows),
            patch.object(driver, "judge", broken.judge_by_rows),
        ],
        seed=5,
    ),
    "a retry is looked for in the rows": _rule(
        [
            patch.object(proposals, "judge", broken.judge_by_tail),
            patch.object(driver, "judge", broken.judge_by_tail),
        ],
        seed=5,
    ),
    "a payload that was forwarded is not changed": _rule(
        [patch.object(Proposals, "_retry", broken.retry_in_place)],
        seed=9,
        focus=_late_packets,
    ),
    "an offset is that behind the tail": _rule(
        [patch.object(PartitionReplica, "lead", broken.lead_without_tail)], seed=4, focus=aimed(*_ELECTIONS)
    ),
    "a snapshot has the rows": _rule(
        [patch.object(replicas, "checkpoint_record", broken.without_rows)], seed=2
    ),
    "an applied position has the rows": _rule(
        [patch.object(applied_positions, "_applied_position", broken.position_without_rows)], seed=2
    ),
    "rows end with their node and not with time": _rule(
        [patch.object(GroupClock, "tick", broken.tick_and_forget)], seed=1
    ),
    "a checkpoint is taken between two entries": _rule(
        [patch.object(Checkpoints, "write", broken.write_at_once)], seed=2
    ),
    "the data of a snapshot is durable before the log is reset": _rule(
        [patch.object(Checkpoints, "install", broken.install_at_once)],
        seed=3,
        focus=aimed(FaultKind.LAGGARD, journal={"retain_bytes": 0, "file_bytes": 1500}, interleaves=True),
    ),
    "a start makes the data of a snapshot durable before it resets the log": _rule(
        [
            patch.object(CheckpointStore, "make_durable", lambda _: None),
            # Ends in between are rare.
            patch.object(Machine, "installing", broken.ends_installing),
            patch.object(Machine, "_disk_ended", broken.ends_with_power),
        ],
        seed=6,
        focus=aimed(FaultKind.LAGGARD, *_CRASHES, journal={"retain_bytes": 0, "file_bytes": 1500}),
    ),
    "a log reset leaves no older entry": _rule(
        [patch.object(RaftStorage, "reset", broken.reset_before_tail)],
        seed=6,
        focus=aimed(FaultKind.ISOLATE_LEADER, journal={"retain_bytes": 0, "file_bytes": 1500}),
    ),
    "a log reset outlives its journal file": _rule(
        [patch.object(hard_states, "carried_reset_record", broken.hard_state_again)],
        seed=6,
        focus=aimed(FaultKind.LAGGARD, *_CRASHES, journal={"retain_bytes": 0, "file_bytes": 1500}),
    ),
    "a hard state outlives its journal file": _rule(
        [patch.object(journal_retention, "carry_over", broken.carry_over_reset)], seed=2
    ),
    "an incarnation outlives its journal file": _rule(
        [patch.object(Incarnation, "write", broken.written_once)], seed=2
    ),
    "a flush is durable before it is reported": _rule(
        [patch.object(Journal, "_write", broken.write_without_sync)]
    ),
    "segments are durable before their applied position": _rule(
        [patch.object(Segment, "sync", lambda *_: None)], seed=2, focus=aimed(*_CRASHES)
    ),
    "a position is taken over in one unit with its log reset": _rule(
        [patch.object(NodeLog, "reset_records", broken.position_apart)], seed=1, focus=_quiet
    ),
    "a position is taken over only with all records": _rule(
        [
            patch.object(partition_snapshots, "has_records", lambda *_: True),
            patch.object(partition_snapshots, "is_written", lambda _: True),
            patch.object(partition_snapshots, "position_of", broken.position_of_unsynced),
        ],
        seed=7,
        focus=_quiet,
    ),
    "a copy has the rows": _rule(
        [patch.object(copy_fetching, "copied_position", broken.copied_without_rows)], seed=3, focus=_behind
    ),
    "a copy is installed in one unit with its applied position": _rule(
        [patch.object(NodeLog, "reset_records", broken.copied_position_apart)], seed=3, focus=_behind
    ),
    "a copy is durable before its applied position": _rule(
        [patch.object(StagedCopy, "_sync", broken.copied_unsynced)], seed=5, focus=_behind
    ),
    "the batches of a copy are verified": _rule(
        [patch.object(copy_download, "check_batch", lambda *_: None)],
        seed=31,
        focus=lambda swarm: replace(_behind(swarm), rotten=2),
    ),
    "the manifest of a copy is durable before its applied position": _rule(
        [patch.object(StagedCopy, "_write_manifest", broken.manifest_unsynced)], seed=3, focus=_behind
    ),
    "no applied position is that of files which a copy has replaced": _rule(
        [
            patch.object(AppliedPositionWriter, "_is_outdated", broken.is_of_no_group),
            # A copy begins when everything is written.
            patch.object(LogWriter, "flush", broken.not_flushed),
            patch.object(LogWriter, "forget", lambda *_: None),
        ],
        seed=21,
        focus=_behind,
    ),
    "the files of a copy have their names for good before the replica goes on": _rule(
        [
            patch.object(partitions, "swap_directories", broken.swap_unsynced),
            patch.object(directory_swap, "swap_directories", broken.swap_unsynced),
        ],
        seed=8,
        focus=_behind,
    ),
    "nothing is applied while files are replaced": _rule(
        [patch.object(Driver, "hold", lambda *_: None)], seed=8, focus=_behind
    ),
    "records that a replica keeps are durable before they are part of a copy": _rule(
        [patch.object(Segment, "share", broken.share_unsynced)], seed=3022, focus=_behind
    ),
    "a start finishes the installation of a copy": _rule(
        [patch.object(partitions, "roll_forward", lambda *_: set())], seed=3, focus=_behind
    ),
    "a leader rests only when all others do": _rule(
        [patch.object(node, "all_agree", at_rest.one_agrees)], seed=2, focus=_at_rest(*_CRASHES)
    ),
    "a follower at rest wakes when nothing proves its leader": _rule(
        [
            patch.object(RestingGroups, "heard", at_rest.heard_of_anything),
            patch.object(RestingGroups, "tick", at_rest.tick_for_ever),
            patch.object(GroupRest, "node_changed", lambda *_: None),
        ],
        seed=8,
        focus=_at_rest(FaultKind.CRASH_LEADER),
    ),
    "an older self is refused": _rule(
        [patch.object(PeerStarts, "admit", lambda *_: None)],
        seed=2,
        focus=aimed(FaultKind.OLDER_SELF, FaultKind.BURST),
    ),
}
