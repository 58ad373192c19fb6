"""Messages of consumer groups, their offsets and coordinators, each in one version of Kafka 3.1 to
4.x.

JoinGroup has version 5, the last one without flexible fields: the coordinator assigns the member id
before the member joins (KIP-394), so a lost response leaves no dead member behind. Groups are
described by two messages, one for the classic protocol and one for that of KIP-848, which the older
one omits.
"""

from pixy.kafka_protocol.api import Api
from pixy.kafka_protocol.fields import (
    BOOLEAN,
    BYTES,
    COMPACT_BYTES,
    COMPACT_STRING,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING,
    TAGGED_FIELDS,
    UUID,
    Array,
    CompactArray,
    Struct,
)

GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1
"""The kinds of coordinators that are asked for."""

_TAGS = ("tags", TAGGED_FIELDS)

FIND_COORDINATOR = Api(
    "FindCoordinator",
    10,
    2,
    Struct(("key", STRING), ("key_type", INT8)),
    Struct(
        ("throttle_time_ms", INT32),
        ("error_code", INT16),
        ("error_message", STRING),
        ("node_id", INT32),
        ("host", STRING),
        ("port", INT32),
    ),
    flexible=False,
)

JOIN_GROUP = Api(
    "JoinGroup",
    11,
    5,
    Struct(
        ("group", STRING),
        ("session_timeout_ms", INT32),
        ("rebalance_timeout_ms", INT32),
        ("member_id", STRING),
        ("group_instance_id", STRING),
        ("protocol_type", STRING),
        ("protocols", Array(("name", STRING), ("metadata", BYTES))),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        ("error_code", INT16),
        ("generation", INT32),
        ("protocol", STRING),
        ("leader", STRING),
        ("member_id", STRING),
        ("members", Array(("member_id", STRING), ("group_instance_id", STRING), ("metadata", BYTES))),
    ),
    flexible=False,
)

SYNC_GROUP = Api(
    "SyncGroup",
    14,
    3,
    Struct(
        ("group", STRING),
        ("generation", INT32),
        ("member_id", STRING),
        ("group_instance_id", STRING),
        ("assignments", Array(("member_id", STRING), ("assignment", BYTES))),
    ),
    Struct(("throttle_time_ms", INT32), ("error_code", INT16), ("assignment", BYTES)),
    flexible=False,
)

HEARTBEAT = Api(
    "Heartbeat",
    12,
    3,
    Struct(
        ("group", STRING),
        ("generation", INT32),
        ("member_id", STRING),
        ("group_instance_id", STRING),
    ),
    Struct(("throttle_time_ms", INT32), ("error_code", INT16)),
    flexible=False,
)

LEAVE_GROUP = Api(
    "LeaveGroup",
    13,
    2,
    Struct(("group", STRING), ("member_id", STRING)),
    Struct(("throttle_time_ms", INT32), ("error_code", INT16)),
    flexible=False,
)

OFFSET_COMMIT = Api(
    "OffsetCommit",
    8,
    7,
    Struct(
        ("group", STRING),
        ("generation", INT32),
        ("member_id", STRING),
        ("group_instance_id", STRING),
        (
            "topics",
            Array(
                ("topic", STRING),
                (
                    "partitions",
                    Array(
                        ("partition", INT32),
                        ("offset", INT64),
                        ("leader_epoch", INT32),
                        ("metadata", STRING),
                    ),
                ),
            ),
        ),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "topics",
            Array(("topic", STRING), ("partitions", Array(("partition", INT32), ("error_code", INT16)))),
        ),
    ),
    flexible=False,
)

