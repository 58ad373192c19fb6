"""Largest number of elements of each repeated field of each request, and the fields that may have
any number of bytes, by service and method.

A server refuses a request beyond a maximum before it makes an object (`pixy.rpc.field_limits`).
Handlers go through thousands of elements in steps; the maxima bound the memory and the time of a
call, and the steps that cannot be divided: its scan, its parser, and its answer.

Every method whose request repeats a field has a row, else the server does not start. A field that
is not listed as large has `FIELD_BYTES_MAX` bytes at most.
"""

from pixy.elements_per_call import ELEMENTS_PER_CALL
from pixy.rpc import LargeFields, Maxima

_PARTITIONS = 1000
"""Partitions of one write, and topics in it; partitions that begin to move."""
_ELEMENTS = ELEMENTS_PER_CALL
"""Names, queries and ranges: a stream keeps its ranges until it ends. Offsets that are set, all or
none, and stages that are published or discarded: each node applies those of a call in one step. The
metadata of offsets has a maximum of its own (`pixy.consume.partition.commits`).
"""
_HEADERS = 10_000
"""Above `producer.max_headers`, which has its own refusal."""
_OPTIONS = 1000

REPEATED_MAX: dict[str, Maxima] = {
    "KafkaPixy": {"Produce": {"headers": _HEADERS}, "SetOffsets": {"offsets": _ELEMENTS}},
    "Topics": {
        "CreateTopic": {"config": _OPTIONS},
        "AlterTopic": {"set": _OPTIONS, "unset": _OPTIONS},
        "DeleteRecords": {"partitions": _ELEMENTS},
    },
    "Log": {
        "DescribeTopics": {"topics": _ELEMENTS},
        "ListOffsets": {"queries": _ELEMENTS},
        "Fetch": {"ranges": _ELEMENTS},
        "ConsumeBatch": {"acks": _ELEMENTS},
        "Append": {"partitions": _PARTITIONS, "versions": _PARTITIONS},
        "Stage": {"partitions": _PARTITIONS, "versions": _PARTITIONS},
        "Publish": {"stage_ids": _ELEMENTS},
        "Discard": {"stage_ids": _ELEMENTS},
    },
    "Cluster": {"BeginMoves": {"tokens": _PARTITIONS}},
}
"""By name of the service, method and field."""

LARGE_FIELDS: dict[str, LargeFields] = {
    "KafkaPixy": {"Produce": {"key_value", "message", "headers.key", "headers.value"}},
    "Topics": {},
    "Log": {"Append": {"partitions.batches"}, "Stage": {"partitions.batches"}},
    "Cluster": {},
}
"""Paths in the request, by name of the service and method."""
