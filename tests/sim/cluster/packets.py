"""Packets that nodes send each other beyond Raft's messages."""

from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from pixy.cluster.peering.peer_messages import decode_raft, encode_raft
from pixy.cluster.snapshots import CopyMethod
from pixy.entry_ids import ProposalId
from pixy.multiraft.resting_groups import RestClaim
from pixy.raft import Entry, Message
from pixy.raft.text import message_type_name
from pixy.storage import EntryType
from tests.sim.kit.failure import require

_ANY_GROUP = 1


class RaftMessages(NamedTuple):
    """Messages of the Raft core, each with its raft group."""

    messages: Sequence[tuple[int, Message]]

    def __str__(self) -> str:
        return ", ".join(f"{group} {_brief(message)}" for group, message in self.messages)


class ForwardedProposal(NamedTuple):
    """A proposal for the leader of a raft group.

    Attributes:
        payload: the one of the sender, which must not change on its way.
        checksum: of the payload when it was sent.
    """

    raft_group: int
    kind: EntryType
    payload: bytes | bytearray
    proposal: ProposalId
    after: int
    checksum: int

    def received(self) -> bytes:
        """The payload as the receiver gets it."""
        require(crc32(self.payload) == self.checksum, f"{self} has changed on its way")
        return bytes(self.payload)

    def __str__(self) -> str:
        return f"{self.raft_group} forwards {self.proposal}, {len(self.payload)} bytes"


class SnapshotReport(NamedTuple):
    """A follower tells a leader that it has fetched a snapshot, or could not."""

    raft_group: int
    failed: bool

    def __str__(self) -> str:
        return f"{self.raft_group} snapshot {'failed' if self.failed else 'fetched'}"


class ClaimOfRest(NamedTuple):
    """A node tells another one what rests with it under its lead."""

    claim: RestClaim

    def __str__(self) -> str:
        return f"claims {self.claim.number} resting groups"


class CopyQuestion(NamedTuple):
    """A call of a copy session, with a number of the caller."""

    number: int
    method: CopyMethod
    payload: bytes

    def __str__(self) -> str:
        return f"asks {self.number}: {self.method.value} a copy"


class CopyAnswer(NamedTuple):
    """The answer of a call: a payload, or a failure as `pixy.peers` sends it."""

    number: int
    payload: bytes
    failed: bool

    def __str__(self) -> str:
        return f"answers {self.number}: {'a failure' if self.failed else f'{len(self.payload)} bytes'}"


Packet = RaftMessages | ForwardedProposal | SnapshotReport | ClaimOfRest | CopyQuestion | CopyAnswer


def sent_copy(message: Message, *, encodes: bool) -> Message:
    """A message as the network has it: its payloads are those of the moment when it was sent."""
    if encodes:
        encoded = b"".join(encode_raft([(_ANY_GROUP, message)], 0))
        ((_, decoded),) = decode_raft(encoded, message.sender, message.to)
        return decoded
    if not any(type(entry.data) is bytearray for entry in message.entries):
        return message
    entries = [
        Entry(each.term, each.index, each.type, bytes(each.data), each.kind, each.proposal)
        for each in message.entries
    ]
    copy = Message(message.type, message.to, message.sender, message.term, message.log_term, message.index)
    copy.entries, copy.commit, copy.context = entries, message.commit, message.context
    return copy


def _brief(message: Message) -> str:
    text = f"{message_type_name(message.type)[3:]} t{message.term} {message.log_term}/{message.index}"
    if message.entries:
        text += f" +{len(message.entries)}"
    if message.commit:
        text += f" c{message.commit}"
    return text + (" rejected" if message.reject else "")
