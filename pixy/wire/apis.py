"""The APIs that a server has, and its answer to ApiVersions, which is made of them.

A version that is not served is answered as Kafka does: ApiVersions with the body of version 0 and
UNSUPPORTED_VERSION (KIP-511), for any other API the connection ends.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any

from pixy.kafka_messages import MESSAGE_APIS, KafkaHead, MessageApi
from pixy.kafka_messages.generated.api_versions import ApiVersion, ApiVersionsResponse
from pixy.wire.exchange import WireExchange

API_VERSIONS = 18
SASL_AUTHENTICATE = 36
UNSUPPORTED_VERSION = 35

WireHandler = Callable[[WireExchange, Any], Any] | Callable[[WireExchange, Any], Awaitable[Any]]
"""Gets an exchange and a request.

    plain function    returns the answer; or None, and answers with `WireExchange.answer`, at once
                      or later
    coroutine         returns the answer
"""


class ServedApi:
    """One API of a server.

    Args:
        key: of the API.
        lowest, highest: versions that are served.
        handler: of its requests.
        has_records: its requests may be large.
        before_login: it is served to clients that are not logged in yet, where these have to.
        shown_from: lowest version that ApiVersions names, if it differs: clients conclude from it
            what else a server can do.

    Attributes:
        messages: of the API.
        requests: number of them by version.
    """

    __slots__ = (
        "before_login",
        "handler",
        "has_records",
        "highest",
        "is_coroutine",
        "lowest",
        "messages",
        "requests",
        "shown_from",
    )

    def __init__(
        self,
        key: int,
        lowest: int,
        highest: int,
        handler: WireHandler,
        *,
        has_records: bool = False,
        before_login: bool = False,
        shown_from: int | None = None,
    ) -> None:
        self.messages: MessageApi = MESSAGE_APIS[key]
        assert self.messages.lowest <= lowest <= highest <= self.messages.highest, self.messages.name
        self.lowest, self.highest = lowest, highest
        self.handler = handler
        self.is_coroutine = iscoroutinefunction(handler)
        self.has_records = has_records
        self.before_login = before_login
        self.shown_from = lowest if shown_from is None else shown_from
        self.requests: Counter[int] = Counter()


class ApiTable:
    """The APIs of a server by key.

    Args:
        apis: all but ApiVersions.
    """

    def __init__(self, apis: Sequence[ServedApi]) -> None:
        own = ServedApi(API_VERSIONS, 0, 4, self._answer_versions, before_login=True)
        self.by_key: Mapping[int, ServedApi] = {each.messages.key: each for each in (*apis, own)}
        assert len(self.by_key) == len(apis) + 1, "an API is there twice"
        self._versions = [
            ApiVersion(key, each.shown_from, each.highest) for key, each in sorted(self.by_key.items())
        ]

    def find(self, head: KafkaHead) -> ServedApi | None:
        """The API of a request in a version that is served, None if there is none."""
        api = self.by_key.get(head.key)
        return api if api is not None and api.lowest <= head.version <= api.highest else None

    def refusal(self, head: KafkaHead) -> ApiVersionsResponse | None:
        """The answer to a request that `find` has no API for, in version 0 of ApiVersions; None if
        its connection is to end.
        """
        return ApiVersionsResponse(UNSUPPORTED_VERSION, self._versions) if head.key == API_VERSIONS else None

    def _answer_versions(self, exchange: WireExchange, request: Any) -> ApiVersionsResponse:
        return ApiVersionsResponse(0, self._versions)
