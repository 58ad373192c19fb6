"""One proxy per configured cluster: the interface of the API layer to it."""

from pixy.proxy.log import Appended, Log, OffsetPosition, OffsetQuery, PartitionBatches, TopicVersion
from pixy.proxy.produce_answers import ProduceDone
from pixy.proxy.proxy import PartitionOffsets, Proxy
from pixy.proxy.range_reader import Fetched, Range, RangeReader, RangeState
from pixy.proxy.staging import Staging

__all__ = [
    "Appended",
    "Fetched",
    "Log",
    "OffsetPosition",
    "OffsetQuery",
    "PartitionBatches",
    "PartitionOffsets",
    "ProduceDone",
    "Proxy",
    "Range",
    "RangeReader",
    "RangeState",
    "Staging",
    "TopicVersion",
]
