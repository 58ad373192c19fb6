"""Leaders of partitions that this node has no replica of, and replicas that are not in sync."""

from types import SimpleNamespace
from typing import Any

import pytest

from pixy.backend.embedded.remote_leaders import RemoteLeaders
from pixy.proto.node_calls_pb2 import LeadersRequest, LeadersResponse

TOPIC: Any = SimpleNamespace(name="topic", raft_groups=(1000, 1001), replicas=((2,), (3,)))


class Calls:
    """Calls to nodes of which node 2 says that it leads these raft groups, and node 3 all."""

    def __init__(self, *led: int) -> None:
        self._led = led
        self.leaders: dict[int, int] = {}

    async def ask(self, node_id: int, method: int, payload: bytes, timeout: float) -> bytes:
        asked = LeadersRequest.FromString(payload).raft_groups
        return LeadersResponse(raft_groups=self._led if node_id == 2 else asked).SerializeToString()


@pytest.mark.parametrize(
    ("led", "leaders"),
    [
        ((1000,), {1000: 2, 1001: 3}),
        ((), {1001: 3}),
        ((1001,), {1001: 3}),
        ((1000, 1001), {1000: 2, 1001: 3}),
        (range(100_000), {1001: 3}),
    ],
)
async def test_a_node_says_of_nothing_else_than_what_it_was_asked_for_that_it_leads_it(
    led: Any, leaders: dict[int, int]
) -> None:
    calls = Calls(*led)
    node: Any = SimpleNamespace(node_id=1, calls=calls, peers=None)
    tasks: Any = None
    await RemoteLeaders(node, tasks, lambda *_: None).ask([TOPIC])
    assert calls.leaders == leaders
