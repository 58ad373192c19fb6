"""Mapping of Kafka's error codes to pixy's errors: one table for all requests.

A code is *retriable* if the same request may succeed later, and *stale* if the metadata or the
coordinator may be out of date. Codes that are not in the table map to `Internal`, with number and
name.
"""

from aiokafka.errors import for_code

from pixy.errors import (
    CorruptData,
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    InvalidGroup,
    InvalidTopic,
    MessageTooLarge,
    PixyError,
    ResourceExhausted,
    TopicExists,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
)

UNKNOWN_SERVER_ERROR = -1
OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
REQUEST_TIMED_OUT = 7
MESSAGE_TOO_LARGE = 10
RECORD_LIST_TOO_LARGE = 18
NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
INVALID_TIMESTAMP = 32
TOPIC_ALREADY_EXISTS = 36
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
CONCURRENT_TRANSACTIONS = 51
OPERATION_NOT_ATTEMPTED = 55
UNKNOWN_PRODUCER_ID = 59
INVALID_RECORD = 87
UNSTABLE_OFFSET_COMMIT = 88
PRODUCER_FENCED = 90
UNKNOWN_TOPIC_ID = 100

_ERRORS: dict[int, type[PixyError]] = {
    CORRUPT_MESSAGE: CorruptData,
    UNKNOWN_TOPIC_OR_PARTITION: UnknownPartition,
    5: Unavailable,
    6: Unavailable,
    REQUEST_TIMED_OUT: DeadlineExceeded,
    8: Unavailable,
    9: Unavailable,
    MESSAGE_TOO_LARGE: MessageTooLarge,
    12: InvalidArgument,
    13: Unavailable,
    14: Unavailable,
    15: Unavailable,
    16: Unavailable,
    17: InvalidTopic,
    RECORD_LIST_TOO_LARGE: MessageTooLarge,
    19: Unavailable,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND: Unavailable,
    22: Unavailable,
    23: FailedPrecondition,
    24: InvalidGroup,
    25: Unavailable,
    26: InvalidArgument,
    27: Unavailable,
    INVALID_TIMESTAMP: InvalidArgument,
    TOPIC_ALREADY_EXISTS: TopicExists,
    37: InvalidArgument,
    38: InvalidArgument,
    39: InvalidArgument,
    40: InvalidArgument,
    41: Unavailable,
    42: InvalidArgument,
    44: InvalidArgument,
    INVALID_PRODUCER_EPOCH: Unavailable,
    48: Unavailable,
    49: Unavailable,
    50: FailedPrecondition,
    CONCURRENT_TRANSACTIONS: Unavailable,
    56: Unavailable,
    60: FailedPrecondition,
    68: FailedPrecondition,
    69: UnknownGroup,
    72: Unavailable,
    74: Unavailable,
    75: Unavailable,
    78: Unavailable,
    86: FailedPrecondition,
    INVALID_RECORD: InvalidArgument,
    UNSTABLE_OFFSET_COMMIT: Unavailable,
    89: ResourceExhausted,
    PRODUCER_FENCED: Unavailable,
    UNKNOWN_TOPIC_ID: UnknownPartition,
    103: Unavailable,
}

_STALE = frozenset({UNKNOWN_TOPIC_OR_PARTITION, 5, 6, 13, 15, 16, 41, 56, 72, 74, 75, UNKNOWN_TOPIC_ID, 103})

_NAMES = {
    74: "FencedLeaderEpoch",
    75: "UnknownLeaderEpoch",
    78: "OffsetNotAvailable",
    INVALID_RECORD: "InvalidRecord",
    UNSTABLE_OFFSET_COMMIT: "UnstableOffsetCommit",
    89: "ThrottlingQuotaExceeded",
    PRODUCER_FENCED: "ProducerFenced",
    UNKNOWN_TOPIC_ID: "UnknownTopicId",
    103: "InconsistentTopicId",
}


_TOO_LARGE = (
    "the record batch is larger than max_message_bytes of the topic, or message.max.bytes of the broker"
)
_TIMEOUT = "kafka.transaction_timeout is longer than transaction.max.timeout.ms of the brokers"
_CONSUMED = "it has consumers"
_REASONS = {
    MESSAGE_TOO_LARGE: _TOO_LARGE,
    RECORD_LIST_TOO_LARGE: _TOO_LARGE,
    50: _TIMEOUT,
    68: _CONSUMED,
    86: _CONSUMED,
}
"""Reasons for codes without a helpful name."""


class BrokerFault(Unavailable):
    """A broker could not be reached, or did not answer.

    Args:
        message: the broker and the reason.
        sent: True if the request may have reached the broker and been executed.
    """

    def __init__(self, message: str, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


def code_name(code: int) -> str:
    """Kafka's name for an error code."""
    return _NAMES.get(code) or str(for_code(code).__name__)


def error_for_code(code: int, what: str, detail: str | None = None) -> PixyError:
    """The error for an error code in a response.

    Args:
        what: the request in words, with topic, partition or group; begins the message.
        detail: the broker's own message.
    """
    reason = detail or _REASONS.get(code) or code_name(code)
    return _ERRORS.get(code, Internal)(f"{what}: Kafka answered with error {code}, {reason}")


def is_retriable(code: int) -> bool:
    """True if the same request may succeed later."""
    return code in _STALE or (code in _ERRORS and _ERRORS[code].retriable)


def is_stale(code: int) -> bool:
    """True if metadata or coordinator should be refreshed before a retry."""
    return code in _STALE
