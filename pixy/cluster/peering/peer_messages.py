"""Messages between the nodes of a cluster, as payloads of `pixy.peers`.

Raft messages and forwarded proposals are packed with `struct`, not protobuf: every batch of three
nodes passes here six times, and objects of a generated class for each message and entry take three
times as long. All numbers are little-endian.

    RAFT: newest durable flush of the sender, on which its messages rest (8 bytes); messages of any
    number of raft groups, back to back

    byte  size  field
    0     8     raft group
    8     1     type, as `MessageType`
    9     1     flags: 1 reject, 2 has a snapshot
    10    2     length of the context
    12    4     number of entries
    16    48    term, log term, index, commit, 0, reject hint: 8 bytes each
    64          context
                snapshot, if there is one: length (4 bytes), raftpb's Snapshot
                entries; their indexes follow `index` in ascending order

    entry

    byte  size  field
    0     8     term
    8     1     type, as `RaftEntryType`
    9     2     kind
    11    4     proposal: node id, 0 for none
    15    4     incarnation
    19    8     sequence
    27    4     length of the payload
    31          payload

    PROPOSALS: proposals for raft groups that the receiver leads, back to back

    byte  size  field
    0     8     raft group
    8     2     kind
    10    4     node id
    14    4     incarnation
    18    8     sequence
    26    8     sequence of the proposal in flight before it, 0 for none
    34    4     length of the payload
    38          payload

    BEAT: start, newest durable flush, clock (8 bytes each); ids of the nodes that the sender has a
    connection to (4 bytes each), `NODES_MAX` of them at most

    REFUSALS: proposals of the receiver that the sender, which leads their raft groups, has refused,
    back to back

    byte  size  field
    0     8     raft group
    8     8     term of the sender's leadership
    16    4     incarnation
    20    8     sequence
    28    2     length of the reason
    30          reason, UTF-8, `_REASON_BYTES_MAX` at most

    OLDER_SELVES: `state.NodeStarts`, newest known starts of the nodes that the sender refuses as
    older selves; with each beat, if there are some

    CLAIM: number and digest of the raft groups that rest with the receiver under the lead of the
    sender (8 bytes each), see `multiraft/resting_groups`

    STEADY_TIME: `NodeTime.steady_ms` of the sender (8 bytes); before each beat, once it is known. A
    release that does not know it drops it

    RELAYED: `node_calls.Relayed`, with the kind and the payload of another message

A message whose lengths do not fit raises `MalformedMessage`, and so does one that no correct node
sends, whatever the state of the receiver: the frame around it has a checksum (`pixy.peers`), so
that is a fault of the sender.

    field                            is
    -------------------------------  ---------------------------------------------------------------
    type                             one that nodes send to each other
    term                             at least 1; 0 in READ_INDEX
    terms                            at most `TERM_MAX`, those of entries and snapshots included
    indexes, hints                   at most `INDEX_MAX`, those of snapshots included
    start                            1 to `INCARNATION_MAX`
    flush                            at most `FLUSH_MAX`
    clock, steady time               at most 2^53
    entries                          in APP, READ_INDEX and READ_INDEX_RESP; exactly one in the
                                     latter two. In APP their terms never decrease, from `log_term`
                                     up to the message's
    kind of an entry                 an `EntryType` of an application; EMPTY if Raft's type says
                                     that it changes the configuration
    sequence of a proposal           1 to `INDEX_MAX`
    snapshot                         in SNAP alone, with a position and a possible configuration

What depends on the state of the receiver is checked before the step (`pixy.raft.plausibility`).
What a payload means, and if it can be decoded, is for whoever proposes or applies it
(`entry_contents`): a leader has to bring on what is in its log.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from pixy.cluster.state import NODES_MAX
from pixy.entry_ids import FLUSH_MAX, INCARNATION_MAX, INDEX_MAX, TERM_MAX, LogPosition, ProposalId
from pixy.multiraft import Forwarded, RestClaim
from pixy.raft import Entry, MalformedMessage, Message, MessageType, RaftEntryType, Snapshot
from pixy.raft.conf_change import check_configuration
from pixy.raft.node import is_local_message
from pixy.raft.wire import decode_snapshot, encode_snapshot
from pixy.storage import EntryType


class MessageKind(IntEnum):
    """Kinds of messages without an answer."""

    RAFT = 1
    PROPOSALS = 2
    BEAT = 3
    RELAYED = 4
    REFUSALS = 5
    OLDER_SELVES = 6
    CLAIM = 7
    STEADY_TIME = 8


class PeerMethod(IntEnum):
    """Methods of calls. Their payloads are messages of `node_calls.proto`; of CONSUME, those of the
    layer above.
    """

    JOIN = 1
    FETCH_SNAPSHOT = 2
    PROPOSE = 3
    FETCH = 4
    OFFSETS = 5
    STATUS = 6
    LEADERS = 7
    CONSUME = 8
    STAGED = 9
    RELAY = 10
    PUT_PIECES = 11
    GET_PIECE = 12
    GIVE_UP = 13
    NODES = 14
    IS_MEMBER = 15
    BEGIN_COPY = 16
    CHECK_COPY = 17
    FETCH_COPY = 18
    END_COPY = 19
    APPLIED = 20
    BROKER = 21


class Beat(NamedTuple):
    """Sign of life of a node, twice a second.

    Attributes:
        incarnation: of its start.
        flush_number: newest durable flush of its journal.
        wall_ms: its clock.
        reaches: the nodes that it has a connection to.
    """

    incarnation: int
    flush_number: int
    wall_ms: int
    reaches: tuple[int, ...] = ()


class RefusedProposal(NamedTuple):
    """A proposal that the leader of its raft group has refused.

    Attributes:
        term: of its leadership.
        proposal: as it was proposed.
        reason: for the caller.
    """

    raft_group: int
    term: int
    proposal: ProposalId
    reason: str


_MESSAGE = struct.Struct("<QBBHI4Q8xQ")
_ENTRY = struct.Struct("<QBHIIQI")
_PROPOSAL = struct.Struct("<QHIIQQI")
_REFUSAL = struct.Struct("<QQIQH")
_REASON_BYTES_MAX = 1000
_BEAT = struct.Struct("<QQQ")
_CLAIM = struct.Struct("<QQ")
_STEADY_TIME = struct.Struct("<Q")
_LENGTH = struct.Struct("<I")
_NODE_ID_BYTES = 4
_WALL_MS_MAX = 2**53
"""Largest clock, in the year 287,000: differences of clocks have 64 bits in the status."""
_FLUSH_NUMBER = struct.Struct("<Q")
_REJECT, _HAS_SNAPSHOT = 1, 2

_MESSAGE_TYPES = {
    kind.value: kind
    for kind in MessageType
    if not is_local_message(kind)
    and kind not in (MessageType.PROP, MessageType.FORGET_LEADER, MessageType.TRANSFER_LEADER)
}
"""Messages between nodes; the others never leave one. Proposals have a message of their own."""
_RAFT_ENTRY_TYPES = {kind.value: kind for kind in RaftEntryType}
_PROPOSED = frozenset(EntryType) - {EntryType.CONF_CHANGE, EntryType.CONF_CHANGE_V2}
"""Kinds of entries of an application, the empty one of a leader included."""
_FORWARDED = {kind.value: kind for kind in _PROPOSED}
_NORMAL = RaftEntryType.NORMAL
_APP, _SNAP = MessageType.APP.value, MessageType.SNAP.value
_READS = (MessageType.READ_INDEX.value, MessageType.READ_INDEX_RESP.value)


def encode_raft(messages: Sequence[tuple[int, Message]], flush_number: int) -> list[bytes | bytearray]:
    """Encode Raft messages, each with its raft group, behind the sender's newest durable flush;
    returns the parts of one payload.
    """
    parts: list[bytes | bytearray] = [_FLUSH_NUMBER.pack(flush_number)]
    for raft_group, message in messages:
        entries, snapshot, context = message.entries, message.snapshot, message.context
        flags = (_REJECT if message.reject else 0) | (0 if snapshot is None else _HAS_SNAPSHOT)
        parts.append(
            _MESSAGE.pack(
                raft_group,
                message.type,
                flags,
                len(context),
                len(entries),
                message.term,
                message.log_term,
                message.index,
                message.commit,
                message.reject_hint,
            )
        )
        if context:
            parts.append(context)
        if snapshot is not None:
            encoded = encode_snapshot(snapshot)
            parts += (_LENGTH.pack(len(encoded)), encoded)
        for entry in entries:
            node_id, incarnation, sequence = entry.proposal or (0, 0, 0)
            payload = entry.data
            parts.append(
                _ENTRY.pack(entry.term, entry.type, entry.kind, node_id, incarnation, sequence, len(payload))
            )
            if payload:
                parts.append(payload)
    return parts


def flush_number_of(payload: bytes | memoryview) -> int:
    """Newest durable flush of the sender of Raft messages.

    Raises:
        MalformedMessage: the payload is too short, or no node has that flush.
    """
    if len(payload) < _FLUSH_NUMBER.size:
        raise MalformedMessage(f"Raft messages in a payload of {len(payload)} bytes")
    number: int = _FLUSH_NUMBER.unpack_from(payload)[0]
    if number > FLUSH_MAX:
        raise MalformedMessage(f"Raft messages behind flush {number}, at most {FLUSH_MAX}")
    return number


def decode_raft(payload: bytes | memoryview, sender: int, to: int) -> Iterator[tuple[int, Message]]:
    """Decode Raft messages, each with its raft group.

    Raises:
        MalformedMessage: a length or a type is wrong; the messages before it were returned.
    """
    view, at, end = memoryview(payload), _FLUSH_NUMBER.size, len(payload)
    try:
        while at < end:
            raft_group, kind, flags, context_size, count, term, log_term, index, commit, hint = (
                _MESSAGE.unpack_from(view, at)
            )
            at += _MESSAGE.size
            if (index | commit | hint) > INDEX_MAX or (term | log_term) > TERM_MAX or not term:
                _check_numbers(kind, (term, log_term), (index, commit, hint))
            context = bytes(view[at : at + context_size]) if context_size else b""
            at += context_size
            snapshot = None
            if flags & _HAS_SNAPSHOT:
                (size,) = _LENGTH.unpack_from(view, at)
                at += _LENGTH.size
                snapshot = decode_snapshot(bytes(view[at : at + size]))
                at += size
            if kind == _SNAP or snapshot is not None:
                _check_snapshot(kind, term, snapshot)
            entries: list[Entry] = []
            if count:
                entries, at = _decode_entries(view, at, index, count)
            if kind == _APP:
                if entries and (entries[0].term < log_term or entries[-1].term > term):
                    terms = f"{entries[0].term} to {entries[-1].term}"
                    raise MalformedMessage(
                        f"entries of terms {terms} behind {log_term} in an append of {term}"
                    )
            elif count or kind in _READS:
                _check_other_entries(kind, count)
            if at > end:
                raise MalformedMessage(f"a message of {at} bytes in a payload of {end}")
            yield (
                raft_group,
                Message(
                    _MESSAGE_TYPES[kind],
                    to,
                    sender,
                    term,
                    log_term,
                    index,
                    entries,
                    commit,
                    snapshot,
                    bool(flags & _REJECT),
                    hint,
                    context,
                ),
            )
    except (struct.error, KeyError) as error:
        raise MalformedMessage(f"a malformed message at byte {at} of {end}: {error!r}") from error


def _check_numbers(kind: int, terms: tuple[int, int], numbers: tuple[int, ...]) -> None:
    """Check terms and indexes of a message."""
    if max(terms) > TERM_MAX:
        raise MalformedMessage(f"term {max(terms)} in a message, at most {TERM_MAX} is possible")
    if max(numbers) > INDEX_MAX:
        raise MalformedMessage(f"number {max(numbers)} in a message, at most {INDEX_MAX} is possible")
    if kind != MessageType.READ_INDEX:
        raise MalformedMessage(f"a message of type {kind} without a term")


def _check_snapshot(kind: int, term: int, snapshot: Snapshot | None) -> None:
    if kind != _SNAP or snapshot is None:
        raise MalformedMessage(f"a message of type {kind} with snapshot {snapshot}")
    if not (0 < snapshot.index <= INDEX_MAX and 0 < snapshot.term <= term):
        raise MalformedMessage(
            f"a snapshot at {snapshot.term}/{snapshot.index} in a message of term {term}, indexes go up to {INDEX_MAX}"
        )
    check_configuration(snapshot.conf_state)


def _check_other_entries(kind: int, count: int) -> None:
    """Check the number of entries in a message that appends none."""
    if count != (1 if kind in _READS else 0):
        raise MalformedMessage(f"a message of type {kind} with {count} entries")


def _decode_entries(view: memoryview, at: int, index: int, count: int) -> tuple[list[Entry], int]:
    """Entries of a message, and the byte behind them."""
    entries = []
    end, newest = len(view), 0
    if index + count > INDEX_MAX:
        raise MalformedMessage(f"{count} entries behind index {index}, indexes go up to {INDEX_MAX}")
    unpack, header = _ENTRY.unpack_from, _ENTRY.size
    for _ in range(count):
        index += 1
        term, kind, payload_kind, node_id, incarnation, sequence, size = unpack(view, at)
        begin = at + header
        at = begin + size
        if at > end:
            raise MalformedMessage(f"an entry up to byte {at} in a payload of {end}")
        if term < newest or kind or payload_kind not in _PROPOSED or sequence > INDEX_MAX:
            _check_entry(LogPosition(term, index), newest, kind, payload_kind, sequence)
        newest = term
        entries.append(
            Entry(
                term,
                index,
                _RAFT_ENTRY_TYPES[kind] if kind else _NORMAL,
                bytes(view[begin:at]),
                payload_kind,
                ProposalId(node_id, incarnation, sequence) if node_id else None,
            )
        )
    return entries, at


def _check_entry(entry: LogPosition, newest: int, kind: int, payload_kind: int, sequence: int) -> None:
    """Check an entry behind one of term `newest`."""
    term, index = entry
    if term < newest:
        raise MalformedMessage(f"entry {index} of term {term} behind one of term {newest}")
    if payload_kind not in _PROPOSED or (kind and payload_kind):
        raise MalformedMessage(f"entry {index} has type {kind} and kind {payload_kind}")
    if sequence > INDEX_MAX:
        raise MalformedMessage(f"entry {index} has the sequence {sequence}, at most {INDEX_MAX}")


def encode_proposal(forwarded: Forwarded) -> tuple[bytes, bytes | bytearray]:
    """Encode a proposal; returns its parts."""
    raft_group, kind, payload, proposal, after = forwarded
    return _PROPOSAL.pack(raft_group, kind, *proposal, after, len(payload)), payload


def decode_proposals(payload: bytes | memoryview, sender: int) -> Iterator[Forwarded]:
    """Decode forwarded proposals.

    Raises:
        MalformedMessage: a length or a kind is wrong, or it is the proposal of another node than
            `sender`; the proposals before it were returned.
    """
    view, at, end = memoryview(payload), 0, len(payload)
    try:
        while at < end:
            raft_group, kind, node_id, incarnation, sequence, after, size = _PROPOSAL.unpack_from(view, at)
            begin = at + _PROPOSAL.size
            at = begin + size
            if at > end:
                raise MalformedMessage(f"a proposal up to byte {at} in a payload of {end}")
            proposal = ProposalId(node_id, incarnation, sequence)
            # `ProposalId.is_possible`, inlined.
            if node_id != sender or not 0 < sequence <= INDEX_MAX or after > INDEX_MAX:
                raise MalformedMessage(f"{proposal} behind {after} in a message of node {sender}")
            yield Forwarded(raft_group, _FORWARDED[kind], bytes(view[begin:at]), proposal, after)
    except (struct.error, KeyError) as error:
        raise MalformedMessage(f"a malformed proposal at byte {at} of {end}: {error!r}") from error


def encode_refusal(refusal: RefusedProposal) -> bytes:
    """Encode a refusal; a reason that is too long is cut off."""
    raft_group, term, proposal, reason = refusal
    text = reason.encode("utf-8", "replace")[:_REASON_BYTES_MAX]
    head = _REFUSAL.pack(raft_group, term, proposal.incarnation, proposal.sequence, len(text))
    return head + text


def decode_refusals(payload: bytes | memoryview, node_id: int) -> Iterator[RefusedProposal]:
    """Decode refusals of proposals of this node.

    Raises:
        MalformedMessage: a length is wrong; the refusals before it were returned.
    """
    view, at, end = memoryview(payload), 0, len(payload)
    try:
        while at < end:
            raft_group, term, incarnation, sequence, size = _REFUSAL.unpack_from(view, at)
            begin = at + _REFUSAL.size
            at = begin + size
            if at > end or size > _REASON_BYTES_MAX:
                raise MalformedMessage(f"a refusal up to byte {at} in a payload of {end}")
            reason = bytes(view[begin:at]).decode("utf-8", "replace")
            yield RefusedProposal(raft_group, term, ProposalId(node_id, incarnation, sequence), reason)
    except struct.error as error:
        raise MalformedMessage(f"a malformed refusal at byte {at} of {end}: {error!r}") from error


def encode_beat(beat: Beat) -> bytes:
    """Encode a beat, with `NODES_MAX` ids at most."""
    *head, reaches = beat
    reaches = reaches[:NODES_MAX]
    return _BEAT.pack(*head) + struct.pack(f"<{len(reaches)}I", *reaches)


def decode_beat(payload: bytes | memoryview) -> Beat:
    """Raises MalformedMessage if these bytes are not a beat."""
    if len(payload) > _BEAT.size + NODES_MAX * _NODE_ID_BYTES:
        raise MalformedMessage(f"a beat of {len(payload)} bytes, at most {NODES_MAX} ids are possible")
    try:
        incarnation, flush_number, wall_ms = _BEAT.unpack_from(payload)
        count = (len(payload) - _BEAT.size) // _NODE_ID_BYTES
        reaches = struct.unpack(f"<{count}I", payload[_BEAT.size :])
    except struct.error as error:
        raise MalformedMessage(f"{len(payload)} bytes are not a beat") from error
    if not (0 < incarnation <= INCARNATION_MAX and flush_number <= FLUSH_MAX and wall_ms <= _WALL_MS_MAX):
        raise MalformedMessage(
            f"a beat of start {incarnation} with flush {flush_number} at {wall_ms} ms; at most {INCARNATION_MAX}, "
            f"{FLUSH_MAX} and {_WALL_MS_MAX}"
        )
    return Beat(incarnation, flush_number, wall_ms, reaches)


def encode_claim(claim: RestClaim) -> bytes:
    """Encode a claim about groups at rest."""
    return _CLAIM.pack(*claim)


def decode_claim(payload: bytes | memoryview) -> RestClaim:
    """Raises MalformedMessage if these bytes are not a claim."""
    if len(payload) != _CLAIM.size:
        raise MalformedMessage(f"{len(payload)} bytes are not a claim of groups at rest")
    return RestClaim(*_CLAIM.unpack(payload))


def encode_steady_time(steady_ms: int) -> bytes:
    """Encode the time that a node measures by."""
    return _STEADY_TIME.pack(steady_ms)


def decode_steady_time(payload: bytes | memoryview) -> int:
    """Raises MalformedMessage if these bytes are no time of a node."""
    if len(payload) != _STEADY_TIME.size:
        raise MalformedMessage(f"{len(payload)} bytes are not a steady time")
    (steady_ms,) = _STEADY_TIME.unpack(payload)
    if steady_ms > _WALL_MS_MAX:
        raise MalformedMessage(f"a steady time of {steady_ms} ms; at most {_WALL_MS_MAX}")
    return int(steady_ms)
