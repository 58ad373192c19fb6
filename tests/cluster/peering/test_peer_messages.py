"""Messages between nodes: byte vectors, round trips, and every kind of damage."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.cluster.peering.peer_messages import (
    Beat,
    RefusedProposal,
    decode_beat,
    decode_claim,
    decode_proposals,
    decode_raft,
    decode_refusals,
    decode_steady_time,
    encode_beat,
    encode_claim,
    encode_proposal,
    encode_raft,
    encode_refusal,
    encode_steady_time,
    flush_number_of,
)
from pixy.cluster.state.nodes import NODES_MAX
from pixy.entry_ids import INDEX_MAX, TERM_MAX, ProposalId
from pixy.multiraft.proposals import Forwarded
from pixy.multiraft.resting_groups import RestClaim
from pixy.raft import ConfState, Entry, MalformedMessage, Message, MessageType, RaftEntryType, Snapshot
from pixy.storage import EntryType

SENDER, RECEIVER = 3, 1
LOCAL = {
    MessageType.HUP,
    MessageType.BEAT,
    MessageType.PROP,
    MessageType.UNREACHABLE,
    MessageType.SNAP_STATUS,
    MessageType.CHECK_QUORUM,
    MessageType.STORAGE_APPEND,
    MessageType.STORAGE_APPEND_RESP,
    MessageType.STORAGE_APPLY,
    MessageType.STORAGE_APPLY_RESP,
    MessageType.FORGET_LEADER,
    MessageType.TRANSFER_LEADER,
}
"""Types that no node sends to another."""
BETWEEN_NODES = [kind for kind in MessageType if kind not in LOCAL]

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
NUMBERS = st.integers(0, INDEX_MAX)
NODE_IDS = st.integers(1, 2**32 - 1)
PROPOSED = [kind for kind in EntryType if kind not in (EntryType.CONF_CHANGE, EntryType.CONF_CHANGE_V2)]
PROPOSAL_IDS = st.builds(ProposalId, NODE_IDS, U32, NUMBERS)
PAYLOADS = st.builds(
    Entry,
    NUMBERS,
    st.just(0),
    st.just(RaftEntryType.NORMAL),
    st.binary(max_size=40),
    st.sampled_from([int(kind) for kind in PROPOSED]),
    st.none() | PROPOSAL_IDS,
)
CHANGES = st.builds(
    Entry, NUMBERS, st.just(0), st.sampled_from(list(RaftEntryType)[1:]), st.binary(max_size=40)
)
ENTRIES = PAYLOADS | CHANGES
CONFIGURATIONS = st.lists(NODE_IDS, min_size=1, max_size=6, unique=True).map(
    lambda ids: ConfState(tuple(ids[: 1 + len(ids) // 2]), tuple(ids[1 + len(ids) // 2 :]))
)
FORWARDED = st.builds(
    Forwarded,
    U64,
    st.sampled_from(PROPOSED),
    st.binary(max_size=40),
    st.builds(ProposalId, st.just(SENDER), U32, st.integers(1, INDEX_MAX)),
    NUMBERS,
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """A message of a correct node."""
    kind = draw(st.sampled_from(BETWEEN_NODES))
    term = draw(st.integers(1, TERM_MAX))
    log_term, index = draw(st.integers(0, term)), draw(st.integers(0, 2**61))
    entries, snapshot = [], None
    if kind is MessageType.APP:
        found = draw(st.lists(ENTRIES, max_size=3))
        terms = sorted(draw(st.lists(st.integers(log_term, term), min_size=3, max_size=3)))
        entries = [replace(entry, index=index + 1 + at, term=terms[at]) for at, entry in enumerate(found)]
    elif kind in (MessageType.READ_INDEX, MessageType.READ_INDEX_RESP):
        entries = [Entry(0, index + 1, data=draw(st.binary(max_size=9)))]
        term = 0 if kind is MessageType.READ_INDEX else term
    elif kind is MessageType.SNAP:
        position = draw(st.integers(1, INDEX_MAX)), draw(st.integers(1, term))
        snapshot = Snapshot(*position, draw(CONFIGURATIONS), draw(st.binary(max_size=9)))
    return Message(
        kind,
        RECEIVER,
        SENDER,
        term,
        log_term,
        index,
        entries,
        draw(NUMBERS),
        snapshot,
        draw(st.booleans()),
        draw(NUMBERS),
        draw(st.binary(max_size=9)),
    )


FLUSH_NUMBER = 899
PACKED = st.lists(st.tuples(U64, messages()), max_size=3)


def raft_payload(packed: list[tuple[int, Message]]) -> bytes:
    return b"".join(encode_raft(packed, FLUSH_NUMBER))


def proposals_payload(proposals: list[Forwarded]) -> bytes:
    return b"".join([part for each in proposals for part in encode_proposal(each)])


def test_raft_messages_come_with_the_flush_that_they_rest_on() -> None:
    payload = raft_payload([])
    assert flush_number_of(payload) == FLUSH_NUMBER
    assert decoded_raft(payload) == []
    for size in range(len(payload)):
        with pytest.raises(MalformedMessage):
            flush_number_of(payload[:size])


def decoded_raft(payload: bytes | memoryview) -> list[tuple[int, Message]]:
    return list(decode_raft(payload, SENDER, RECEIVER))


def before_damage(decoding: Iterator[Any]) -> tuple[list[Any], bool]:
    """Everything that comes before the damage, and whether there was any."""
    found = []
    try:
        for each in decoding:
            found.append(each)  # what came before an error is kept
    except MalformedMessage:
        return found, True
    return found, False


# --- bytes ----------------------------------------------------------------------------------------


def test_a_raft_message_has_the_documented_bytes() -> None:
    entry = Entry(7, 301, RaftEntryType.NORMAL, b"xy", 6, ProposalId(2, 3, 4))
    message = Message(MessageType.APP, RECEIVER, SENDER, 8, 9, 300, [entry], 10, None, True, 12, b"ctx")
    numbers = (8, 9, 300, 10, 0, 12)
    assert raft_payload([(1000, message)]) == (
        FLUSH_NUMBER.to_bytes(8, "little")
        + (1000).to_bytes(8, "little")
        + bytes.fromhex("03 01 0300 01000000")
        + b"".join([number.to_bytes(8, "little") for number in numbers])
        + b"ctx"
        + (7).to_bytes(8, "little")
        + bytes.fromhex("00 0600 02000000 03000000")
        + (4).to_bytes(8, "little")
        + bytes.fromhex("02000000")
        + b"xy"
    )


def test_a_forwarded_proposal_has_the_documented_bytes() -> None:
    forwarded = Forwarded(1000, EntryType.COMMAND, b"xy", ProposalId(2, 3, 4), 3)
    assert proposals_payload([forwarded]) == (
        (1000).to_bytes(8, "little")
        + bytes.fromhex("0200 02000000 03000000")
        + (4).to_bytes(8, "little")
        + (3).to_bytes(8, "little")
        + bytes.fromhex("02000000")
        + b"xy"
    )


def test_a_beat_is_three_numbers_and_the_nodes_that_are_reached() -> None:
    numbers = b"".join([number.to_bytes(8, "little") for number in (1, 2, 3)])
    assert encode_beat(Beat(1, 2, 3)) == numbers
    assert encode_beat(Beat(1, 2, 3, (4, 5))) == numbers + bytes.fromhex("04000000 05000000")


def test_a_claim_is_two_numbers() -> None:
    claim = RestClaim(3, 2**64 - 1)
    payload = (3).to_bytes(8, "little") + b"\xff" * 8
    assert encode_claim(claim) == payload
    assert decode_claim(memoryview(payload)) == claim
    for damaged in (b"", payload[:-1], payload + b"\0"):
        with pytest.raises(MalformedMessage, match=f"{len(damaged)} bytes are not a claim"):
            decode_claim(damaged)


def test_a_steady_time_is_one_number() -> None:
    payload = (2**53).to_bytes(8, "little")
    assert encode_steady_time(2**53) == payload
    assert decode_steady_time(memoryview(payload)) == 2**53
    for damaged in (b"", payload[:-1], payload + b"\0"):
        with pytest.raises(MalformedMessage, match=f"{len(damaged)} bytes are not a steady time"):
            decode_steady_time(damaged)
    with pytest.raises(MalformedMessage, match=f"at most {2**53}"):
        decode_steady_time(encode_steady_time(2**53 + 1))


def test_a_beat_names_at_most_as_many_nodes_as_a_cluster_has() -> None:
    beat = Beat(1, 2, 3, tuple(range(1, 2 * NODES_MAX)))
    assert decode_beat(encode_beat(beat)) == beat._replace(reaches=beat.reaches[:NODES_MAX])
    for more in (1, 4_000_000):
        with pytest.raises(MalformedMessage, match=f"at most {NODES_MAX} ids are possible"):
            decode_beat(encode_beat(beat) + bytes(4 * more))


# --- round trips ----------------------------------------------------------------------------------


@pytest.mark.slow
@given(PACKED)
def test_raft_messages_come_as_they_were_sent(packed: list[tuple[int, Message]]) -> None:
    payload = raft_payload(packed)
    assert decoded_raft(payload) == packed
    assert decoded_raft(memoryview(payload)) == packed


@pytest.mark.slow
@given(st.lists(FORWARDED, max_size=4))
def test_forwarded_proposals_come_as_they_were_sent(proposals: list[Forwarded]) -> None:
    payload = proposals_payload(proposals)
    assert list(decode_proposals(payload, SENDER)) == proposals
    assert list(decode_proposals(memoryview(payload), SENDER)) == proposals


@given(
    st.builds(
        Beat,
        st.integers(1, 2**32 - 1),
        st.integers(0, 2**62 - 1),
        st.integers(0, 2**53),
        st.lists(st.integers(1, 2**32 - 1), max_size=5).map(tuple),
    )
)
def test_beats_come_as_they_were_sent(beat: Beat) -> None:
    assert decode_beat(encode_beat(beat)) == beat
    assert decode_beat(memoryview(encode_beat(beat))) == beat


def test_payloads_do_not_share_the_buffer_that_they_came_in() -> None:
    entry = Entry(1, 1, data=b"payload", kind=1)
    buffer = bytearray(raft_payload([(1, Message(MessageType.APP, RECEIVER, SENDER, 1, entries=[entry]))]))
    proposals = bytearray(
        proposals_payload([Forwarded(1, EntryType.COMMAND, b"payload", ProposalId(SENDER, 1, 1))])
    )
    [(_, message)], [forwarded] = (
        decoded_raft(memoryview(buffer)),
        list(decode_proposals(memoryview(proposals), SENDER)),
    )
    buffer[:], proposals[:] = bytes(len(buffer)), bytes(len(proposals))
    assert (message.entries[0].data, forwarded.payload) == (b"payload", b"payload")


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.slow
@given(PACKED.filter(bool))
def test_a_truncated_payload_has_the_messages_that_are_whole(packed: list[tuple[int, Message]]) -> None:
    payload = raft_payload(packed)
    head = len(raft_payload([]))
    ends = list(accumulate((len(raft_payload([each])) - head for each in packed), initial=head))
    for size in range(head, len(payload)):
        whole = sum(end <= size for end in ends) - 1
        found = before_damage(decode_raft(payload[:size], SENDER, RECEIVER))
        assert found == (packed[:whole], size not in ends), size


@pytest.mark.slow
@given(st.lists(FORWARDED, min_size=1, max_size=3))
def test_a_truncated_payload_has_the_proposals_that_are_whole(proposals: list[Forwarded]) -> None:
    payload = proposals_payload(proposals)
    ends = [0, *accumulate(len(proposals_payload([each])) for each in proposals)]
    for size in range(len(payload)):
        whole = sum(end <= size for end in ends) - 1
        assert before_damage(decode_proposals(payload[:size], SENDER)) == (
            proposals[:whole],
            size not in ends,
        ), size


@pytest.mark.slow
@given(PACKED.filter(bool), st.lists(FORWARDED, min_size=1, max_size=2), st.data())
def test_flipped_bytes_are_other_messages_or_damage(
    packed: list[tuple[int, Message]], proposals: list[Forwarded], data: st.DataObject
) -> None:
    decoders: list[tuple[bytes, Callable[[bytes], Iterator[Any]]]] = [
        (raft_payload(packed), lambda payload: decode_raft(payload, SENDER, RECEIVER)),
        (proposals_payload(proposals), lambda payload: decode_proposals(payload, SENDER)),
    ]
    for payload, decode in decoders:
        damaged = bytearray(payload)
        for at in data.draw(st.lists(st.integers(0, len(payload) - 1), min_size=1, max_size=3)):
            damaged[at] ^= data.draw(st.integers(1, 255))
        before_damage(decode(bytes(damaged)))


@given(st.binary(max_size=300))
def test_any_bytes_are_messages_or_damage(payload: bytes) -> None:
    before_damage(decode_raft(payload, SENDER, RECEIVER))
    before_damage(decode_proposals(payload, SENDER))


@pytest.mark.parametrize("size", [0, 1, 20, 23, 25, 31])
def test_a_beat_of_another_size_is_damage(size: int) -> None:
    with pytest.raises(MalformedMessage, match=f"{size} bytes are not a beat"):
        decode_beat(bytes(size))


@pytest.mark.parametrize(
    "beat",
    [Beat(0, 1, 1), Beat(2**32, 1, 1), Beat(2**64 - 1, 1, 1), Beat(1, 2**62, 1), Beat(1, 1, 2**53 + 1)],
    ids=str,
)
def test_a_beat_that_no_node_sends_is_damage(beat: Beat) -> None:
    with pytest.raises(MalformedMessage, match=f"a beat of start {beat.incarnation} with flush"):
        decode_beat(encode_beat(beat))


def test_a_flush_that_no_node_has_is_damage() -> None:
    with pytest.raises(MalformedMessage, match=f"behind flush {2**62}"):
        flush_number_of(b"".join(encode_raft([], 2**62)))


@pytest.mark.parametrize("kind", sorted(LOCAL))
def test_types_that_never_leave_a_node_are_refused(kind: MessageType) -> None:
    fine = 1000, Message(MessageType.HEARTBEAT, RECEIVER, SENDER, 1, entries=[])
    local = 1000, Message(kind, RECEIVER, SENDER, 1)
    assert before_damage(decode_raft(raft_payload([fine, local]), SENDER, RECEIVER)) == ([fine], True)


@pytest.mark.parametrize("kind", [EntryType.CONF_CHANGE, EntryType.CONF_CHANGE_V2, 7, 99])
def test_a_proposal_of_a_kind_that_no_node_forwards_is_refused(kind: int) -> None:
    forwarded = Forwarded(1, kind, b"", ProposalId(SENDER, 1, 1))  # type: ignore[arg-type]  # of a newer release
    with pytest.raises(MalformedMessage):
        list(decode_proposals(proposals_payload([forwarded]), SENDER))


@pytest.mark.parametrize(
    "forwarded",
    [
        Forwarded(1, EntryType.COMMAND, b"", ProposalId(SENDER + 1, 1, 1)),
        Forwarded(1, EntryType.COMMAND, b"", ProposalId(SENDER, 1, 0)),
        Forwarded(1, EntryType.COMMAND, b"", ProposalId(SENDER, 1, INDEX_MAX + 1)),
        Forwarded(1, EntryType.COMMAND, b"", ProposalId(SENDER, 1, 2), INDEX_MAX + 1),
    ],
)
def test_a_proposal_of_another_node_or_with_an_impossible_number_is_refused(forwarded: Forwarded) -> None:
    with pytest.raises(MalformedMessage, match=f"in a message of node {SENDER}"):
        list(decode_proposals(proposals_payload([forwarded]), SENDER))


TOO_LARGE = INDEX_MAX + 1
APPEND = Message(MessageType.APP, RECEIVER, SENDER, 5, 3, 10, [Entry(4, 11), Entry(4, 12)])
SNAPSHOT = Snapshot(9, 4, ConfState((1, 2), (3,)))
SNAP = Message(MessageType.SNAP, RECEIVER, SENDER, 5, snapshot=SNAPSHOT)
READ = Message(MessageType.READ_INDEX, RECEIVER, SENDER, entries=[Entry(data=b"context")])
HEARTBEAT = Message(MessageType.HEARTBEAT, RECEIVER, SENDER, 5)


def changed(message: Message, **fields: Any) -> Message:
    return replace(message, **fields)


def with_entries(*entries: Entry) -> Message:
    return replace(APPEND, entries=entries)


def with_snapshot(**fields: Any) -> Message:
    return replace(SNAP, snapshot=replace(SNAPSHOT, **fields))


@pytest.mark.parametrize("message", [APPEND, SNAP, READ, HEARTBEAT])
def test_the_messages_of_the_next_test_are_fine_before_they_are_changed(message: Message) -> None:
    assert decoded_raft(raft_payload([(1, message)]))


@pytest.mark.parametrize(
    "message",
    [
        *[
            changed(HEARTBEAT, **{field: number})
            for field in ("term", "log_term", "index", "commit", "reject_hint")
            for number in (TOO_LARGE, 2**64 - 1)
        ],
        *[changed(HEARTBEAT, **{field: TERM_MAX + 1}) for field in ("term", "log_term")],
        changed(HEARTBEAT, term=0),
        changed(APPEND, term=0),
        changed(APPEND, index=INDEX_MAX - 1),
        changed(APPEND, log_term=5),
        changed(APPEND, term=3),
        with_entries(Entry(5, 11), Entry(4, 12)),
        with_entries(Entry(4, 11), Entry(6, 12)),
        with_entries(Entry(TOO_LARGE, 11), Entry(4, 12)),
        with_entries(Entry(4, 11, kind=7)),
        with_entries(Entry(4, 11, kind=EntryType.CONF_CHANGE)),
        with_entries(Entry(4, 11, RaftEntryType.CONF_CHANGE, kind=EntryType.COMMAND)),
        with_entries(Entry(4, 11, proposal=ProposalId(1, 1, TOO_LARGE))),
        changed(HEARTBEAT, entries=[Entry(5, 1)]),
        changed(READ, entries=[]),
        changed(READ, entries=[Entry(), Entry()]),
        changed(READ, type=MessageType.READ_INDEX_RESP, term=5, entries=[]),
        changed(SNAP, snapshot=None),
        changed(HEARTBEAT, snapshot=SNAPSHOT),
        with_snapshot(index=TOO_LARGE),
        with_snapshot(index=0),
        with_snapshot(term=0),
        with_snapshot(term=6),
        with_snapshot(conf_state=ConfState()),
        with_snapshot(conf_state=ConfState((1, 1))),
        with_snapshot(conf_state=ConfState((1, 2**32))),
        with_snapshot(conf_state=ConfState((0, 1))),
        with_snapshot(conf_state=ConfState((1,), (1,))),
        with_snapshot(conf_state=ConfState((1,), learners_next=(1,))),
        with_snapshot(conf_state=ConfState((1,), auto_leave=True)),
    ],
)
def test_what_no_correct_node_sends_is_refused(message: Message) -> None:
    with pytest.raises(MalformedMessage):
        decoded_raft(raft_payload([(1, message)]))


def test_the_damage_names_the_byte() -> None:
    payload = raft_payload([(1, Message(MessageType.HEARTBEAT, RECEIVER, SENDER, 1, context=b"four"))])
    with pytest.raises(MalformedMessage, match="a message of 76 bytes in a payload of 74"):
        decoded_raft(payload[:74])
    with pytest.raises(MalformedMessage, match="a malformed message at byte 8 of 71"):
        decoded_raft(payload[:71])


# --- refusals -------------------------------------------------------------------------------------

REFUSAL = RefusedProposal(1000, 7, ProposalId(RECEIVER, 2, 3), "it is bad: ä")


def test_refusals_are_as_in_the_table() -> None:
    numbers = bytes.fromhex("e803000000000000 0700000000000000 02000000 0300000000000000 0d00")
    encoded = encode_refusal(REFUSAL)
    assert encoded == numbers + "it is bad: ä".encode()
    other = REFUSAL._replace(raft_group=2, reason="")
    assert list(decode_refusals(encoded + encode_refusal(other), RECEIVER)) == [REFUSAL, other]


def test_a_long_reason_is_cut_off_and_one_that_is_no_text_is_replaced() -> None:
    (long,) = decode_refusals(encode_refusal(REFUSAL._replace(reason="ä" * 600)), RECEIVER)
    assert long.reason == "ä" * 500
    damaged = bytearray(encode_refusal(REFUSAL))
    damaged[-1] = 0xFF
    (found,) = decode_refusals(bytes(damaged), RECEIVER)
    assert found.reason.startswith("it is bad: ")


@pytest.mark.parametrize("size", range(1, len(encode_refusal(REFUSAL))))
def test_a_refusal_that_is_cut_off_is_malformed(size: int) -> None:
    with pytest.raises(MalformedMessage):
        list(decode_refusals(encode_refusal(REFUSAL)[:size], RECEIVER))
