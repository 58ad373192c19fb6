"""Messages of Kafka's protocol in all versions that are served or sent, for clients and servers.
Pure.

`schemas.txt` has the schemas, and `compiler` makes the code in `generated` of them. Records are
chunks: parsed as views of the frame, written by reference. `kafka_protocol` has the messages that
pixy's own client of Kafka sends, one version of each.
"""

from pixy.kafka_messages.api import MESSAGE_APIS, Chunks, KafkaHead, MessageApi, parse_head
from pixy.kafka_messages.primitives import KafkaMessage, MalformedKafkaMessage

__all__ = [
    "MESSAGE_APIS",
    "Chunks",
    "KafkaHead",
    "KafkaMessage",
    "MalformedKafkaMessage",
    "MessageApi",
    "parse_head",
]
