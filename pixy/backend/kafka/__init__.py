"""The backend of an Apache Kafka cluster."""

from pixy.backend.kafka.backend import KafkaBackend
from pixy.backend.kafka.neighbours import NeighbourOptions, Neighbours
from pixy.backend.kafka.options import KafkaOptions
from pixy.backend.kafka.staged_writes import StagingPlace

__all__ = ["KafkaBackend", "KafkaOptions", "NeighbourOptions", "Neighbours", "StagingPlace"]
