"""The requests that aiokafka lacks, or has in versions without topic ids, in aiokafka's own terms.

Each is one fixed version of one API, all of which brokers from Kafka 3.1 on understand; 4.x has dropped none of them. A version is chosen
for what it has: topic ids in Metadata, Fetch and the answer to CreateTopics, the reason of a refusal in Produce.

Field names and types are those of Kafka's message definitions (kafka/clients/src/main/resources/common/message).
"""

from typing import Any

from aiokafka.errors import IncompatibleBrokerVersion
from aiokafka.protocol.api import RequestStruct, Response
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

__all__ = [
    "ALTER_OPTION_DELETE",
    "ALTER_OPTION_SET",
    "CREATE_TOPICS",
    "FETCH",
    "INCREMENTAL_ALTER_CONFIGS",
    "METADATA",
    "PRODUCE",
    "READ_COMMITTED",
    "TOPIC_RESOURCE",
    "Api",
    "Uuid",
]

READ_COMMITTED = 1
"""The isolation level of fetches and of offsets: up to the last stable offset, with the aborted transactions named."""

TOPIC_RESOURCE = 2
ALTER_OPTION_SET = 0
ALTER_OPTION_DELETE = 1


class Uuid:
    """A topic id: 16 bytes."""

    @staticmethod
    def encode(value: bytes) -> bytes:
        return value

    @staticmethod
    def decode(source: Any) -> bytes:
        value: bytes = source.read(16)
        if len(value) != 16:
            raise ValueError("a topic id is cut off")
        return value

    repr = staticmethod(repr)


class _Request:
    """A request of one version: what `AIOKafkaConnection.send` asks for its bytes."""

    def __init__(self, api: "Api", struct: Any) -> None:
        self._api = api
        self._struct = struct

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Any:
        """The struct to be sent.

        Raises:
            IncompatibleBrokerVersion: the broker does not know this version.
        """
        key, version = self._api.key, self._api.version
        lowest, highest = versions.get(key, (0, -1))
        if not lowest <= version <= highest:
            raise IncompatibleBrokerVersion(
                f"the broker knows versions {lowest} to {highest} of {self._api.name}, version {version} is needed "
                "(Kafka 3.1 or newer)"
            )
        return self._struct


class Api:
    """One API in one version; called with the fields of a request, in their order, it makes one."""

    def __init__(
        self, name: str, key: int, version: int, request: Any, response: Any, *, flexible: bool = True
    ) -> None:
        self.name = name
        self.key = key
        self.version = version
        fields = {"API_KEY": key, "API_VERSION": version}
        answer = type(f"{name}Response", (Response,), {**fields, "SCHEMA": response})
        request_fields = {"SCHEMA": request, "RESPONSE_TYPE": answer, "FLEXIBLE_VERSION": flexible}
        self._struct = type(f"{name}Request", (RequestStruct,), {**fields, **request_fields})

    def __call__(self, *fields: Any) -> _Request:
        return _Request(self, self._struct(*fields))


def _many(*fields: Any) -> Any:
    """A list of structs of a flexible version."""
    return CompactArray(*fields, ("tags", TaggedFields))


def _schema(*fields: Any) -> Any:
    """The fields of a flexible version."""
    return Schema(*fields, ("tags", TaggedFields))


_TEXT = CompactString("utf-8")
_OLD_TEXT = String("utf-8")
# aiokafka's Array takes for an element what is a class of its own, or a Schema.
_INTS = CompactArray(Int32)

