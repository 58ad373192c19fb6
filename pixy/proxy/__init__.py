"""One proxy per configured cluster: the interface of the API layer to it."""

from pixy.proxy.append_lane import AppendLane
from pixy.proxy.batch_check_turns import PartitionBatches
from pixy.proxy.log import Appended, OffsetPosition, OffsetQuery, TopicVersion
from pixy.proxy.proxy import PartitionOffsets, Proxy
from pixy.proxy.range_reader import Fetched, Range, RangeReader, RangeState
from pixy.proxy.topic_accumulators import batch_bytes

__all__ = [
    "AppendLane",
    "Appended",
    "Fetched",
    "OffsetPosition",
    "OffsetQuery",
    "PartitionBatches",
    "PartitionOffsets",
    "Proxy",
    "Range",
    "RangeReader",
    "RangeState",
    "TopicVersion",
    "batch_bytes",
]
