"""Sizes of entries are those of their encoding in raftpb."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.entry_ids import ProposalId
from pixy.raft import Entry, RaftEntryType
from pixy.raft.sizes import entries_size, limit_entries

U64 = st.integers(0, 2**64 - 1)
KINDS = st.sampled_from([0, 0, 1, 127, 128, 2**32 - 1])
U32 = st.integers(1, 2**32 - 1)
PROPOSALS = st.none() | st.builds(ProposalId, U32, U32, U64)
ENTRIES = st.builds(
    Entry, U64, U64, st.sampled_from(RaftEntryType), st.binary(max_size=200), KINDS, PROPOSALS
)


def varint(value: int) -> bytes:
    parts = []
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def encoded(entry: Entry) -> bytes:
    """An entry as raftpb has it, with pixy's own fields 15 to 18."""
    fields = {2: entry.term, 3: entry.index}
    if entry.type:
        fields[1] = entry.type.value
    if entry.kind:
        fields[15] = entry.kind
    if entry.proposal is not None:
        fields.update(zip((16, 17, 18), entry.proposal, strict=True))
    data = b"\x22" + varint(len(entry.data)) + bytes(entry.data) if entry.data else b""
    return b"".join([varint(number << 3) + varint(value) for number, value in sorted(fields.items())]) + data


def test_the_encoding_of_these_tests_is_raftpbs() -> None:
    assert encoded(Entry(3, 300, RaftEntryType.CONF_CHANGE, b"x")) == bytes.fromhex("0801 1003 18ac02 220178")
    entry = Entry(3, 300, kind=300, proposal=ProposalId(2, 3, 300))
    assert encoded(entry) == bytes.fromhex("1003 18ac02 78ac02 800102 880103 9001ac02")


@given(ENTRIES)
def test_the_size_of_an_entry_is_that_of_its_encoding(entry: Entry) -> None:
    assert entries_size([entry]) == len(encoded(entry))


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
    assert entries_size(entries) == sum([len(encoded(entry)) for entry in entries])
    limit = max(entries_size(entries[:fitting]) + more, 0)
    kept = limit_entries(entries, limit)
    assert kept == entries[: len(kept)]
    assert kept == entries[:1] or (kept and entries_size(kept) <= limit)
    assert kept == entries or entries_size(entries[: len(kept) + 1]) > limit
