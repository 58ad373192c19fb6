"""The bytes of a journal file. Their recovery is tested in `test_journal_decisions`.

A scan always finds a prefix of the written data. Damage is distinguished from a torn tail by a
later valid flush.
"""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pixy.entry_ids import ProposalId
from pixy.errors import CorruptData, DataDirectoryError
from pixy.storage import EntryType, RecordKind
from pixy.storage.journal.journal_format import (
    FILE_HEADER_BYTES,
    FLUSH_FRAME_BYTES,
    RECORD_HEAD_BYTES,
    FileHeader,
    FlushScan,
    file_header,
    first_flush_number,
    flush_frame,
    head_bytes,
    is_zero,
    journal_record,
    read_file_header,
    record_head,
)
from tests.storage.journals import (
    CLUSTER,
    Content,
    carried_over,
    content,
    entry,
    flush,
    hard_state,
    header,
    incarnation,
    journal_file,
    record,
    reset,
)


class Example(NamedTuple):
    """A file with three flushes, and the byte behind each."""

    flushes: list[list[bytes]]
    data: bytes
    ends: list[int]

    @property
    def version(self) -> int:
        return self.data[8]


def example(flushes: list[list[bytes]], version: int = 2) -> Example:
    ends = [FILE_HEADER_BYTES]
    for records in flushes:
        ends.append(ends[-1] + FLUSH_FRAME_BYTES + sum(map(len, records)))
    return Example(flushes, journal_file(flushes, size=1000, version=version), ends)


def entries(version: int) -> Example:
    one, other = entry(1, b"one", version=version), entry(1, b"other", 1001, version=version)
    two, three = entry(2, b"two", version=version), entry(3, b"three" * 5, version=version)
    return example([[one, other], [two], [three]], version)


OF_EACH_KIND = example(
    [
        [hard_state(), reset(5)],
        [incarnation(3), entry(6, b"six")],
        [carried_over(5), record(1, 5, index=7, payload=b"piece", commit=6, proposal=(1, 2, 3))],
    ]
)
EXAMPLES = [entries(1), entries(2), OF_EACH_KIND]
FLUSHES, FILE, ENDS = EXAMPLES[1]


def header_of(data: bytes | bytearray, file_number: int = 1) -> FileHeader:
    return FileHeader(data[8], file_number, CLUSTER, 1)


def scanned(data: bytes | bytearray, next_flush: int = 1) -> tuple[Content, FlushScan]:
    """Records of a file up to the first byte that does not begin the expected flush, and the state
    of the rest.
    """
    scan = FlushScan(data, header_of(data), next_flush)
    view = memoryview(data)
    return content([journal_record(view, place, data[8]) for _, places in scan for place in places]), scan


def prefixes(whole: Example) -> list[Content]:
    return [scanned(journal_file(whole.flushes[:count], version=whole.version))[0] for count in range(4)]


PREFIXES = prefixes(EXAMPLES[1])


def test_the_file_header_has_the_bytes_of_the_table() -> None:
    assert file_header(7, CLUSTER, 3) == header(7, node=3)
    assert len(header()) == FILE_HEADER_BYTES
    for version in (1, 2):
        assert read_file_header(header(7, version, node=3)) == FileHeader(version, 7, CLUSTER, 3)


def test_a_flush_frame_has_the_bytes_of_the_table() -> None:
    body = entry(1)
    assert flush_frame(CLUSTER, 5, 2, 64, len(body), 1) + body == flush(5, 64, [body], file=2)
    assert len(flush(1, 64, [])) == FLUSH_FRAME_BYTES


def test_bytes_of_a_message_are_never_taken_for_a_flush_frame() -> None:
    """A client that knows the format, but not the cluster id, sends the next flush's frame in a
    message that is then torn.
    """
    at = ENDS[0] + FLUSH_FRAME_BYTES + RECORD_HEAD_BYTES + 8
    found = {}
    for cluster in (b"guessed by a foe", CLUSTER):
        whole = journal_file([[entry(1, bytes(8) + flush_frame(cluster, 2, 1, at, 0, 0) + b"rest")]])
        found[cluster] = scanned(whole[:-2] + b"\xff\xff")[1].later_flush
    assert found == {b"guessed by a foe": None, CLUSTER: at}


