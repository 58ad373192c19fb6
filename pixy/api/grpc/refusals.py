"""What pixy's services have in common: which cluster a request names, and the status of an error."""

from collections.abc import Callable, Mapping

from pixy.api.grpc.methods import Translate
from pixy.api.grpc.status import GrpcError
from pixy.errors import Internal, PixyError, UnknownCluster
from pixy.proxy import Proxy

__all__ = ["proxy_of", "translator"]


def translator(on_fault: Callable[[BaseException], None]) -> Translate:
    """What turns an error into a status: by the table in `errors`. Any other exception is a bug.

    Args:
        on_fault: called with a bug; the caller is answered INTERNAL.
    """

    def translate(error: Exception) -> GrpcError:
        if isinstance(error, GrpcError):
            return error
        if not isinstance(error, PixyError):
            on_fault(error)
            error = Internal("internal error; the daemon's log has the details")
        return GrpcError(error.grpc_status, str(error))

    return translate


def proxy_of(proxies: Mapping[str, Proxy], cluster: str) -> Proxy:
    """The proxy of the cluster that a request names.

    Raises:
        UnknownCluster: none is configured under that name.
    """
    proxy = proxies.get(cluster)
    if proxy is None:
        raise UnknownCluster(f"proxy `{cluster}` does not exist")
    return proxy
