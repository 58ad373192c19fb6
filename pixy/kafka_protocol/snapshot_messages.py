"""FetchSnapshot (KIP-630): a slice of the snapshot of a replicated log.

Version 1 adds the follower's directory to the request, and addresses of leaders to the response
(KIP-853): tagged fields both, so that the fixed fields are the same.

    message    struct      tag  content
    ---------  ----------  ---  --------------------------------------------------------------------
    request    top level   0    cluster id, COMPACT_STRING
    request    partition   0    directory id, UUID; from version 1 on
    response   partition   0    current leader, `CURRENT_LEADER`
    response   top level   0    addresses of leaders, `NODE_ENDPOINTS`; from version 1 on
"""

from pixy.kafka_protocol.api import Api
from pixy.kafka_protocol.fields import (
    COMPACT_BYTES,
    COMPACT_STRING,
    INT16,
    INT32,
    INT64,
    TAGGED_FIELDS,
    UINT16,
    CompactArray,
    Struct,
)

CLUSTER_ID_TAG = 0
CURRENT_LEADER_TAG = 0

_TAGS = ("tags", TAGGED_FIELDS)

CURRENT_LEADER = Struct(("leader_id", INT32), ("leader_epoch", INT32), _TAGS)

NODE_ENDPOINTS = CompactArray(("node_id", INT32), ("host", COMPACT_STRING), ("port", UINT16), _TAGS)

_SNAPSHOT_ID = Struct(("end_offset", INT64), ("epoch", INT32), _TAGS)

_REQUEST = Struct(
    ("replica_id", INT32),
    ("max_bytes", INT32),
    (
        "topics",
        CompactArray(
            ("name", COMPACT_STRING),
            (
                "partitions",
                CompactArray(
                    ("partition", INT32),
                    ("current_leader_epoch", INT32),
                    ("snapshot_id", _SNAPSHOT_ID),
                    ("position", INT64),
                    _TAGS,
                ),
            ),
            _TAGS,
        ),
    ),
    _TAGS,
)

_RESPONSE = Struct(
    ("throttle_time_ms", INT32),
    ("error_code", INT16),
    (
        "topics",
        CompactArray(
            ("name", COMPACT_STRING),
            (
                "partitions",
                CompactArray(
                    ("index", INT32),
                    ("error_code", INT16),
                    ("snapshot_id", _SNAPSHOT_ID),
                    ("size", INT64),
                    ("position", INT64),
                    ("unaligned_records", COMPACT_BYTES),
                    _TAGS,
                ),
            ),
            _TAGS,
        ),
    ),
    _TAGS,
)

FETCH_SNAPSHOT_V0 = Api("FetchSnapshot", 59, 0, _REQUEST, _RESPONSE)
FETCH_SNAPSHOT_V1 = Api("FetchSnapshot", 59, 1, _REQUEST, _RESPONSE)
