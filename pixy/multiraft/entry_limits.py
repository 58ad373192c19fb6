"""Sizes of frames and entries that every node of a cluster takes, however configured. Pure.

They follow the largest `producer.max_message_bytes` that any node of the cluster ever had: metadata
keeps it of each node, and the greeting of a node tells it before the first frame. So a batch that
one node accepts reaches all replicas, while the option is changed node by node, and when it was
lowered and the batch is still in a journal.

    frame    at least 16 MiB, or four times that option
    entry    a frame without what is around the entries in it

An entry that is larger is refused where it is proposed: in no log is what no connection can carry.
"""

MESSAGE_BYTES_MAX = 1 << 30
"""Largest possible `producer.max_message_bytes`; a larger one of another node counts as this."""

_FRAME_BYTES = 16 << 20
_FACTOR = 4
_FRAME_BYTES_MAX = (1 << 31) - 1
_HEADS_BYTES = 1 << 20
"""Heads of messages and entries in a frame: thousands of messages without entries may go along."""


def frame_bytes_max(message_bytes: int) -> int:
    """Largest payload of a frame, by the largest `producer.max_message_bytes` of the cluster."""
    return min(max(_FRAME_BYTES, _FACTOR * min(message_bytes, MESSAGE_BYTES_MAX)), _FRAME_BYTES_MAX)


def entry_bytes_max(message_bytes: int) -> int:
    """Largest payload of an entry, by the same."""
    return frame_bytes_max(message_bytes) - _HEADS_BYTES
