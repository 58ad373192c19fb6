"""A load client for machines without h2load.

    python -m bench.kit.client ADDRESS METHOD BODY_FILE CONNECTIONS STREAMS SECONDS

Prints one JSON object: done, per_second, mean_ms. Any status other than OK is an error.
"""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import grpc

_WARM_UP_SECONDS = 0.3
_PREFIX_BYTES = 5


async def main(
    address: str, method: str, message: bytes, connections: str, streams: str, seconds: str
) -> None:
    """Call the method with the message and print the result."""
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(int(connections))]
    begin = time.perf_counter() + _WARM_UP_SECONDS
    end = begin + float(seconds)
    done, total = 0, 0.0

    async def call(channel: grpc.aio.Channel) -> None:
        nonlocal done, total
        unary: Any = channel.unary_unary(f"/KafkaPixy/{method}")
        while (started := time.perf_counter()) < end:
            await unary(message)
            if started >= begin:
                done += 1
                total += time.perf_counter() - started

    await asyncio.gather(*(call(channel) for channel in channels for _ in range(int(streams))))
    for channel in channels:
        await channel.close()
    print(
        json.dumps(
            {"done": done, "per_second": done / float(seconds), "mean_ms": 1000 * total / max(done, 1)}
        )
    )


if __name__ == "__main__":
    where, what, body_file, *how_many = sys.argv[1:]
    asyncio.run(main(where, what, Path(body_file).read_bytes()[_PREFIX_BYTES:], *how_many))
