"""Refusals that pixy's services share: an unknown cluster, and the status of an error."""

from collections.abc import Mapping

from pixy.errors import PixyError, UnknownCluster
from pixy.proxy import Proxy
from pixy.rpc import GrpcError


def translate(error: Exception) -> GrpcError | None:
    """See `Translate`: the status is an attribute of each error class."""
    if not isinstance(error, PixyError):
        return None
    return GrpcError(error.grpc_status, str(error), limit=error.limit)


def proxy_of(proxies: Mapping[str, Proxy], cluster: str) -> Proxy:
    """The proxy of the cluster that a request names.

    Raises:
        UnknownCluster: none is configured under that name.
    """
    proxy = proxies.get(cluster)
    if proxy is None:
        raise UnknownCluster(f"proxy `{cluster}` does not exist")
    return proxy
