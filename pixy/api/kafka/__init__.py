"""Kafka's protocol: translates requests to calls of a proxy, and nothing else. A module for each
kind of API, and the table of all in `server`.
"""

from pixy.api.kafka.server import KafkaServer

__all__ = ["KafkaServer"]
