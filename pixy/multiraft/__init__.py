"""Many raft groups in one process: one driver, one journal, one clock for all of them.

It brings proposals through, recognizes repeated ones, confirms reads, takes snapshots over and lets
idle groups rest. It knows neither topics nor commands, and never sends anything by itself: what a
node does for it is in `DriverHooks`.
"""

from pixy.multiraft.dedup_table import (
    WINDOW,
    DedupSnapshot,
    DedupTable,
    DedupVerdict,
    error_text,
    stored_error,
)
from pixy.multiraft.departed_groups import DepartedGroups
from pixy.multiraft.driver import Driver
from pixy.multiraft.driver_options import (
    CACHE_BYTES,
    COMMIT_DELAY_S,
    RAFT_CONFIG,
    DriverHooks,
    DriverOptions,
    DriverPeers,
)
from pixy.multiraft.entry_limits import MESSAGE_BYTES_MAX, entry_bytes_max, frame_bytes_max
from pixy.multiraft.group_recovery import continues, entry_of, found_state, recovered_group
from pixy.multiraft.group_rest import RestHooks
from pixy.multiraft.group_states import (
    checkpoint_record,
    conf_state_of,
    hard_state_of,
    hard_state_record,
    reset_record,
    split_checkpoint,
)
from pixy.multiraft.hard_states import carry_over
from pixy.multiraft.impossible_states import (
    ADVICE,
    FoundState,
    is_blank,
    why_impossible,
    why_never_a_member,
    why_no_configuration,
)
from pixy.multiraft.proposal_waiters import LeadershipLost
from pixy.multiraft.proposals import NEVER, Done, Forwarded, Proposals, Proposer, Repeated, Sequences, judge
from pixy.multiraft.raft_group import FIRST_PARTITION_GROUP, Apply, RaftGroup, replicas_in_sync
from pixy.multiraft.raft_storage import RaftStorage, WantedEntries
from pixy.multiraft.read_batcher import ReadBatcher
from pixy.multiraft.resting_groups import RestClaim
from pixy.multiraft.snapshots import Snapshots

__all__ = [
    "ADVICE",
    "CACHE_BYTES",
    "COMMIT_DELAY_S",
    "FIRST_PARTITION_GROUP",
    "MESSAGE_BYTES_MAX",
    "NEVER",
    "RAFT_CONFIG",
    "WINDOW",
    "Apply",
    "DedupSnapshot",
    "DedupTable",
    "DedupVerdict",
    "DepartedGroups",
    "Done",
    "Driver",
    "DriverHooks",
    "DriverOptions",
    "DriverPeers",
    "Forwarded",
    "FoundState",
    "LeadershipLost",
    "Proposals",
    "Proposer",
    "RaftGroup",
    "RaftStorage",
    "ReadBatcher",
    "Repeated",
    "RestClaim",
    "RestHooks",
    "Sequences",
    "Snapshots",
    "WantedEntries",
    "carry_over",
    "checkpoint_record",
    "conf_state_of",
    "continues",
    "entry_bytes_max",
    "entry_of",
    "error_text",
    "found_state",
    "frame_bytes_max",
    "hard_state_of",
    "hard_state_record",
    "is_blank",
    "judge",
    "recovered_group",
    "replicas_in_sync",
    "reset_record",
    "split_checkpoint",
    "stored_error",
    "why_impossible",
    "why_never_a_member",
    "why_no_configuration",
]
