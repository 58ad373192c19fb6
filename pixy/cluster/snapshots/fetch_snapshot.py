"""FetchSnapshot (KIP-630, as Kafka ships it): the decisions of both sides. Pure.

A follower that the journal of its leader cannot serve any more pulls a checkpoint file, position by
position.

**The server** answers a request by the first condition that holds:

    condition                                          answer
    -------------------------------------------------  -----------------------------------------
    another cluster id                                 INCONSISTENT_CLUSTER_ID, as a whole
    not exactly one topic and partition, or a limit    INVALID_REQUEST, as a whole
    below 1
    not the name of a state group                      UNKNOWN_TOPIC_OR_PARTITION
    an epoch below that of the group                   FENCED_LEADER_EPOCH
    an epoch above it                                  UNKNOWN_LEADER_EPOCH
    the node does not lead the group                   NOT_LEADER_OR_FOLLOWER
    the node stops                                     BROKER_NOT_AVAILABLE
    the checkpoint is unknown or gone, or is (0, 0)    SNAPSHOT_NOT_FOUND
    a position below 0, or not below the size          POSITION_OUT_OF_RANGE
    none of these                                      a slice, which may end anywhere in a batch
    the file cannot be read                            UNKNOWN_SERVER_ERROR

Kafka differs in two of them by accident: it lets several partitions of one topic pass and fails
without a topic; and it cannot serve a position above 2 GiB.

**The client** is a state machine for one checkpoint (`SnapshotDownload`):

    answer                                             what follows
    -------------------------------------------------  -----------------------------------------
    a slice that continues what is there               `Append`, until `is_complete`
    the checkpoint of this id has another size         `Restart`: another leader's file
    NOT_FOUND, OUT_OF_RANGE, a negative id             `GiveUp`, and the part is of no use
    FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER        `Again`, by then perhaps at another leader
    any other error; no answer; a slice of something   `Again`, a limited number of times without
    else, of nothing, or beyond the size               progress; then `GiveUp`, and the part stays
    another cluster, an invalid request                `GiveUp`
    the complete file is damaged                       `Restart` once, then `GiveUp`

A download survives a restart of the process, a change of the leader and of the term; Kafka's
begins anew.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from pixy.cluster.snapshots.fetch_snapshot_codec import (
    NO_CHECKPOINT,
    CurrentLeader,
    SliceAnswer,
    SliceRequest,
    WantedSlice,
)
from pixy.storage import CheckpointId


class FetchSnapshotError(IntEnum):
    """Kafka's error codes in answers to FetchSnapshot."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    BROKER_NOT_AVAILABLE = 8
    INVALID_REQUEST = 42
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    INCONSISTENT_CLUSTER_ID = 104


_Error = FetchSnapshotError

# --- server ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """Knowledge of the server about one state group.

    Attributes:
        leads: True if this node is the leader.
        leader: the leader as far as this node knows, 0 for none.
        term: the term that this node is in.
        checkpoints: those that can be served.
    """

    leads: bool
    leader: int
    term: int
    checkpoints: Collection[CheckpointId]

    @property
    def current_leader(self) -> CurrentLeader:
        """The same as Kafka says it."""
        return CurrentLeader(self.leader or -1, self.term)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Knowledge of the server.

    Attributes:
        cluster_id: of its cluster.
        stopping: True if it serves nothing more.
        group: the state group that the request names, None if there is none.
    """

    cluster_id: str
    stopping: bool
    group: GroupFacts | None


class Slice(NamedTuple):
    """A part of a checkpoint file."""

    id: CheckpointId
    position: int
    length: int


def find_checkpoint(request: SliceRequest, facts: ServerFacts) -> SliceAnswer | WantedSlice:
    """The checkpoint that a request is about, or the error to answer."""
    wanted, group = request.wanted, facts.group
    if request.cluster_id is not None and request.cluster_id != facts.cluster_id:
        return SliceAnswer(_Error.INCONSISTENT_CLUSTER_ID)
    if wanted is None or request.max_bytes < 1:
        return SliceAnswer(_Error.INVALID_REQUEST)
    if group is None or wanted.partition != 0:
        return SliceAnswer(_Error.UNKNOWN_TOPIC_OR_PARTITION, wanted)
    error = _leader_error(wanted, group, facts)
    if error is _Error.NONE and (wanted.id == NO_CHECKPOINT or wanted.id not in group.checkpoints):
        error = _Error.SNAPSHOT_NOT_FOUND
    return SliceAnswer(error, wanted, leader=group.current_leader) if error else wanted


def _leader_error(wanted: WantedSlice, group: GroupFacts, facts: ServerFacts) -> FetchSnapshotError:
    if wanted.epoch < group.term:
        return _Error.FENCED_LEADER_EPOCH
    if wanted.epoch > group.term:
        return _Error.UNKNOWN_LEADER_EPOCH
    if not group.leads:
        return _Error.NOT_LEADER_OR_FOLLOWER
    return _Error.BROKER_NOT_AVAILABLE if facts.stopping else _Error.NONE


