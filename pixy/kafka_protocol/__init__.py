"""Kafka's wire protocol: field types, the table of messages, and the "consumer" protocol of group
members. Pure.

The table serves clients and servers. A version that a server supports besides is another entry of
the table.

Road not taken: aiokafka's message classes. They lack topic ids and every request newer than 2021,
encode requests and decode responses only, write tagged fields without their size, and use a peer's
lengths unchecked; a server of the Kafka protocol needs both directions, several versions, and
strict parsing. aiokafka's connections (framing, version negotiation, TLS, SASL) send these messages
as they send their own.
"""

from pixy.kafka_protocol.api import Api, RequestHeader, ResponseHeader, VersionMismatch

__all__ = ["Api", "RequestHeader", "ResponseHeader", "VersionMismatch"]
