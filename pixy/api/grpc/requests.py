"""Requests of Produce and ConsumeNAck, as their handlers take them.

Protobuf's parser and the reads of its fields take a tenth of the processor time of such a call. So
the requests that clients send by the hundred thousand are parsed in other ways, with the same
result; protobuf parses all others.

    ProdRq      12 length topic, 1a length key (20 01 for a record without one), 2a length message:
                by hand, because the fields come in this order and nothing follows
    ConsNAckRq  a consumer that acks automatically, or not at all, sends the same bytes every time:
                they are parsed once
"""

from collections.abc import Callable, Sequence
from typing import Any

from pixy.consume import ConsumeRequest
from pixy.proto import kafkapixy_pb2 as pb
from pixy.records import Header

ProduceRequest = tuple[str, str, bytes | None, bytes | None, Sequence[Header], bool]
"""Cluster; and topic, key, value, headers and `sync` as in `Proxy.produce`."""

ConsumeOfCluster = tuple[str, ConsumeRequest]
"""Cluster, and the request to it."""

# They take a bytearray, too.
_parse_produce: Callable[[Any], pb.ProdRq] = pb.ProdRq.FromString
_parse_consume: Callable[[Any], pb.ConsNAckRq] = pb.ConsNAckRq.FromString

_TOPIC = 0x12
_KEY = 0x1A
_KEY_UNDEFINED = 0x20
_MESSAGE = 0x2A
"""Tags of fields: number and wire type."""
_MORE = 0x80
"""Another byte of the length follows."""

_DEFAULT_ACK = (0, 0)
"""The ack in a request that sets no field of acks: old clients send it by accident."""

_KEPT_MAX = 1024
_KEPT_BYTES = 512
"""Size of the largest request that is kept: more than two valid names."""


class ProduceRequestParser:
    """Parses requests of Produce."""

    def __init__(self) -> None:
        # Topics by their bytes, which protobuf has found to be text. A full memory is emptied.
        self._topics: dict[bytes, str] = {}

    def parse(self, body: bytes | bytearray) -> ProduceRequest:
        """The request.

        Raises:
            DecodeError: the bytes are not a message.
        """
        try:
            at = body[1] + 2
            if body[0] == _TOPIC and type(body) is bytes:
                topic = self._topics.get(body[2:at])
                if topic is not None:
                    key = None
                    tag, size = body[at], body[at + 1]
                    if tag == _KEY and size < _MORE:
                        at += 2 + size
                        key = body[at - size : at]
                    elif tag == _KEY_UNDEFINED and size == 1:
                        at += 2
                    else:
                        return self._parse(body)
                    if body[at] == _MESSAGE:
                        size = body[at + 1]
                        if size >= _MORE:
                            high = body[at + 2]
                            if high >= _MORE:
                                return self._parse(body)
                            size += (high - 1) * _MORE
                            at += 1
                        value = body[at + 2 :]
                        if len(value) == size:
                            return "", topic, key, value, (), True
        except IndexError:
            pass
        return self._parse(body)

    def _parse(self, body: bytes | bytearray) -> ProduceRequest:
        message = _parse_produce(body)
        topic = message.topic
        encoded = topic.encode()
        if len(encoded) < _MORE:
            if len(self._topics) >= _KEPT_MAX:
                self._topics.clear()
            self._topics[encoded] = topic
        key = None if message.key_undefined else message.key_value
        value = None if message.value_undefined else message.message
        headers = [(header.key, header.value) for header in message.headers]
        return message.cluster, topic, key, value, headers, not message.async_mode


class ConsumeRequestParser:
    """Parses requests of ConsumeNAck."""

    def __init__(self) -> None:
        # Requests without an ack. A full memory is emptied.
        self._kept: dict[bytes, ConsumeOfCluster] = {}

    @property
    def kept(self) -> int:
        """Number of requests in memory."""
        return len(self._kept)

    def parse(self, body: bytes | bytearray) -> ConsumeOfCluster:
        """The request.

        Raises:
            DecodeError: the bytes are not a message.
        """
        kept = self._kept.get(body) if type(body) is bytes else None
        if kept is not None:
            return kept
        message = _parse_consume(body)
        if not (message.no_ack or message.auto_ack):
            ack = (message.ack_partition, message.ack_offset)
            return message.cluster, ConsumeRequest(
                message.group, message.topic, False, ack, ack == _DEFAULT_ACK
            )
        auto_ack = message.auto_ack and not message.no_ack
        request = message.cluster, ConsumeRequest(message.group, message.topic, auto_ack)
        if len(body) <= _KEPT_BYTES:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            self._kept[bytes(body)] = request
        return request