OFFSET_FETCH = Api(
    "OffsetFetch",
    9,
    7,
    Struct(
        ("group", COMPACT_STRING),
        ("topics", CompactArray(("topic", COMPACT_STRING), ("partitions", CompactArray(INT32)), _TAGS)),
        ("require_stable", BOOLEAN),
        _TAGS,
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "topics",
            CompactArray(
                ("topic", COMPACT_STRING),
                (
                    "partitions",
                    CompactArray(
                        ("partition", INT32),
                        ("offset", INT64),
                        ("leader_epoch", INT32),
                        ("metadata", COMPACT_STRING),
                        ("error_code", INT16),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("error_code", INT16),
        _TAGS,
    ),
)

LIST_GROUPS = Api(
    "ListGroups",
    16,
    4,
    Struct(("states_filter", CompactArray(COMPACT_STRING)), _TAGS),
    Struct(
        ("throttle_time_ms", INT32),
        ("error_code", INT16),
        (
            "groups",
            CompactArray(
                ("group", COMPACT_STRING), ("protocol_type", COMPACT_STRING), ("state", COMPACT_STRING), _TAGS
            ),
        ),
        _TAGS,
    ),
)

DESCRIBE_GROUPS = Api(
    "DescribeGroups",
    15,
    5,
    Struct(("groups", CompactArray(COMPACT_STRING)), ("include_authorized_operations", BOOLEAN), _TAGS),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "groups",
            CompactArray(
                ("error_code", INT16),
                ("group", COMPACT_STRING),
                ("state", COMPACT_STRING),
                ("protocol_type", COMPACT_STRING),
                ("protocol", COMPACT_STRING),
                (
                    "members",
                    CompactArray(
                        ("member_id", COMPACT_STRING),
                        ("group_instance_id", COMPACT_STRING),
                        ("client_id", COMPACT_STRING),
                        ("client_host", COMPACT_STRING),
                        ("metadata", COMPACT_BYTES),
                        ("assignment", COMPACT_BYTES),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", INT32),
                _TAGS,
            ),
        ),
        _TAGS,
    ),
)

_ASSIGNMENT = Struct(
    (
        "topic_partitions",
        CompactArray(
            ("topic_id", UUID), ("topic", COMPACT_STRING), ("partitions", CompactArray(INT32)), _TAGS
        ),
    ),
    _TAGS,
)

CONSUMER_GROUP_DESCRIBE = Api(
    "ConsumerGroupDescribe",
    69,
    0,
    Struct(("groups", CompactArray(COMPACT_STRING)), ("include_authorized_operations", BOOLEAN), _TAGS),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "groups",
            CompactArray(
                ("error_code", INT16),
                ("error_message", COMPACT_STRING),
                ("group", COMPACT_STRING),
                ("state", COMPACT_STRING),
                ("group_epoch", INT32),
                ("assignment_epoch", INT32),
                ("assignor", COMPACT_STRING),
                (
                    "members",
                    CompactArray(
                        ("member_id", COMPACT_STRING),
                        ("group_instance_id", COMPACT_STRING),
                        ("rack_id", COMPACT_STRING),
                        ("member_epoch", INT32),
                        ("client_id", COMPACT_STRING),
                        ("client_host", COMPACT_STRING),
                        ("topics", CompactArray(COMPACT_STRING)),
                        ("topic_regex", COMPACT_STRING),
                        ("assignment", _ASSIGNMENT),
                        ("target_assignment", _ASSIGNMENT),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", INT32),
                _TAGS,
            ),
        ),
        _TAGS,
    ),
)

DELETE_GROUPS = Api(
    "DeleteGroups",
    42,
    1,
    Struct(("groups", Array(STRING))),
    Struct(("throttle_time_ms", INT32), ("results", Array(("group", STRING), ("error_code", INT16)))),
    flexible=False,
)

OFFSET_DELETE = Api(
    "OffsetDelete",
    47,
    0,
    Struct(("group", STRING), ("topics", Array(("topic", STRING), ("partitions", Array(INT32))))),
    Struct(
        ("error_code", INT16),
        ("throttle_time_ms", INT32),
        (
            "topics",
            Array(("topic", STRING), ("partitions", Array(("partition", INT32), ("error_code", INT16)))),
        ),
    ),
    flexible=False,
)