@pytest.mark.parametrize("proposal", [None, ProposalId(7, 8, 2**50), (1, 0, 0)])
def test_a_record_has_the_bytes_of_the_table(proposal: tuple[int, int, int] | None) -> None:
    kind, entry_type = RecordKind.ENTRY, EntryType.COMMAND
    head = record_head((kind, entry_type, 1000, 2**40, 3, 2**40 - 5, proposal, b"payload"))
    assert head + b"payload" == record(
        1, 2, 1000, 2**40, 3, b"payload", commit=2**40 - 5, proposal=proposal or (0, 0, 0)
    )
    assert len(head) == RECORD_HEAD_BYTES == head_bytes(2)
    data = memoryview(journal_file([[head + b"payload"]]))
    [(_, [place])] = FlushScan(data, header_of(bytes(data[:16])), 1)
    found = journal_record(data, place, 2)
    assert (found.kind, found.entry_type, found.raft_group) == (kind, entry_type, 1000)
    assert (found.index, found.term, found.commit) == (2**40, 3, 2**40 - 5)
    assert (found.proposal, bytes(found.payload), found.version) == (proposal, b"payload", 2)


def test_a_record_of_version_1_has_no_commit_index_and_no_proposal() -> None:
    data = memoryview(journal_file([[entry(4, b"payload", term=2, version=1)]], version=1))
    [(_, [place])] = FlushScan(data, header_of(bytes(data[:16])), 1)
    found = journal_record(data, place, 1)
    assert (found.version, found.index, found.term, bytes(found.payload)) == (1, 4, 2, b"payload")
    assert (found.commit, found.proposal, head_bytes(1)) == (0, None, 36)


def test_the_numbers_of_kinds_and_types_never_change() -> None:
    assert {kind.name: kind.value for kind in RecordKind} == {
        "ENTRY": 1,
        "HARD_STATE": 2,
        "APPLIED_POSITIONS": 3,
        "RELOCATED_ENTRY": 4,
        "LOG_RESET": 5,
        "RELOCATED_LOG_RESET": 6,
        "INCARNATION": 7,
        "PEER_STARTS": 8,
        "REPLICA_GONE": 9,
    }
    assert {kind.name: kind.value for kind in EntryType} == {
        "EMPTY": 0,
        "RECORD_BATCH": 1,
        "COMMAND": 2,
        "CONF_CHANGE": 3,
        "CONF_CHANGE_V2": 4,
        "STAGED_PIECE": 5,
        "RECORD_BATCHES": 6,
    }


def test_these_bytes_are_versions_1_and_2() -> None:
    # Written by hand, so that a change to the code cannot change them too.
    rest = (
        "0100000000000000 3031323334353637 3839616263646566 0100000000000000 0000000000000000 "
        "0000000000000000"
    )
    assert header(1, version=1).hex(" ", 8) == f"504958594a524e4c 0100000076327a89 {rest}"
    assert file_header(1, CLUSTER, 1).hex(" ", 8) == f"504958594a524e4c 0200000079592560 {rest}"
    record = (1, 1, 1000, 5, 3, 4, (1, 2, 9), b"payload")
    assert record_head(record).hex(" ", 4) == (
        "07000000 5ed68c01 01010000 e8030000 00000000 05000000 00000000 03000000 00000000 "
        "04000000 00000000 01000000 02000000 09000000 00000000"
    )


def test_a_file_header_of_every_shorter_length_is_not_valid() -> None:
    for size in range(FILE_HEADER_BYTES):
        assert isinstance(read_file_header(header()[:size]), str)


def test_every_flipped_bit_of_a_file_header_is_noticed() -> None:
    for at in range(FILE_HEADER_BYTES):
        for bit in range(8):
            flipped = bytearray(header())
            flipped[at] ^= 1 << bit
            try:
                assert isinstance(read_file_header(flipped), str), at
            except DataDirectoryError:  # a version above ours, whatever its checksum
                assert 8 <= at < 12


