"""Messages of topics and records.

Each `Api` is one fixed version, supported by all brokers from Kafka 3.1 to 4.x.

Versions are chosen for their fields: topic ids in Metadata, Fetch and the response to CreateTopics,
the reason of an error in Produce. Field names and types are those of Kafka's message definitions
(kafka/clients/src/main/resources/common/message).
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
    FieldType,
    Struct,
)

READ_COMMITTED = 1
"""The isolation level of fetches and of offsets: up to the last stable offset, with the aborted
transactions named.
"""

TOPIC_RESOURCE = 2
ALTER_OPTION_SET = 0
ALTER_OPTION_DELETE = 1


def _many(*fields: tuple[str, FieldType]) -> CompactArray:
    """An array of structs of a flexible version."""
    return CompactArray(*fields, ("tags", TAGGED_FIELDS))


def _flexible(*fields: tuple[str, FieldType]) -> Struct:
    """The fields of a flexible version."""
    return Struct(*fields, ("tags", TAGGED_FIELDS))


_INTS = CompactArray(INT32)

METADATA = Api(
    "Metadata",
    3,
    12,
    _flexible(
        ("topics", _many(("topic_id", UUID), ("name", COMPACT_STRING))),
        ("allow_auto_topic_creation", BOOLEAN),
        ("include_topic_authorized_operations", BOOLEAN),
    ),
    _flexible(
        ("throttle_time_ms", INT32),
        (
            "brokers",
            _many(("node_id", INT32), ("host", COMPACT_STRING), ("port", INT32), ("rack", COMPACT_STRING)),
        ),
        ("cluster_id", COMPACT_STRING),
        ("controller_id", INT32),
        (
            "topics",
            _many(
                ("error_code", INT16),
                ("name", COMPACT_STRING),
                ("topic_id", UUID),
                ("is_internal", BOOLEAN),
                (
                    "partitions",
                    _many(
                        ("error_code", INT16),
                        ("partition", INT32),
                        ("leader", INT32),
                        ("leader_epoch", INT32),
                        ("replicas", _INTS),
                        ("isr", _INTS),
                        ("offline_replicas", _INTS),
                    ),
                ),
                ("authorized_operations", INT32),
            ),
        ),
    ),
)

PRODUCE = Api(
    "Produce",
    0,
    8,
    Struct(
        ("transactional_id", STRING),
        ("required_acks", INT16),
        ("timeout_ms", INT32),
        (
            "topics",
            Array(("topic", STRING), ("partitions", Array(("partition", INT32), ("records", BYTES)))),
        ),
    ),
    Struct(
        (
            "topics",
            Array(
                ("topic", STRING),
                (
                    "partitions",
                    Array(
                        ("partition", INT32),
                        ("error_code", INT16),
                        ("base_offset", INT64),
                        ("log_append_time", INT64),
                        ("log_start_offset", INT64),
                        ("record_errors", Array(("index", INT32), ("message", STRING))),
                        ("error_message", STRING),
                    ),
                ),
            ),
        ),
        ("throttle_time_ms", INT32),
    ),
    flexible=False,
)

FETCH = Api(
    "Fetch",
    1,
    13,
    _flexible(
        ("replica_id", INT32),
        ("max_wait_ms", INT32),
        ("min_bytes", INT32),
        ("max_bytes", INT32),
        ("isolation_level", INT8),
        ("session_id", INT32),
        ("session_epoch", INT32),
        (
            "topics",
            _many(
                ("topic_id", UUID),
                (
                    "partitions",
                    _many(
                        ("partition", INT32),
                        ("current_leader_epoch", INT32),
                        ("fetch_offset", INT64),
                        ("last_fetched_epoch", INT32),
                        ("log_start_offset", INT64),
                        ("max_bytes", INT32),
                    ),
                ),
            ),
        ),
        ("forgotten_topics", _many(("topic_id", UUID), ("partitions", _INTS))),
        ("rack_id", COMPACT_STRING),
    ),
    _flexible(
        ("throttle_time_ms", INT32),
        ("error_code", INT16),
        ("session_id", INT32),
        (
            "topics",
            _many(
                ("topic_id", UUID),
                (
                    "partitions",
                    _many(
                        ("partition", INT32),
                        ("error_code", INT16),
                        ("high_watermark", INT64),
                        ("last_stable_offset", INT64),
                        ("log_start_offset", INT64),
                        ("aborted_transactions", _many(("producer_id", INT64), ("first_offset", INT64))),
                        ("preferred_read_replica", INT32),
                        ("records", COMPACT_BYTES),
                    ),
                ),
            ),
        ),
    ),
)

CREATE_TOPICS = Api(
    "CreateTopics",
    19,
    7,
    _flexible(
        (
            "topics",
            _many(
                ("name", COMPACT_STRING),
                ("num_partitions", INT32),
                ("replication_factor", INT16),
                ("assignments", _many(("partition", INT32), ("broker_ids", _INTS))),
                ("configs", _many(("name", COMPACT_STRING), ("value", COMPACT_STRING))),
            ),
        ),
        ("timeout_ms", INT32),
        ("validate_only", BOOLEAN),
    ),
    _flexible(
        ("throttle_time_ms", INT32),
        (
            "topics",
            _many(
                ("name", COMPACT_STRING),
                ("topic_id", UUID),
                ("error_code", INT16),
                ("error_message", COMPACT_STRING),
                ("num_partitions", INT32),
                ("replication_factor", INT16),
                (
                    "configs",
                    _many(
                        ("name", COMPACT_STRING),
                        ("value", COMPACT_STRING),
                        ("read_only", BOOLEAN),
                        ("config_source", INT8),
                        ("is_sensitive", BOOLEAN),
                    ),
                ),
            ),
        ),
    ),
)

INCREMENTAL_ALTER_CONFIGS = Api(
    "IncrementalAlterConfigs",
    44,
    0,
    Struct(
        (
            "resources",
            Array(
                ("resource_type", INT8),
                ("resource_name", STRING),
                ("configs", Array(("name", STRING), ("operation", INT8), ("value", STRING))),
            ),
        ),
        ("validate_only", BOOLEAN),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "responses",
            Array(
                ("error_code", INT16),
                ("error_message", STRING),
                ("resource_type", INT8),
                ("resource_name", STRING),
            ),
        ),
    ),
    flexible=False,
)


LIST_OFFSETS = Api(
    "ListOffsets",
    2,
    3,
    Struct(
        ("replica_id", INT32),
        ("isolation_level", INT8),
        (
            "topics",
            Array(("topic", STRING), ("partitions", Array(("partition", INT32), ("timestamp", INT64)))),
        ),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "topics",
            Array(
                ("topic", STRING),
                (
                    "partitions",
                    Array(
                        ("partition", INT32),
                        ("error_code", INT16),
                        ("timestamp", INT64),
                        ("offset", INT64),
                    ),
                ),
            ),
        ),
    ),
    flexible=False,
)

DELETE_TOPICS = Api(
    "DeleteTopics",
    20,
    3,
    Struct(("topics", Array(STRING)), ("timeout_ms", INT32)),
    Struct(("throttle_time_ms", INT32), ("topics", Array(("topic", STRING), ("error_code", INT16)))),
    flexible=False,
)

DELETE_RECORDS = Api(
    "DeleteRecords",
    21,
    1,
    Struct(
        (
            "topics",
            Array(("topic", STRING), ("partitions", Array(("partition", INT32), ("offset", INT64)))),
        ),
        ("timeout_ms", INT32),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "topics",
            Array(
                ("topic", STRING),
                ("partitions", Array(("partition", INT32), ("low_watermark", INT64), ("error_code", INT16))),
            ),
        ),
    ),
    flexible=False,
)

CREATE_PARTITIONS = Api(
    "CreatePartitions",
    37,
    1,
    Struct(
        (
            "topics",
            Array(("topic", STRING), ("count", INT32), ("assignments", Array(Array(INT32)))),
        ),
        ("timeout_ms", INT32),
        ("validate_only", BOOLEAN),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        ("topics", Array(("topic", STRING), ("error_code", INT16), ("error_message", STRING))),
    ),
    flexible=False,
)

DESCRIBE_CONFIGS = Api(
    "DescribeConfigs",
    32,
    2,
    Struct(
        (
            "resources",
            Array(("resource_type", INT8), ("resource_name", STRING), ("config_names", Array(STRING))),
        ),
        ("include_synonyms", BOOLEAN),
    ),
    Struct(
        ("throttle_time_ms", INT32),
        (
            "resources",
            Array(
                ("error_code", INT16),
                ("error_message", STRING),
                ("resource_type", INT8),
                ("resource_name", STRING),
                (
                    "configs",
                    Array(
                        ("name", STRING),
                        ("value", STRING),
                        ("read_only", BOOLEAN),
                        ("config_source", INT8),
                        ("is_sensitive", BOOLEAN),
                        (
                            "synonyms",
                            Array(("name", STRING), ("value", STRING), ("config_source", INT8)),
                        ),
                    ),
                ),
            ),
        ),
    ),
    flexible=False,
)
