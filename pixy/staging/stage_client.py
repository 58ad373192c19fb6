"""The client of a request to stage or publish, and its shares of `staging.max_bytes` and of the
sinks of a cluster.

Who takes pieces counts bytes by address: `Stages` in memory, so that a restart forgets whose its
sealed stages are, and the table of replicated stages in each piece.
"""

from typing import NamedTuple

from pixy.client_address import share_of
from pixy.errors import ResourceExhausted


class StageClient(NamedTuple):
    """A client.

    Attributes:
        address: see `client_address`; "" for a caller without one, which has no share.
        share: bytes that all clients of the address may have staged.
        percent: `client_share_percent`.
    """

    address: str
    share: int
    percent: int = 100

    def check(self, staged: int, size: int) -> None:
        """Check that the address may stage more.

        Args:
            staged: bytes that it has staged.
            size: bytes to be staged.

        Raises:
            ResourceExhausted: they do not fit in its share.
        """
        if self.address and staged + size > self.share:
            raise ResourceExhausted(
                f"clients of this address have staged {staged} bytes, and {self.share} are their share "
                f"(`client_share_percent`) of `staging.max_bytes`: {size} more do not fit until stages are published or discarded"
            ).at_limit("client_share_percent of staging.max_bytes")

    def check_sinks(self, sinks: int, limit: int) -> None:
        """Check that the address may begin another sink.

        Args:
            sinks: those that it has begun.
            limit: of all addresses.

        Raises:
            ResourceExhausted: they are its share.
        """
        if self.address and sinks >= share_of(limit, self.percent):
            raise ResourceExhausted(
                f"clients of this address have published with {sinks} sinks that are remembered, their share "
                f"(`client_share_percent`) of {limit}: publish with one of these, or wait for `staging.sink_retention`"
            ).at_limit("client_share_percent of sinks of a cluster")


NO_CLIENT = StageClient("", 0)
