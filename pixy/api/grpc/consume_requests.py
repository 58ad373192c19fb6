"""Requests of ConsumeNAck, parsed once for all requests of the same bytes.

A consumer that acks automatically, or not at all, sends the same bytes every time. To parse them
and to read the fields takes a tenth of the processor time of such a call.
"""

from collections.abc import Callable

from pixy.proto import kafkapixy_pb2 as pb

__all__ = ["ConsumeRequest", "ConsumeRequestParser"]

ConsumeRequest = tuple[str, str, str, bool, tuple[int, int] | None, bool]
"""Cluster, consumer group, topic; and auto ack, ack and `ack_if_offered` as in `Proxy.consume`."""

_parse: Callable[[bytes | bytearray], pb.ConsNAckRq] = pb.ConsNAckRq.FromString  # type: ignore[assignment]  # it takes both

_DEFAULT_ACK = (0, 0)
"""The ack in a request that sets no field of acks: old clients send it by accident."""

_KEPT_MAX = 1024
_KEPT_BYTES = 512
"""Size of the largest request that is kept: more than two valid names."""


class ConsumeRequestParser:
    """Parses requests, and keeps those without an ack. A full memory is emptied."""

    def __init__(self) -> None:
        self._kept: dict[bytes, ConsumeRequest] = {}

    @property
    def kept(self) -> int:
        """Number of requests in memory."""
        return len(self._kept)

    def parse(self, body: bytes | bytearray) -> ConsumeRequest:
        """The request.

        Raises:
            DecodeError: the bytes are not a message.
        """
        kept = self._kept.get(body) if type(body) is bytes else None
        if kept is not None:
            return kept
        message = _parse(body)
        if not (message.no_ack or message.auto_ack):
            ack = (message.ack_partition, message.ack_offset)
            return message.cluster, message.group, message.topic, False, ack, ack == _DEFAULT_ACK
        auto_ack = message.auto_ack and not message.no_ack
        request = (message.cluster, message.group, message.topic, auto_ack, None, False)
        if len(body) <= _KEPT_BYTES:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[bytes(body)] = request
        return request