def test_a_greater_version_belongs_to_a_newer_release_whatever_the_checksum_and_length() -> None:
    for newer in (header(version=3), header(version=3)[:40] + bytes(24), header(version=3)[:12]):
        with pytest.raises(DataDirectoryError, match="format version 3 is newer than 2"):
            read_file_header(newer)
    assert "file begins with" in str(read_file_header(b"x" + header(version=3)[1:]))


def test_version_0_is_refused_but_one_that_is_damaged_to_0_is_damage() -> None:
    with pytest.raises(DataDirectoryError, match="format version 0 was never written, expected 1 to 2"):
        read_file_header(header(version=0))
    damaged = bytearray(header())
    damaged[8] = 0
    assert read_file_header(damaged) == "the file header's checksum is wrong"


def test_the_first_flush_number_is_read_from_behind_the_header() -> None:
    assert first_flush_number(journal_file([[entry(1)]], first_flush=9)) == 9
    assert first_flush_number(header() + bytes(100)) is None
    assert first_flush_number(header()) is None


# --- what a scan finds ----------------------------------------------------------------------------


def test_a_valid_flush_n__taken() -> None:
    found, scan = scanned(FILE)
    assert found == [
        (1000, 1, b"one"),
        (1001, 1, b"other"),
        (1000, 2, b"two"),
        (1000, 3, b"three" * 5),
    ]
    assert (scan.end, scan.next_flush, scan.damage, scan.later_flush) == (ENDS[3], 4, "", None)


def test_zeros_or_the_end_of_the_file__the_end_of_the_journal() -> None:
    for data in (FILE, FILE[: ENDS[3]], FILE[: ENDS[3] + 1], FILE[: ENDS[3] + 39]):
        found, scan = scanned(data)
        assert (found, scan.end, scan.damage) == (PREFIXES[3], ENDS[3], "")
    assert scanned(header(), 5)[1].next_flush == 5


def test_anything_else__a_torn_tail() -> None:
    torn = bytearray(FILE)
    torn[ENDS[2] + 60] ^= 1
    found, scan = scanned(torn)
    assert (found, scan.end, scan.next_flush) == (PREFIXES[2], ENDS[2], 3)
    assert (scan.damage, scan.later_flush) == ("a record's checksum is wrong", None)


def test_anything_but_a_valid_flush_n_before_a_later_one__corruption() -> None:
    damaged = bytearray(FILE)
    damaged[ENDS[0] + 60] ^= 1
    found, scan = scanned(damaged)
    assert (found, scan.end, scan.later_flush) == ([], ENDS[0], ENDS[1])


def test_a_later_flush_where_flush_n_is_expected__corruption() -> None:
    found, scan = scanned(journal_file([[entry(9)]], first_flush=4), 3)
    assert (found, scan.end, scan.later_flush) == ([], FILE_HEADER_BYTES, FILE_HEADER_BYTES)
    assert scan.damage == "flush 4 of file 1 at byte 64, expected flush 3 of file 1 at byte 64"


def test_an_earlier_flush_where_flush_n_is_expected__corruption() -> None:
    # No crash leaves one, so the bytes are not a torn tail.
    found, scan = scanned(journal_file([[entry(9)]], first_flush=2), 3)
    assert (found, scan.end, scan.later_flush) == ([], FILE_HEADER_BYTES, FILE_HEADER_BYTES)
    assert scan.damage == "flush 2 of file 1 at byte 64, expected flush 3 of file 1 at byte 64"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_flush_whose_frame_says_another_number_of_records__refused(count: int) -> None:
    body = [entry(1), entry(2)]
    wrong = header() + flush(1, 64, body, count=count)
    with pytest.raises(CorruptData, match=f"flush 1 at byte 64 has 2 records, its frame says {count}"):
        scanned(wrong)
    assert len(scanned(header() + flush(1, 64, body))[0]) == 2


