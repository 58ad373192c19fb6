"""Encoding: byte vectors with raftpb's field numbers, round trips, and every kind of damage."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.entry_ids import ProposalId
from pixy.raft import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    HardState,
    MalformedMessage,
    Message,
    MessageType,
    RaftEntryType,
    Snapshot,
)
from pixy.raft.sizes import entries_size, limit_entries
from pixy.raft.wire import (
    decode_conf_change,
    decode_entry,
    decode_hard_state,
    decode_message,
    decode_snapshot,
    encode_conf_change,
    encode_entry,
    encode_hard_state,
    encode_message,
    encode_snapshot,
)

U64 = st.integers(0, 2**64 - 1)
IDS = st.lists(U64, max_size=3).map(tuple)
KINDS = st.sampled_from([0, 0, 1, 127, 128, 2**32 - 1])
U32 = st.integers(1, 2**32 - 1)
PROPOSALS = st.none() | st.builds(ProposalId, U32, U32, U64)
ENTRIES = st.builds(
    Entry, U64, U64, st.sampled_from(RaftEntryType), st.binary(max_size=200), KINDS, PROPOSALS
)
SNAPSHOTS = st.builds(
    Snapshot,
    st.integers(1, 2**64 - 1),
    U64,
    st.builds(ConfState, IDS, IDS, IDS, IDS, st.booleans()),
    st.binary(max_size=9),
)
MESSAGES = st.builds(
    Message,
    st.sampled_from([kind for kind in MessageType if kind is not MessageType.APP]),
    to=U64,
    sender=U64,
    term=U64,
    log_term=U64,
    index=U64,
    entries=st.lists(ENTRIES, max_size=3),
    commit=U64,
    snapshot=st.none() | SNAPSHOTS,
    reject=st.booleans(),
    reject_hint=U64,
    context=st.binary(max_size=9),
)

ENTRY = Entry(3, 300, RaftEntryType.CONF_CHANGE, b"x")
APP = Message(MessageType.APP, 2, 1, 3, 2, 299, [ENTRY], 5)
ENTRY_BYTES = bytes.fromhex("0801 1003 18ac02 220178")
APP_BYTES = bytes.fromhex("0803 1002 1801 2003 2802 30ab02 3a0a") + ENTRY_BYTES + bytes.fromhex("4005")


def test_an_entry_has_raftpbs_bytes() -> None:
    assert encode_entry(ENTRY) == ENTRY_BYTES
    assert decode_entry(ENTRY_BYTES) == ENTRY


def test_kind_and_identity_of_a_proposal_are_fields_that_raftpb_does_not_have() -> None:
    entry = replace(ENTRY, kind=300, proposal=ProposalId(2, 3, 300))
    assert encode_entry(entry) == ENTRY_BYTES + bytes.fromhex("78ac02 800102 880103 9001ac02")
    assert decode_entry(encode_entry(entry)) == entry
    assert decode_entry(ENTRY_BYTES).kind == 0
    assert decode_entry(ENTRY_BYTES).proposal is None


def test_an_append_has_raftpbs_bytes() -> None:
    assert encode_message(APP) == APP_BYTES
    assert decode_message(APP_BYTES) == APP


def test_every_other_field_of_a_message_has_raftpbs_number() -> None:
    message = Message(
        MessageType.HUP,
        0,
        snapshot=Snapshot(7, 2, ConfState((1,), (2,), (3,), (4,), True), b"s"),
        reject=True,
        reject_hint=8,
        context=b"c",
    )
    conf_state = bytes.fromhex("0801 1002 1803 2004 2801")
    metadata = b"\x0a" + bytes([len(conf_state)]) + conf_state + bytes.fromhex("1007 1802")
    snapshot = bytes.fromhex("0a0173 12") + bytes([len(metadata)]) + metadata
    expected = bytes.fromhex("0800 1000 1800 4a") + bytes([len(snapshot)]) + snapshot
    expected += bytes.fromhex("5001 5808 620163")
    assert encode_message(message) == expected


def test_configuration_changes_have_raftpbs_bytes() -> None:
    v1 = ConfChange(ConfChangeType.REMOVE_NODE, 3, b"c", 4)
    assert encode_conf_change(v1) == bytes.fromhex("0804 1001 1803 220163")
    v2 = ConfChangeV2(
        (ConfChangeSingle(ConfChangeType.ADD_LEARNER_NODE, 5),), ConfChangeTransition.JOINT_EXPLICIT, b"c"
    )
    assert encode_conf_change(v2) == bytes.fromhex("0802 1204 0803 1005 1a0163")
    assert encode_conf_change(ConfChangeV2()) == b""
    for change, kind in (
        (v1, RaftEntryType.CONF_CHANGE),
        (v2, RaftEntryType.CONF_CHANGE_V2),
        (ConfChangeV2(), RaftEntryType.CONF_CHANGE_V2),
    ):
        assert decode_conf_change(Entry(1, 1, kind, encode_conf_change(change))) == change


def test_a_hard_state_has_raftpbs_bytes() -> None:
    assert encode_hard_state(HardState(1, 2, 300)) == bytes.fromhex("0801 1002 18ac02")
    assert decode_hard_state(b"") == HardState()


@pytest.mark.slow
@given(MESSAGES)
def test_a_message_round_trips(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


@pytest.mark.slow
@given(SNAPSHOTS)
def test_a_snapshot_round_trips(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@given(ENTRIES)
def test_the_size_of_an_entry_is_that_of_its_encoding(entry: Entry) -> None:
    assert entries_size([entry]) == len(
        encode_entry(replace(entry, term=entry.term or 1, index=entry.index or 1))
    )


@pytest.mark.slow
@given(
    st.integers(100, 140),
    st.lists(st.integers(0, 200), min_size=1, max_size=30),
    st.integers(0, 30),
    st.sampled_from([-1, 0, 1]),
    st.sampled_from([(0,), (7,), (300,), (0, 7)]),
    st.sampled_from([(None,), (ProposalId(1, 2, 3),), (None, ProposalId(300, 2**32 - 1, 2**64 - 1))]),
)
def test_entries_are_limited_in_size_but_never_to_none(
    first: int,
    sizes: list[int],
    fitting: int,
    more: int,
    kinds: tuple[int, ...],
    proposals: tuple[ProposalId | None, ...],
) -> None:
    entries = [
        Entry(
            1,
            first + at,
            data=b"x" * size,
            kind=kinds[at % len(kinds)],
            proposal=proposals[at % len(proposals)],
        )
        for at, size in enumerate(sizes)
    ]
    assert entries_size(entries) == sum([len(encode_entry(entry)) for entry in entries])
    limit = max(entries_size(entries[:fitting]) + more, 0)
    kept = limit_entries(entries, limit)
    assert kept == entries[: len(kept)]
    assert kept == entries[:1] or (kept and entries_size(kept) <= limit)
    assert kept == entries or entries_size(entries[: len(kept) + 1]) > limit


def test_a_truncated_message_is_malformed_or_a_shorter_message() -> None:
    for size in range(len(APP_BYTES)):
        try:
            decode_message(APP_BYTES[:size])
        except MalformedMessage:
            continue


def test_a_message_with_a_flipped_byte_is_malformed_or_another_message() -> None:
    for at in range(len(APP_BYTES)):
        for mask in (0x01, 0x80, 0xFF):
            flipped = bytearray(APP_BYTES)
            flipped[at] ^= mask
            try:
                decode_message(bytes(flipped))
            except MalformedMessage:
                continue


def test_appends_that_no_leader_sends_are_rejected() -> None:
    gap = replace(APP, entries=[Entry(3, 300), Entry(3, 302)])
    with pytest.raises(MalformedMessage, match=r"leader term 3: entries 3/300 and 3/302 not consistent"):
        decode_message(encode_message(gap))
    falling = replace(APP, entries=[Entry(3, 300), Entry(2, 301)])
    with pytest.raises(MalformedMessage, match="not consistent"):
        decode_message(encode_message(falling))
    later = replace(APP, entries=[Entry(4, 300)])
    with pytest.raises(MalformedMessage, match="leader term 3: entry 4/300 has a newer term"):
        decode_message(encode_message(later))


def test_a_message_without_a_type_is_rejected() -> None:
    with pytest.raises(MalformedMessage, match="without a type"):
        decode_message(b"\x10\x01")


def test_unknown_enumeration_values_are_rejected() -> None:
    unknown_entry = bytes.fromhex("0807 1003 18ac02")
    with pytest.raises(MalformedMessage, match="entry 3/300 has unknown type 7, expected 0 to 2"):
        decode_entry(unknown_entry)
    with pytest.raises(MalformedMessage, match="entry 3/300 has unknown type 7"):
        decode_message(bytes.fromhex("0802 3a07") + unknown_entry)
    with pytest.raises(MalformedMessage, match="message of unknown type 99, expected 0 to 23"):
        decode_message(bytes.fromhex("0863 1001"))


@pytest.mark.parametrize(
    ("kind", "encoded"),
    [
        (RaftEntryType.CONF_CHANGE, "1009 1803"),  # type 9
        (RaftEntryType.CONF_CHANGE_V2, "1204 0809 1005"),  # a single change of type 9
        (RaftEntryType.CONF_CHANGE_V2, "0809"),  # transition 9
    ],
)
def test_unknown_types_of_configuration_changes_are_rejected(kind: RaftEntryType, encoded: str) -> None:
    with pytest.raises(MalformedMessage, match="entry 1/2 is not a configuration change: 9 is not a valid"):
        decode_conf_change(Entry(1, 2, kind, bytes.fromhex(encoded)))


def test_an_entry_that_is_no_configuration_change_is_rejected() -> None:
    with pytest.raises(MalformedMessage, match="is not a configuration change"):
        decode_conf_change(Entry(1, 2, RaftEntryType.NORMAL, b""))
    with pytest.raises(MalformedMessage, match="entry 1/2 is not a configuration change"):
        decode_conf_change(Entry(1, 2, RaftEntryType.CONF_CHANGE, b"\xff"))


def test_a_snapshot_of_index_zero_is_absent() -> None:
    assert (
        decode_message(encode_message(Message(MessageType.HEARTBEAT, 1, snapshot=Snapshot()))).snapshot
        is None
    )
