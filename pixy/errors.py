"""The error hierarchy.

Each class defines the response of every protocol: the gRPC status, the HTTP status, the Kafka error
code, and whether a retry of the same request may succeed. The API layers translate by these
attributes and never choose a code themselves. The message of an error is sent to the client, so it
names what was wrong and what is allowed.

Three kinds never mix: a bug is an `assert`; bad input and peer faults are classes of this tree and
have no effect; environment faults (`Unavailable`, `Internal`) are logged once where they occur.
"""

from typing import ClassVar, Self

__all__ = [
    "AckBeyondEnd",
    "AckElsewhere",
    "BatchesDivided",
    "ConfigError",
    "CopyTryLater",
    "CorruptBatch",
    "CorruptData",
    "DataDirectoryError",
    "DeadlineExceeded",
    "DuplicateSequence",
    "FailedPrecondition",
    "HeldByOtherProtocol",
    "Internal",
    "InvalidAck",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidCopyRequest",
    "InvalidGroup",
    "InvalidHeaders",
    "InvalidOffset",
    "InvalidProducerEpoch",
    "InvalidRecords",
    "InvalidTopic",
    "LongPollTimeout",
    "MessageTooLarge",
    "MetadataTooLarge",
    "NoCopySession",
    "NoSuchReplica",
    "NotConsumed",
    "NotFound",
    "OffsetOutOfRange",
    "OffsetsSet",
    "OutOfOrderSequence",
    "OwnedElsewhere",
    "OwnerUndecided",
    "PartitionNotFound",
    "PeerRefused",
    "PixyError",
    "ResourceExhausted",
    "SegmentNotFound",
    "ServiceDisabled",
    "ShuttingDown",
    "StaleTopicVersion",
    "StartError",
    "StorageFault",
    "TooManyProducers",
    "TooManyRequests",
    "TopicExists",
    "TopicMissing",
    "Unavailable",
    "Undecodable",
    "UnknownCluster",
    "UnknownGroup",
    "UnknownPartition",
    "UnknownTopic",
    "UnpackedTooLarge",
    "VoidEntry",
]


class PixyError(Exception):
    """Root of all errors that pixy raises intentionally.

    Attributes:
        limit: the limit that was reached, by its option where it has one, for the log; empty for an
            error of another kind.
    """

    grpc_status: ClassVar[int] = 13
    http_status: ClassVar[int] = 500
    kafka_code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    limit: str = ""

    def at_limit(self, limit: str) -> Self:
        """This error, with the limit that was reached."""
        self.limit = limit
        return self

    def __copy__(self) -> Self:
        """The same error without its traceback.

        That of `Exception` calls the class with `args`, which those with other arguments do not
        take.
        """
        cls = type(self)
        other = cls.__new__(cls, *self.args)
        other.__dict__.update(self.__dict__)
        return other


# --- bad input: nothing was changed ---------------------------------------------------------------


class InvalidArgument(PixyError):
    """The request is invalid; a retry cannot succeed."""

    grpc_status = 3
    http_status = 400
    kafka_code = 42


class UnknownCluster(InvalidArgument):
    """The request names a cluster that is not configured."""


class InvalidTopic(InvalidArgument):
    """The topic name violates Kafka's rules."""

    kafka_code = 17


class TopicMissing(InvalidArgument):
    """Produce or consume request for a topic that does not exist and is not created automatically.

    Not a `NotFound`: for clients of ConsumeNAck that status means "poll again".
    """

    http_status = 404
    kafka_code = 3


class InvalidGroup(InvalidArgument):
    """The consumer group name is empty or too long."""

    kafka_code = 24


class InvalidHeaders(InvalidArgument):
    """There are too many record headers, or they are too large."""

    kafka_code = 87


class MessageTooLarge(InvalidArgument):
    """Key, value and headers together, or a whole record batch, exceed
    `producer.max_message_bytes`.
    """

    http_status = 413
    kafka_code = 10


class InvalidBatch(InvalidArgument):
    """A client's record batch is corrupt, or of a kind that the log does not accept."""

    kafka_code = 87


class CorruptBatch(InvalidBatch):
    """A client's record batch has a wrong checksum: it was changed on its way."""

    kafka_code = 2


class InvalidRecords(InvalidBatch):
    """The records of a client's record batch are not what its header says, or too large."""


class InvalidAck(InvalidArgument):
    """The acknowledgement has an invalid partition or offset."""


class AckBeyondEnd(InvalidAck):
    """The acknowledged offset has not been written yet."""

    kafka_code = 1

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, end: int) -> Self:
        """The error of an ack in a partition with this end."""
        return cls(
            f"invalid ack: bad offset: {offset}: {topic}/{partition} ends at {end}, only offsets below can be acked"
        )


class InvalidOffset(InvalidArgument):
    """An offset to commit is out of range, or its sparse acks cannot be decoded."""

    kafka_code = 1


class MetadataTooLarge(InvalidArgument):
    """The metadata of an offset to commit is larger than a commit may have."""

    kafka_code = 12


class UnknownPartition(InvalidArgument):
    """The topic has no such partition."""

    http_status = 404
    kafka_code = 3


class InvalidCopyRequest(InvalidArgument):
    """A request of a copy session names no data, or data behind the end of a segment."""


class DuplicateSequence(PixyError):
    """A batch of a producer was written before, and nobody knows its offset any more."""

    grpc_status = 6
    http_status = 409
    kafka_code = 46