def cut_slice(wanted: WantedSlice, size: int, max_bytes: int) -> Slice | None:
    """The part of a checkpoint to answer with; None if the position is out of range.

    Args:
        size: of the file.
        max_bytes: limit of the follower and of the server, at least 1.
    """
    if not 0 <= wanted.position < size:
        return None
    return Slice(wanted.id, wanted.position, min(max_bytes, size - wanted.position))


# --- client ---------------------------------------------------------------------------------------


class Append(NamedTuple):
    """Write `content` at `position` of the part, whose size is `size`; then ask on."""

    position: int
    content: bytes
    size: int


class Restart(NamedTuple):
    """The part is of no use: ask for the first byte."""

    reason: str


class Again(NamedTuple):
    """Ask once more after a pause, whoever is the leader then."""

    reason: str


class GiveUp(NamedTuple):
    """Fetch no more of this checkpoint.

    Attributes:
        keeps: the part may be of use to a later attempt.
        gone: the leader does not have it, and may have a newer one.
    """

    reason: str
    keeps: bool
    gone: bool = False


Outcome = Append | Restart | Again | GiveUp


class SnapshotDownload:
    """The download of one checkpoint.

    Args:
        id: the checkpoint.
        attempts_max: requests in a row without progress.
        size, position: what an earlier attempt has left: bytes of the whole checkpoint, 0 if they
            are unknown, and bytes that are there.

    Attributes:
        position: bytes that are there. Invariant: at most `size`.
        size: bytes of the whole checkpoint, 0 while unknown.
    """

    def __init__(self, id: CheckpointId, attempts_max: int, *, size: int = 0, position: int = 0) -> None:
        self._id = id
        self._attempts_max = attempts_max
        self.size = size
        self.position = position
        # Requests since the last progress.
        self._attempts = 0
        # True once a complete file was damaged.
        self._was_damaged = False

    @property
    def is_complete(self) -> bool:
        """True if every byte is there: verify and install them."""
        return 0 < self.size == self.position

    def next_slice(self, topic: str, epoch: int) -> WantedSlice:
        """The next request."""
        assert not self.is_complete
        return WantedSlice(topic, 0, epoch, self._id, self.position)

    def take(self, answer: SliceAnswer) -> Outcome:
        """Process an answer to `next_slice`."""
        error = answer.error
        if error in (_Error.SNAPSHOT_NOT_FOUND, _Error.POSITION_OUT_OF_RANGE):
            # KIP-630 says nothing of the latter, and Kafka's follower fails.
            return GiveUp(f"the leader answers {_name(error)}", keeps=False, gone=True)
        if error in (_Error.INCONSISTENT_CLUSTER_ID, _Error.INVALID_REQUEST):
            return GiveUp(f"the leader answers {_name(error)}", keeps=True)
        if error:
            return self.failed(f"the leader answers {_name(error)}{_leader(answer)}")
        if min(answer.id) < 0:
            return GiveUp(
                f"the leader answers with the invalid id {tuple(answer.id)}", keeps=False, gone=True
            )
        return self._take_slice(answer)

    def _take_slice(self, answer: SliceAnswer) -> Outcome:
        end = answer.position + len(answer.content)
        if (answer.id, answer.position) != (self._id, self.position):
            return self.failed(
                f"expected byte {self.position} of {self._id.file_name}, got byte {answer.position} of "
                f"{answer.id.file_name}"
            )
        if not answer.content or end > answer.size:
            return self.failed(f"got bytes {answer.position} to {end} of {answer.size}")
        if self.size not in (0, answer.size):
            return self._restart(f"the file of this leader has {answer.size} bytes, not {self.size}")
        self.size, self.position = answer.size, end
        self._attempts = 0
        return Append(answer.position, answer.content, answer.size)

    def failed(self, reason: str) -> Outcome:
        """There is no answer, or none of use."""
        self._attempts += 1
        if self._attempts >= self._attempts_max:
            return GiveUp(f"{self._attempts} attempts in a row failed, the last one: {reason}", keeps=True)
        return Again(reason)

    def damaged(self, reason: str) -> Outcome:
        """The complete file is damaged, or gone."""
        if self._was_damaged:
            return GiveUp(f"the checkpoint is damaged again: {reason}", keeps=False)
        self._was_damaged = True
        return self._restart(reason)

    def _restart(self, reason: str) -> Outcome:
        self.size = self.position = 0
        failed = self.failed(reason)
        return failed if isinstance(failed, GiveUp) else Restart(reason)

    def check_invariants(self) -> None:
        """Assert the documented invariants."""
        assert 0 <= self.position <= self.size
        assert 0 <= self._attempts <= self._attempts_max


def _name(code: int) -> str:
    return _Error(code).name if code in set(_Error) else f"error {code}"


def _leader(answer: SliceAnswer) -> str:
    return "" if answer.leader is None else f", leader {answer.leader.node_id} in term {answer.leader.epoch}"
