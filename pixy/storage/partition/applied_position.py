"""Applied positions in a journal that no log has. Pure.

A checksum says that a position is what was written, not that it was right. A log that went on at an
impossible one would take records that nobody can read, and remove segments that somebody needs. So
the partition is not ready, and the files of its log stay as they are.
"""

from pixy.entry_ids import INDEX_MAX
from pixy.proto.state_pb2 import AppliedPosition

_OFFSET_MAX = 2**63 - 1


def why_no_position(position: AppliedPosition) -> str:
    """The first number of an applied position that is impossible, empty if there is none."""
    begin, end, base = position.log_begin_offset, position.end_offset, position.segment_base_offset
    if not 0 <= begin <= end < _OFFSET_MAX:
        return f"its applied position has records from offset {begin} to {end}"
    if not 0 <= base <= end:
        return f"its applied position has a segment that begins at offset {base}, and records up to {end}"
    for name in ("index", "publication"):
        number = getattr(position, name)
        if number > INDEX_MAX:
            return f"its applied position has {name} {number}, at most {INDEX_MAX} is possible"
    return ""
