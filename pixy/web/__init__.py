"""HTTP/1.1 for any routes, as a protocol of a server's listeners (`pixy.serving`).

A route is a method, a pattern and a handler:

    async def version(exchange: Exchange) -> Answer:
        return Answer(JSON, b'{"version": "1"}')

    router = Router([Route("GET", "/version", version)])
    await server.listen("127.0.0.1:19093", WebFactory(server.environment, router, WebOptions()))

    handler           takes       answers
    plain function    exchange    with `Exchange.answer` or `fail`, at once or later, and returns
                                  the work to cancel if the client is gone first, or None
    coroutine         exchange    returns an `Answer`; or sends it in pieces (`Exchange.begin`,
                                  `send`), and returns None

`{name}` in a pattern stands for one segment of the path, and `Exchange.parameters` has its value.
`Exchange.query` has the parameters of the query. An error that a handler raises is answered by the
route's `Style`: a `PixyError` or an `HttpError` with its status, any other exception is a bug and
answered 500 with the id under which the log has it.

Requests of web pages of other origins are refused (`gate`), and so is a Host that is not among
`WebOptions.hosts`, if these are set.
"""

from pixy.web.answers import JSON, TEXT, Answer, AnswerHead
from pixy.web.exchange import Exchange
from pixy.web.factory import WebFactory
from pixy.web.form import Form, parse_form
from pixy.web.options import WebOptions
from pixy.web.router import Route, Router
from pixy.web.style import HttpError, Style, status_of

__all__ = [
    "JSON",
    "TEXT",
    "Answer",
    "AnswerHead",
    "Exchange",
    "Form",
    "HttpError",
    "Route",
    "Router",
    "Style",
    "WebFactory",
    "WebOptions",
    "parse_form",
    "status_of",
]
