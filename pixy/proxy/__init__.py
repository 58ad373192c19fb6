"""One proxy for each configured cluster: what every door calls."""

from pixy.proxy.accumulator import ProduceDone
from pixy.proxy.proxy import PartitionOffsets, Proxy

__all__ = ["PartitionOffsets", "ProduceDone", "Proxy"]
