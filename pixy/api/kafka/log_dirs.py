"""DescribeLogDirs: the directory of this broker, and the sizes of its replicas.

A log has one directory, so no replica is on its way to another one (`is_future_key`). Its offset
lag compares, as in Kafka, the end of the log with what the same broker knows to be committed: pixy
applies nothing else, so it is 0.
"""

from collections import defaultdict

from pixy.aio.steps import in_steps
from pixy.api.kafka.codes import admin_code
from pixy.errors import PixyError
from pixy.kafka_messages.generated.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from pixy.proxy import Proxy
from pixy.wire import WireExchange

_UNKNOWN_BYTES = -1


class LogDirsApi:
    """Handler of DescribeLogDirs.

    Args:
        proxy: of the cluster.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy

    async def describe_log_dirs(
        self, exchange: WireExchange, request: DescribeLogDirsRequest
    ) -> DescribeLogDirsResponse:
        """Describe the one directory, with all replicas or those of some partitions."""
        try:
            logs = await self._proxy.local_logs()
        except PixyError as error:
            return DescribeLogDirsResponse(error_code=admin_code(error))
        wanted = None
        if request.topics is not None:
            wanted = {each.topic: {*each.partitions} for each in request.topics}
        topics: defaultdict[str, list[DescribeLogDirsPartition]] = defaultdict(list)
        async for (topic, number), size in in_steps(logs.sizes.items()):
            if wanted is None or number in wanted.get(topic, ()):
                topics[topic].append(DescribeLogDirsPartition(number, size))
        result = DescribeLogDirsResult(
            log_dir=logs.directory,
            topics=[DescribeLogDirsTopic(*each) for each in topics.items()],
            total_bytes=logs.disk.total_bytes or _UNKNOWN_BYTES,
            usable_bytes=logs.disk.free_bytes if logs.disk.total_bytes else _UNKNOWN_BYTES,
        )
        return DescribeLogDirsResponse(results=[result])
