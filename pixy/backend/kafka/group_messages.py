"""The requests about consumer groups, each in one version that Kafka 3.1 to 4.x understand.

Joining is as in version 5, the last one without flexible fields: the member id is handed out before the member counts (KIP-394), so that
an answer that got lost leaves no dead member behind. Describing has both kinds of groups: classic ones, and those of KIP-848, which the
older request does not tell of.
"""

from aiokafka.protocol.types import (
    Array,
    Boolean,
    Bytes,
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from pixy.backend.kafka.messages import Api, Uuid

__all__ = [
    "CONSUMER_GROUP_DESCRIBE",
    "DESCRIBE_GROUPS",
    "FIND_COORDINATOR",
    "GROUP_COORDINATOR",
    "HEARTBEAT",
    "JOIN_GROUP",
    "LEAVE_GROUP",
    "LIST_GROUPS",
    "OFFSET_COMMIT",
    "OFFSET_FETCH",
    "SYNC_GROUP",
    "TRANSACTION_COORDINATOR",
]

GROUP_COORDINATOR = 0
TRANSACTION_COORDINATOR = 1
"""The kinds of coordinators that are asked for."""

_OLD_TEXT = String("utf-8")
_TEXT = CompactString("utf-8")
_TAGS = ("tags", TaggedFields)

FIND_COORDINATOR = Api(
    "FindCoordinator",
    10,
    2,
    Schema(("key", _OLD_TEXT), ("key_type", Int8)),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("error_message", _OLD_TEXT),
        ("node_id", Int32),
        ("host", _OLD_TEXT),
        ("port", Int32),
    ),
    flexible=False,
)

JOIN_GROUP = Api(
    "JoinGroup",
    11,
    5,
    Schema(
        ("group", _OLD_TEXT),
        ("session_timeout_ms", Int32),
        ("rebalance_timeout_ms", Int32),
        ("member_id", _OLD_TEXT),
        ("group_instance_id", _OLD_TEXT),
        ("protocol_type", _OLD_TEXT),
        ("protocols", Array(("name", _OLD_TEXT), ("metadata", Bytes))),
    ),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("generation", Int32),
        ("protocol", _OLD_TEXT),
        ("leader", _OLD_TEXT),
        ("member_id", _OLD_TEXT),
        ("members", Array(("member_id", _OLD_TEXT), ("group_instance_id", _OLD_TEXT), ("metadata", Bytes))),
    ),
    flexible=False,
)

SYNC_GROUP = Api(
    "SyncGroup",
    14,
    3,
    Schema(
        ("group", _OLD_TEXT),
        ("generation", Int32),
        ("member_id", _OLD_TEXT),
        ("group_instance_id", _OLD_TEXT),
        ("assignments", Array(("member_id", _OLD_TEXT), ("assignment", Bytes))),
    ),
    Schema(("throttle_time_ms", Int32), ("error_code", Int16), ("assignment", Bytes)),
    flexible=False,
)

HEARTBEAT = Api(
    "Heartbeat",
    12,
    3,
    Schema(
        ("group", _OLD_TEXT),
        ("generation", Int32),
        ("member_id", _OLD_TEXT),
        ("group_instance_id", _OLD_TEXT),
    ),
    Schema(("throttle_time_ms", Int32), ("error_code", Int16)),
    flexible=False,
)

LEAVE_GROUP = Api(
    "LeaveGroup",
    13,
    2,
    Schema(("group", _OLD_TEXT), ("member_id", _OLD_TEXT)),
    Schema(("throttle_time_ms", Int32), ("error_code", Int16)),
    flexible=False,
)

OFFSET_COMMIT = Api(
    "OffsetCommit",
    8,
    7,
    Schema(
        ("group", _OLD_TEXT),
        ("generation", Int32),
        ("member_id", _OLD_TEXT),
        ("group_instance_id", _OLD_TEXT),
        (
            "topics",
            Array(
                ("topic", _OLD_TEXT),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _OLD_TEXT),
                    ),
                ),
            ),
        ),
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(("topic", _OLD_TEXT), ("partitions", Array(("partition", Int32), ("error_code", Int16)))),
        ),
    ),
    flexible=False,
)

OFFSET_FETCH = Api(
    "OffsetFetch",
    9,
    7,
    Schema(
        ("group", _TEXT),
        ("topics", CompactArray(("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS)),
        ("require_stable", Boolean),
        _TAGS,
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            CompactArray(
                ("topic", _TEXT),
                (
                    "partitions",
                    CompactArray(
                        ("partition", Int32),
                        ("offset", Int64),
                        ("leader_epoch", Int32),
                        ("metadata", _TEXT),
                        ("error_code", Int16),
                        _TAGS,
                    ),
                ),
                _TAGS,
            ),
        ),
        ("error_code", Int16),
        _TAGS,
    ),
)

LIST_GROUPS = Api(
    "ListGroups",
    16,
    4,
    Schema(("states_filter", CompactArray(_TEXT)), _TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("groups", CompactArray(("group", _TEXT), ("protocol_type", _TEXT), ("state", _TEXT), _TAGS)),
        _TAGS,
    ),
)

DESCRIBE_GROUPS = Api(
    "DescribeGroups",
    15,
    5,
    Schema(("groups", CompactArray(_TEXT)), ("include_authorized_operations", Boolean), _TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("group", _TEXT),
                ("state", _TEXT),
                ("protocol_type", _TEXT),
                ("protocol", _TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", _TEXT),
                        ("group_instance_id", _TEXT),
                        ("client_id", _TEXT),
                        ("client_host", _TEXT),
                        ("metadata", CompactBytes),
                        ("assignment", CompactBytes),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    ),
)

_ASSIGNMENT = Schema(
    (
        "topic_partitions",
        CompactArray(("topic_id", Uuid), ("topic", _TEXT), ("partitions", CompactArray(Int32)), _TAGS),
    ),
    _TAGS,
)

CONSUMER_GROUP_DESCRIBE = Api(
    "ConsumerGroupDescribe",
    69,
    0,
    Schema(("groups", CompactArray(_TEXT)), ("include_authorized_operations", Boolean), _TAGS),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "groups",
            CompactArray(
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("group", _TEXT),
                ("state", _TEXT),
                ("group_epoch", Int32),
                ("assignment_epoch", Int32),
                ("assignor", _TEXT),
                (
                    "members",
                    CompactArray(
                        ("member_id", _TEXT),
                        ("group_instance_id", _TEXT),
                        ("rack_id", _TEXT),
                        ("member_epoch", Int32),
                        ("client_id", _TEXT),
                        ("client_host", _TEXT),
                        ("topics", CompactArray(_TEXT)),
                        ("topic_regex", _TEXT),
                        ("assignment", _ASSIGNMENT),
                        ("target_assignment", _ASSIGNMENT),
                        _TAGS,
                    ),
                ),
                ("authorized_operations", Int32),
                _TAGS,
            ),
        ),
        _TAGS,
    ),
)
