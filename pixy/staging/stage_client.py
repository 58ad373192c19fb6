"""The client of a request to stage, and its share of `staging.max_bytes`.

Who takes pieces counts bytes by address: `Stages` in memory, so that a restart forgets whose its
sealed stages are, and the table of replicated stages in each piece.
"""

from typing import NamedTuple

from pixy.errors import ResourceExhausted

__all__ = ["NO_CLIENT", "StageClient"]


class StageClient(NamedTuple):
    """A client.

    Attributes:
        address: see `client_address`; "" for a caller without one, which has no share.
        share: bytes that all clients of the address may have staged.
    """

    address: str
    share: int

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


NO_CLIENT = StageClient("", 0)
