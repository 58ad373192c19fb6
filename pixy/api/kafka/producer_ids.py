"""InitProducerId: ids of idempotent producers.

Every request gets an id of its own with epoch 0, whatever id it names: a producer that wants
another epoch raises it by itself (KIP-360). There are no transactions.
"""

from pixy.api.kafka.codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    COORDINATOR_LOAD_IN_PROGRESS,
    INVALID_REQUEST,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
)
from pixy.errors import DeadlineExceeded, FailedPrecondition, PixyError, Unavailable
from pixy.kafka_messages.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from pixy.proxy import Proxy
from pixy.wire import WireExchange

_NONE = -1
_NAMED_FROM = 3
"""First version whose requests may name an id and an epoch."""


class ProducerIdsApi:
    """Handler of InitProducerId.

    Args:
        proxy: of the cluster.
    """

    def __init__(self, proxy: Proxy) -> None:
        self._log = proxy.log

    async def init_producer_id(
        self, exchange: WireExchange, request: InitProducerIdRequest
    ) -> InitProducerIdResponse:
        """Give an id."""
        names_one = (request.producer_id == _NONE) != (request.producer_epoch == _NONE)
        if exchange.version >= _NAMED_FROM and names_one:
            return _refused(INVALID_REQUEST)
        if request.transactional_id is not None:
            # Fatal, so that a client fails at once instead of asking for ever.
            code = TRANSACTIONAL_ID_AUTHORIZATION_FAILED if request.transactional_id else INVALID_REQUEST
            return _refused(code)
        try:
            return InitProducerIdResponse(0, 0, await self._log.new_producer_id(), 0)
        except (Unavailable, DeadlineExceeded):
            return _refused(COORDINATOR_LOAD_IN_PROGRESS)
        except FailedPrecondition:
            # Fatal too: there are no producers in this cluster, or not yet.
            return _refused(CLUSTER_AUTHORIZATION_FAILED)
        except PixyError as error:
            return _refused(error.kafka_code)


def _refused(code: int) -> InitProducerIdResponse:
    return InitProducerIdResponse(0, code, _NONE, _NONE)
