"""Error codes of Kafka, and those of pixy's errors where Kafka's clients expect others.

A client decides by the code whether it asks again. Errors that pass, and after which nothing was
written, are NOT_LEADER_OR_FOLLOWER for records: every client then asks for the leader and tries
again, while BROKER_NOT_AVAILABLE and THROTTLING_QUOTA_EXCEEDED are the end of a message for some.
"""

from pixy.errors import (
    CorruptData,
    DeadlineExceeded,
    InvalidArgument,
    PixyError,
    ResourceExhausted,
    ServiceDisabled,
    Unavailable,
)

NONE = 0
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
NOT_LEADER_OR_FOLLOWER = 6
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
COORDINATOR_LOAD_IN_PROGRESS = 14
INVALID_TOPIC = 17
INVALID_REQUIRED_ACKS = 21
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_SASL_MECHANISM = 33
ILLEGAL_SASL_STATE = 34
TOPIC_ALREADY_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_REPLICATION_FACTOR = 38
INVALID_REPLICA_ASSIGNMENT = 39
INVALID_CONFIG = 40
INVALID_REQUEST = 42
POLICY_VIOLATION = 44
TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
KAFKA_STORAGE_ERROR = 56
SASL_AUTHENTICATION_FAILED = 58
FETCH_SESSION_ID_NOT_FOUND = 70
UNSUPPORTED_COMPRESSION_TYPE = 76
INVALID_RECORD = 87
UNKNOWN_TOPIC_ID = 100

_TEXT_CHARACTERS_MAX = 1000


def record_code(error: PixyError) -> int:
    """The code of an error of Produce, Fetch or ListOffsets for one partition."""
    if isinstance(error, DeadlineExceeded):
        return REQUEST_TIMED_OUT
    if isinstance(error, ServiceDisabled):
        return error.kafka_code
    if isinstance(error, (Unavailable, ResourceExhausted)):
        return NOT_LEADER_OR_FOLLOWER
    return KAFKA_STORAGE_ERROR if isinstance(error, CorruptData) else error.kafka_code


def admin_code(error: PixyError) -> int:
    """The code of an error of any other API."""
    return REQUEST_TIMED_OUT if isinstance(error, Unavailable) else error.kafka_code


def option_code(error: PixyError) -> int:
    """The code of an error of what creates or changes topics: an invalid argument is an option, as
    all others are checked before.
    """
    if isinstance(error, ResourceExhausted):
        # A limit that does not pass by itself: THROTTLING_QUOTA_EXCEEDED would be tried again.
        return POLICY_VIOLATION
    code = admin_code(error)
    return INVALID_CONFIG if code == INVALID_REQUEST and isinstance(error, InvalidArgument) else code


def text_of(error: PixyError) -> str:
    """The text of an error for a client. It may have a client's own words, and an answer has 32 KiB
    for it.
    """
    return str(error)[:_TEXT_CHARACTERS_MAX]
