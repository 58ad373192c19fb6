"""A node without stages."""

from collections.abc import Iterable, Sequence

from pixy.multiraft import RaftGroup
from pixy.proto.state_pb2 import StagedPiece


class NoPieces:
    """As `StagedPieces`, for positions that name none."""

    def missing_staged(self, group: RaftGroup, pieces: Iterable[StagedPiece]) -> Sequence[object]:
        """See `Sideloading`."""
        return [*pieces]

    async def fetch_staged(self, group: RaftGroup, pieces: Sequence[StagedPiece], first: int) -> bool:
        """See `Sideloading`."""
        return not pieces
