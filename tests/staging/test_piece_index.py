"""The index of a unit of pieces: nothing is written that a start does not read, in earlier releases
neither, and what earlier ones wrote is read.
"""

import struct
from pathlib import Path

from pixy.proto.state_pb2 import PieceExtent, PieceIndex
from pixy.records import crc32c
from pixy.staging.piece_files import UNIT_PIECES_MAX, PieceFile, recover_pieces
from pixy.storage import RealDisk
from tests.staging.pieces import new_piece
from tests.storage.logs import CLUSTER_ID


def test_an_index_as_large_as_an_earlier_release_wrote_it_is_read(tmp_path: Path) -> None:
    one, two = new_piece(b"one"), new_piece(b"two", number=1)
    file = PieceFile(RealDisk(), tmp_path, CLUSTER_ID, 7)
    file.write([one])
    file.write([two])
    path = tmp_path / f"{7:020d}.pieces"
    content = path.read_bytes()
    (length,) = struct.unpack_from("<I", content, 40 + 8)
    # A field that this release does not know.
    index = content[60 : 60 + length] + b"\x7a\x80\x80\xc0\x08" + bytes(17 << 20)
    lengths = struct.pack("<I", len(index)) + content[52:60]
    head = b"UNIT" + struct.pack("<I", crc32c(index, crc32c(lengths))) + lengths
    path.write_bytes(content[:40] + head + index + content[60 + length :])
    [(_, places)] = recover_pieces(RealDisk(), tmp_path, CLUSTER_ID).values()
    assert places.keys() == {one.key, two.key}


def test_the_largest_index_that_is_written_is_read_by_earlier_releases_too() -> None:
    numbers = {"raft_group": 2**64 - 1, "number": 2**32 - 1, "crc": 2**32 - 1}
    extent = PieceExtent(**numbers, records=2**63 - 1, bytes=2**64 - 1)
    index = PieceIndex(extents=[extent]).SerializeToString()
    assert len(index) * UNIT_PIECES_MAX <= 16 << 20