@pytest.mark.parametrize(("kind", "entry_type"), [(10, 0), (0, 0), (255, 0), (1, 7), (4, 7)])
def test_a_record_of_an_unknown_kind__refused(kind: int, entry_type: int) -> None:
    with pytest.raises(
        CorruptData, match=f"kind {kind} and entry type {entry_type}, .* a newer one wrote it"
    ):
        scanned(journal_file([[entry(1)], [record(kind, entry_type)]]))


@pytest.mark.parametrize(("kind", "entry_type"), [(5, 0), (6, 0), (7, 0), (1, 3), (1, 4), (4, 5), (1, 6)])
def test_a_record_of_a_kind_that_the_version_does_not_have__refused(kind: int, entry_type: int) -> None:
    found = f"kind {kind} and entry type {entry_type}, which format version 1 does not have"
    with pytest.raises(CorruptData, match=found):
        scanned(journal_file([[record(kind, entry_type, version=1)]], version=1))
    scanned(journal_file([[record(kind, entry_type)]]))


# --- every damage ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("whole", EXAMPLES)
def test_every_truncated_file_gives_a_prefix_of_the_written_data_and_no_corruption(whole: Example) -> None:
    expected = prefixes(whole)
    for size in range(FILE_HEADER_BYTES, len(whole.data)):
        count = sum(end <= size for end in whole.ends[1:])
        for padding in (0, 200):
            found, scan = scanned(whole.data[:size] + bytes(padding))
            assert found == expected[count], size
            assert (scan.end, scan.later_flush) == (whole.ends[count], None), size


@pytest.mark.slow
@pytest.mark.parametrize("whole", EXAMPLES)
def test_every_flipped_bit_is_a_torn_tail_in_the_last_flush_and_corruption_before(whole: Example) -> None:
    expected = prefixes(whole)
    for at in range(FILE_HEADER_BYTES, whole.ends[3]):
        for bit in range(8):
            flipped = bytearray(whole.data)
            flipped[at] ^= 1 << bit
            found, scan = scanned(flipped)
            hit = next(number for number in range(3) if at < whole.ends[number + 1])
            assert found == expected[hit], at
            assert scan.damage, at
            assert scan.later_flush == (None if hit == 2 else whole.ends[hit + 1]), at


@pytest.mark.slow
def test_every_torn_sector_of_the_last_flush_is_a_torn_tail() -> None:
    # A disk writes sectors in any order: some of the last flush are written, others still zeros.
    large = [*FLUSHES[:2], [entry(3, bytes(range(1, 251)) * 4), entry(4, b"x" * 700)]]
    whole = journal_file(large, size=4096)
    sector = 128
    first, last = ENDS[2] // sector, len(whole.rstrip(b"\0")) // sector
    for missing in range(1, 1 << (last - first + 1)):
        torn = bytearray(whole)
        for number in range(first, last + 1):
            if missing >> (number - first) & 1:
                start = max(number * sector, ENDS[2])
                torn[start : (number + 1) * sector] = bytes((number + 1) * sector - start)
        found, scan = scanned(torn)
        assert (found, scan.end, scan.later_flush) == (PREFIXES[2], ENDS[2], None)


@given(st.integers(FILE_HEADER_BYTES, ENDS[3]), st.binary(min_size=1, max_size=60))
def test_any_scribble_leaves_a_prefix(at: int, scribble: bytes) -> None:
    data = bytearray(FILE)
    data[at : at + len(scribble)] = scribble
    assert scanned(data)[0] in PREFIXES


def test_a_frame_in_a_payload_is_not_a_later_flush() -> None:
    # A message may contain anything, for instance a journal file.
    inside = flush(9, 64, [entry(1)])
    torn = bytearray(journal_file([[entry(1, inside + b"end")]]))
    torn[-1] ^= 1
    assert scanned(torn)[1].later_flush is None


def test_is_zero_looks_at_every_byte() -> None:
    for size in (0, 1, 65535, 65536, 65537, 200000):
        assert is_zero(memoryview(bytes(size)))
        for at in {0, size // 2, size - 1} & set(range(size)):
            data = bytearray(size)
            data[at] = 1
            assert not is_zero(memoryview(data))
