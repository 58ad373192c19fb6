"""Encoding: byte vectors with raftpb's field numbers, round trips, and damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.raft import (
    ConfChange,
    ConfChangeSingle,
    ConfChangeTransition,
    ConfChangeType,
    ConfChangeV2,
    ConfState,
    Entry,
    MalformedMessage,
    RaftEntryType,
    Snapshot,
)
from pixy.raft.wire import (
    decode_conf_change,
    decode_snapshot,
    encode_conf_change,
    encode_snapshot,
)

U64 = st.integers(0, 2**64 - 1)
IDS = st.lists(U64, max_size=3).map(tuple)
SNAPSHOTS = st.builds(
    Snapshot,
    st.integers(1, 2**64 - 1),
    U64,
    st.builds(ConfState, IDS, IDS, IDS, IDS, st.booleans()),
    st.binary(max_size=9),
)


def test_a_snapshot_has_raftpbs_bytes() -> None:
    conf_state = bytes.fromhex("0801 1002 1803 2004 2801")
    metadata = b"\x0a" + bytes([len(conf_state)]) + conf_state + bytes.fromhex("1007 1802")
    expected = bytes.fromhex("0a0173 12") + bytes([len(metadata)]) + metadata
    assert encode_snapshot(Snapshot(7, 2, ConfState((1,), (2,), (3,), (4,), True), b"s")) == expected


def test_bytes_that_are_no_snapshot_are_rejected() -> None:
    with pytest.raises(MalformedMessage, match="2 bytes are not a Snapshot"):
        decode_snapshot(b"\x0a\x05")


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


@pytest.mark.slow
@given(SNAPSHOTS)
def test_a_snapshot_round_trips(snapshot: Snapshot) -> None:
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


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