class TopicExists(PixyError):
    """A topic of that name exists already."""

    grpc_status = 6
    http_status = 409
    kafka_code = 36


# --- missing resources ----------------------------------------------------------------------------


class NotFound(PixyError):
    """The resource named in the request does not exist."""

    grpc_status = 5
    http_status = 404


class UnknownTopic(NotFound):
    """No such topic."""

    kafka_code = 3


class PartitionNotFound(NotFound):
    """No such topic or partition, in bulk requests that are answered per partition."""

    kafka_code = 3


class UnknownGroup(NotFound):
    """No active consumer group has that name."""

    kafka_code = 69


class NotConsumed(NotFound):
    """The consumer group exists but does not consume that topic."""

    kafka_code = 69


class NoCopySession(NotFound):
    """The copy session has ended, or never began."""


class NoSuchReplica(NotFound):
    """The node has no replica of the partition that it is asked to copy."""


class SegmentNotFound(NotFound):
    """The data is not part of a copy session, or not any more."""


class LongPollTimeout(NotFound):
    """No message arrived during the long poll; poll again."""

    http_status = 408
    retriable = True


class OffsetOutOfRange(PixyError):
    """The fetch offset is outside the log.

    Args:
        message: requested offset and valid range.
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
    """The request was made for a different state of the system.

    Nothing was changed, and the request has to be rebuilt.
    """

    grpc_status = 9
    http_status = 412
    kafka_code = 42


class HeldByOtherProtocol(FailedPrecondition):
    """Members of another protocol have the consumer group: Kafka's clients, or pixy's own."""

    kafka_code = 23


class VoidEntry(FailedPrecondition):
    """A committed entry cannot be decoded: it has no effect."""


class StaleTopicVersion(FailedPrecondition):
    """Records were partitioned, or a change was made, for another version of the topic, or for
    another topic of the same name.
    """


class OutOfOrderSequence(FailedPrecondition):
    """A batch of a producer does not follow the one that was written last."""

    kafka_code = 45


class InvalidProducerEpoch(FailedPrecondition):
    """A batch has an older epoch than its producer: it comes too late."""

    kafka_code = 47


class BatchesDivided(FailedPrecondition):
    """Batches of producers that share an entry are not written: each is to be proposed alone."""


# --- limits and availability ----------------------------------------------------------------------


class ResourceExhausted(PixyError):
    """A limit is reached: raised with `at_limit`."""

    grpc_status = 8
    http_status = 429
    kafka_code = 89
    retriable = True


class TooManyRequests(ResourceExhausted):
    """Too many consume requests of one group and topic are waiting."""


class TooManyProducers(ResourceExhausted):
    """A partition knows as many producers as it may. Kafka has no such limit: the code is one that
    all its clients take as a reason to send the batch again.
    """

    kafka_code = 19


class DeadlineExceeded(PixyError):
    """The caller's deadline expired; the outcome is unknown."""

    grpc_status = 4
    http_status = 504
    kafka_code = 7
    retriable = True


class Unavailable(PixyError):
    """The service is temporarily unable to handle the request."""

    grpc_status = 14
    http_status = 503
    kafka_code = 8
    retriable = True


class ShuttingDown(Unavailable):
    """The daemon is draining or has stopped."""

    def __init__(self, message: str = "service is shutting down") -> None:
        super().__init__(message)  # a parameter, as `copy` passes it


class OwnerUndecided(Unavailable):
    """The consumer group is rebalancing: the future owner of the partition is unknown."""


class OwnedElsewhere(Unavailable):
    """Another process owns the partition for the consumer group."""

    kafka_code = 25


class OffsetsSet(Unavailable):
    """A commit of a consumer group, or offsets that a client sets, replace others than they are
    based on.
    """

    kafka_code = 22


class PeerRefused(Unavailable):
    """One of two nodes refuses their connection; the message says what to do."""


class CopyTryLater(Unavailable):
    """A replica cannot be copied yet: it lacks records, or too many copies are under way."""


class ServiceDisabled(Unavailable):
    """The service is disabled by configuration. kafka-pixy's clients expect the status of
    `Unavailable`.
    """

    retriable = False

    def __init__(self) -> None:
        super().__init__("service is disabled by configuration")


# --- environment faults ---------------------------------------------------------------------------


class Internal(PixyError):
    """An internal fault; the log has the details."""


class AckElsewhere(Internal):
    """The record of an ack is in a partition owned by another member of the consumer group."""

    kafka_code = 25


class StorageFault(Internal):
    """A disk operation failed."""

    http_status = 500
    kafka_code = 56


class CorruptData(Internal):
    """Stored bytes are corrupt: names file and byte position."""

    kafka_code = 2


class Undecodable(CorruptData):
    """Records of an intact batch cannot be decoded: their producer wrote them wrongly.

    Args:
        message: names the batch, the record and the offset of the next batch.
        offset: of the first one of these records.
        next_offset: where to go on.
    """

    def __init__(self, message: str, offset: int = -1, next_offset: int = -1) -> None:
        super().__init__(message)
        self.offset = offset
        self.next_offset = next_offset


class UnpackedTooLarge(Undecodable):
    """An intact batch is larger than readers allow when decompressed; names its offset."""


# --- start-up errors ------------------------------------------------------------------------------


class StartError(PixyError):
    """The daemon cannot start; the message is for the operator."""


class ConfigError(StartError):
    """The configuration is invalid: names file, line and allowed values."""


class DataDirectoryError(StartError):
    """The data directory is unusable: in use, not writable, of another cluster or of a newer
    release.
    """
