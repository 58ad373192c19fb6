"""The one tree of errors.

Every class says what each door answers for it: the gRPC status, the HTTP status, the Kafka error code and whether the
same request can succeed later. Doors translate by these attributes and never choose a code themselves. The message of
an error is what the client reads, so it names what was wrong and what is allowed.

Three kinds never mix: a bug is an `assert`; bad input and faults of a peer are classes of this tree and change
nothing; faults of the environment (`Unavailable`, `Internal`) are logged once where they occur.
"""

from typing import ClassVar

__all__ = [
    "AckBeyondEnd",
    "AckElsewhere",
    "ConfigError",
    "CorruptData",
    "DataDirectoryError",
    "DeadlineExceeded",
    "FailedPrecondition",
    "Internal",
    "InvalidAck",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidGroup",
    "InvalidHeaders",
    "InvalidOffset",
    "InvalidTopic",
    "LongPollTimeout",
    "MessageTooLarge",
    "NotConsumed",
    "NotFound",
    "OffsetOutOfRange",
    "OwnedElsewhere",
    "OwnerUndecided",
    "PartitionNotFound",
    "PixyError",
    "ResourceExhausted",
    "ServiceDisabled",
    "ShuttingDown",
    "StaleTopicVersion",
    "StartError",
    "StorageFault",
    "TooManyRequests",
    "TopicExists",
    "TopicMissing",
    "Unavailable",
    "UnknownCluster",
    "UnknownGroup",
    "UnknownPartition",
    "UnknownTopic",
    "UnpackedTooLarge",
]


class PixyError(Exception):
    """Root of everything that pixy raises on purpose."""

    grpc_status: ClassVar[int] = 13
    http_status: ClassVar[int] = 500
    kafka_code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False


# --- bad input: nothing was changed -----------------------------------------------------------------------------


class InvalidArgument(PixyError):
    """The request can never succeed as it stands."""

    grpc_status = 3
    http_status = 400
    kafka_code = 42


class UnknownCluster(InvalidArgument):
    """The request names a cluster that is not configured."""


class InvalidTopic(InvalidArgument):
    """The topic's name breaks Kafka's rule."""

    kafka_code = 17


class TopicMissing(InvalidArgument):
    """Produce or consume named a topic that does not exist and is not created on first use.

    Not `NotFound`: to a client of ConsumeNAck that status means "poll again".
    """

    http_status = 404
    kafka_code = 3


class InvalidGroup(InvalidArgument):
    """The consumer group's name is empty or too long."""

    kafka_code = 24


class InvalidHeaders(InvalidArgument):
    """Too many record headers, or too large."""

    kafka_code = 87


class MessageTooLarge(InvalidArgument):
    """Key, value and headers together, or a whole record batch, exceed `producer.max_message_bytes`."""

    http_status = 413
    kafka_code = 10


class InvalidBatch(InvalidArgument):
    """A record batch that a client has built is damaged, or is none that the log takes."""

    kafka_code = 87


class InvalidAck(InvalidArgument):
    """The acknowledgement names an impossible partition or offset."""


class AckBeyondEnd(InvalidAck):
    """The acknowledged offset has not been written yet."""

    kafka_code = 1


class InvalidOffset(InvalidArgument):
    """An offset to be set is out of range, or its sparse acks cannot be read."""

    kafka_code = 1


class UnknownPartition(InvalidArgument):
    """The topic has no such partition."""

    http_status = 404
    kafka_code = 3


class TopicExists(PixyError):
    """A topic of that name exists already."""

    grpc_status = 6
    http_status = 409
    kafka_code = 36


# --- what is asked for is not there ------------------------------------------------------------------------------


class NotFound(PixyError):
    """What the request names does not exist."""

    grpc_status = 5
    http_status = 404


class UnknownTopic(NotFound):
    """No such topic."""

    kafka_code = 3


class PartitionNotFound(NotFound):
    """No such topic or partition, for those who ask in bulk and are answered for each partition."""

    kafka_code = 3


class UnknownGroup(NotFound):
    """No consumer group of that name is consuming."""

    kafka_code = 69


class NotConsumed(NotFound):
    """The consumer group exists and does not consume that topic."""

    kafka_code = 69


class LongPollTimeout(NotFound):
    """Nothing arrived while the request waited; poll again."""

    http_status = 408
    retriable = True


class OffsetOutOfRange(PixyError):
    """A fetch asked for an offset that the log does not serve.

    Args:
        message: what was asked and what the log serves.
        begin: log begin offset.
        end: high watermark, exclusive.
    """

    grpc_status = 11
    http_status = 416
    kafka_code = 1

    def __init__(self, message: str, begin: int, end: int) -> None:
        super().__init__(message)
        self.begin = begin
        self.end = end


class FailedPrecondition(PixyError):
    """The request was made for another state of things: nothing was changed, and it must be made anew."""

    grpc_status = 9
    http_status = 412
    kafka_code = 42


class StaleTopicVersion(FailedPrecondition):
    """Records were given their partitions with another version of the topic than it has, or with another topic of that name."""


# --- limits and the state of the service -------------------------------------------------------------------------


class ResourceExhausted(PixyError):
    """A configured bound is reached."""

    grpc_status = 8
    http_status = 429
    kafka_code = 89
    retriable = True


class TooManyRequests(ResourceExhausted):
    """Too many consume requests of one group and topic are waiting."""


class DeadlineExceeded(PixyError):
    """The caller's deadline ended the wait; the outcome is not known."""

    grpc_status = 4
    http_status = 504
    kafka_code = 7
    retriable = True


class Unavailable(PixyError):
    """The service cannot do this at the moment."""

    grpc_status = 14
    http_status = 503
    kafka_code = 8
    retriable = True


class ShuttingDown(Unavailable):
    """The daemon drains or has stopped."""

    def __init__(self) -> None:
        super().__init__("service is shutting down")


class OwnerUndecided(Unavailable):
    """A consumer group is being rebalanced: nobody knows who gets a partition."""


class OwnedElsewhere(Unavailable):
    """Offsets of a consumer group cannot be set here: another process consumes the partition, and would overwrite them."""

    kafka_code = 25


class ServiceDisabled(Unavailable):
    """The configuration switched this service off. kafka-pixy's clients expect the status of `Unavailable`."""

    retriable = False

    def __init__(self) -> None:
        super().__init__("service is disabled by configuration")


# --- faults of the environment -----------------------------------------------------------------------------------


class Internal(PixyError):
    """A fault on this side; details are in the log."""


class AckElsewhere(Internal):
    """The acknowledged record belongs to a partition that another member of the consumer group has."""

    kafka_code = 25


class StorageFault(Internal):
    """The disk failed to do what was asked."""

    http_status = 500
    kafka_code = 56


class CorruptData(Internal):
    """Stored bytes do not say what was written: names file and byte."""

    kafka_code = 2


class UnpackedTooLarge(CorruptData):
    """A stored batch is what was written, and unpacks to more than readers take: names its offset."""


# --- what keeps the daemon from starting -------------------------------------------------------------------------


class StartError(PixyError):
    """The daemon cannot start; the message is for the operator."""


class ConfigError(StartError):
    """The configuration cannot be used: file, line, what is allowed."""


class DataDirectoryError(StartError):
    """The data directory cannot be used: in use, not writable, foreign or of a newer release."""
