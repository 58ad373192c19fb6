"""A node among the others: who belongs to the cluster, what they say to each other, who leads.

Messages and calls between nodes, the first start, elections after a loss, and voters that follow
metadata. Connections themselves are in `pixy.peers`.
"""

from pixy.cluster.peering.applied_elsewhere import AppliedElsewhere, ReplicaQuorums
from pixy.cluster.peering.forwarded_commands import ForwardedCommands
from pixy.cluster.peering.forwarded_proposals import ForwardedProposals
from pixy.cluster.peering.leader_watch import LeaderWatch
from pixy.cluster.peering.node_peers import Handler, NodePeers, OpenChannel, PeerDependencies
from pixy.cluster.peering.partition_proposals import PartitionProposals
from pixy.cluster.peering.peer_messages import PeerMethod
from pixy.cluster.peering.proposal_forwarder import ProposalForwarder
from pixy.cluster.peering.propose_answers import ProposeAnswers
from pixy.cluster.peering.relays import Relays
from pixy.cluster.peering.replica_calls import CallPeer, RemotePartition, ReplicaCalls
from pixy.cluster.peering.replica_departures import ReplicaDepartures
from pixy.cluster.peering.requested_moves import (
    REQUESTED,
    CancelPlan,
    DrainPlan,
    MovePlan,
    MoveRequest,
    MovesPlanned,
    RebalancePlan,
    plan_request,
    view_of,
)
from pixy.cluster.peering.voter_changes import state_group_members

__all__ = [
    "REQUESTED",
    "AppliedElsewhere",
    "CallPeer",
    "CancelPlan",
    "DrainPlan",
    "ForwardedCommands",
    "ForwardedProposals",
    "Handler",
    "LeaderWatch",
    "MovePlan",
    "MoveRequest",
    "MovesPlanned",
    "NodePeers",
    "OpenChannel",
    "PartitionProposals",
    "PeerDependencies",
    "PeerMethod",
    "ProposalForwarder",
    "ProposeAnswers",
    "RebalancePlan",
    "Relays",
    "RemotePartition",
    "ReplicaCalls",
    "ReplicaDepartures",
    "ReplicaQuorums",
    "plan_request",
    "state_group_members",
    "view_of",
]
