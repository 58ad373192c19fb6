"""State that the connections of a port share: APIs and limits."""

from pixy.serving import Environment, LimitLog
from pixy.wire.apis import ApiTable
from pixy.wire.options import WireOptions


class WireEnvironment:
    """Shared by connections in the running event loop.

    Args:
        environment: shared by the connections of all protocols.
        table: the APIs.
        options: limits.

    Attributes:
        shared, table, options: see above.
        failed_logins: log of them.
    """

    def __init__(self, environment: Environment, table: ApiTable, options: WireOptions) -> None:
        self.shared = environment
        self.table = table
        self.options = options
        self.failed_logins = LimitLog("logins have failed", "user")

    def frame_bytes_max(self, key: int, *, logged_in: bool = True) -> int:
        """Largest request to an API."""
        if not logged_in:
            return self.options.login_frame_bytes
        api = self.table.by_key.get(key)
        has_records = api is not None and api.has_records
        return self.options.records_frame_bytes if has_records else self.options.frame_bytes
