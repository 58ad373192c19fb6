"""Kafka's protocol for any APIs, as a protocol of a server's listeners (`pixy.serving`).

An API is a row: key, versions, handler.

    def heartbeat(exchange: WireExchange, request: HeartbeatRequest) -> HeartbeatResponse:
        return HeartbeatResponse(error_code=25)

    table = ApiTable([ServedApi(12, 0, 4, heartbeat)])
    await server.listen("127.0.0.1:19095", WireFactory(server.environment, table, WireOptions()))

Messages are those of `pixy.kafka_messages`: the handler gets the request of any version, and the
answer is written in the same version. Requests of a connection run beside each other and are
answered in order. With `WireOptions.logs_in` a client gets nothing but the APIs of a login until a
handler has called `WireExchange.log_in`. An exception of a handler is a bug, and ends the
connection: errors are codes in the answers.
"""

from pixy.wire.apis import ApiTable, ServedApi, WireHandler
from pixy.wire.exchange import WireExchange
from pixy.wire.factory import WireFactory
from pixy.wire.options import WireOptions

__all__ = ["ApiTable", "ServedApi", "WireExchange", "WireFactory", "WireHandler", "WireOptions"]