METADATA = Api(
    "Metadata",
    3,
    12,
    _schema(
        ("topics", _many(("topic_id", Uuid), ("name", _TEXT))),
        ("allow_auto_topic_creation", Boolean),
        ("include_topic_authorized_operations", Boolean),
    ),
    _schema(
        ("throttle_time_ms", Int32),
        ("brokers", _many(("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT))),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        (
            "topics",
            _many(
                ("error_code", Int16),
                ("name", _TEXT),
                ("topic_id", Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    _many(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", _INTS),
                        ("isr", _INTS),
                        ("offline_replicas", _INTS),
                    ),
                ),
                ("authorized_operations", Int32),
            ),
        ),
    ),
)

PRODUCE = Api(
    "Produce",
    0,
    8,
    Schema(
        ("transactional_id", _OLD_TEXT),
        ("required_acks", Int16),
        ("timeout_ms", Int32),
        (
            "topics",
            Array(("topic", _OLD_TEXT), ("partitions", Array(("partition", Int32), ("records", Bytes)))),
        ),
    ),
    Schema(
        (
            "topics",
            Array(
                ("topic", _OLD_TEXT),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("base_offset", Int64),
                        ("log_append_time", Int64),
                        ("log_start_offset", Int64),
                        ("record_errors", Array(("index", Int32), ("message", _OLD_TEXT))),
                        ("error_message", _OLD_TEXT),
                    ),
                ),
            ),
        ),
        ("throttle_time_ms", Int32),
    ),
    flexible=False,
)

FETCH = Api(
    "Fetch",
    1,
    13,
    _schema(
        ("replica_id", Int32),
        ("max_wait_ms", Int32),
        ("min_bytes", Int32),
        ("max_bytes", Int32),
        ("isolation_level", Int8),
        ("session_id", Int32),
        ("session_epoch", Int32),
        (
            "topics",
            _many(
                ("topic_id", Uuid),
                (
                    "partitions",
                    _many(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("fetch_offset", Int64),
                        ("last_fetched_epoch", Int32),
                        ("log_start_offset", Int64),
                        ("max_bytes", Int32),
                    ),
                ),
            ),
        ),
        ("forgotten_topics", _many(("topic_id", Uuid), ("partitions", _INTS))),
        ("rack_id", _TEXT),
    ),
    _schema(
        ("throttle_time_ms", Int32),
        ("error_code", Int16),
        ("session_id", Int32),
        (
            "topics",
            _many(
                ("topic_id", Uuid),
                (
                    "partitions",
                    _many(
                        ("partition", Int32),
                        ("error_code", Int16),
                        ("high_watermark", Int64),
                        ("last_stable_offset", Int64),
                        ("log_start_offset", Int64),
                        ("aborted_transactions", _many(("producer_id", Int64), ("first_offset", Int64))),
                        ("preferred_read_replica", Int32),
                        ("records", CompactBytes),
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
    _schema(
        (
            "topics",
            _many(
                ("name", _TEXT),
                ("num_partitions", Int32),
                ("replication_factor", Int16),
                ("assignments", _many(("partition", Int32), ("broker_ids", _INTS))),
                ("configs", _many(("name", _TEXT), ("value", _TEXT))),
            ),
        ),
        ("timeout_ms", Int32),
        ("validate_only", Boolean),
    ),
    _schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            _many(
                ("name", _TEXT),
                ("topic_id", Uuid),
                ("error_code", Int16),
                ("error_message", _TEXT),
                ("num_partitions", Int32),
                ("replication_factor", Int16),
                (
                    "configs",
                    _many(
                        ("name", _TEXT),
                        ("value", _TEXT),
                        ("read_only", Boolean),
                        ("config_source", Int8),
                        ("is_sensitive", Boolean),
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
    Schema(
        (
            "resources",
            Array(
                ("resource_type", Int8),
                ("resource_name", _OLD_TEXT),
                ("configs", Array(("name", _OLD_TEXT), ("operation", Int8), ("value", _OLD_TEXT))),
            ),
        ),
        ("validate_only", Boolean),
    ),
    Schema(
        ("throttle_time_ms", Int32),
        (
            "responses",
            Array(
                ("error_code", Int16),
                ("error_message", _OLD_TEXT),
                ("resource_type", Int8),
                ("resource_name", _OLD_TEXT),
            ),
        ),
    ),
    flexible=False,
)
