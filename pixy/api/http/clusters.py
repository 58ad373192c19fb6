"""The cluster that a path names."""

from collections.abc import Mapping

from pixy.errors import UnknownCluster
from pixy.proxy import Proxy
from pixy.web import Exchange


def proxy_of(proxies: Mapping[str, Proxy], exchange: Exchange) -> Proxy:
    """The proxy of the cluster in the path of a request.

    Raises:
        UnknownCluster: none is configured under that name.
    """
    cluster = exchange.parameters.get("cluster", "")
    proxy = proxies.get(cluster)
    if proxy is None:
        raise UnknownCluster(f"proxy `{cluster}` does not exist")
    return proxy
