"""State that the HTTP connections of a port share: routes, limits, parsed heads."""

from pixy.http1 import HeadCache, RequestHead
from pixy.serving import Environment
from pixy.web.answers import Answer, DateField
from pixy.web.options import WebOptions
from pixy.web.router import Match, Router


class WebEnvironment:
    """Shared by HTTP connections in the running event loop.

    Args:
        environment: shared by the connections of all protocols.
        router: routes.
        options: limits.

    Attributes:
        shared, options: see above.
        heads: parsed heads.
        date: of answers.
    """

    def __init__(self, environment: Environment, router: Router, options: WebOptions) -> None:
        self.shared = environment
        self.options = options
        self.heads = HeadCache()
        self.date = DateField(environment.clock)
        self._router = router

    def match(self, head: RequestHead) -> Match | Answer:
        """See `Router.match`. It is kept with the head."""
        match: Match | Answer | None = head.route
        if match is None:
            match = head.route = self._router.match(head, self.options.hosts)
        return match

    def body_bytes_max(self, head: RequestHead) -> int:
        """Largest body of a request; that of one without a route is not read."""
        match = self.match(head)
        return match.route.body_bytes_max if isinstance(match, Match) else 0
