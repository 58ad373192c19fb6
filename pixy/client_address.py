"""The address of a client without its port: the unit of shares and of the log of limits.

An IPv6 host usually has a network of 64 bits to itself, so that network is one client. A process of
this machine may use any loopback address, so these are one. All clients on unix sockets of this
machine are one: a socket is open to the daemon's user alone.
"""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

UNIX_CLIENT = "unix"
"""The client of every unix socket."""

_LOOPBACK_CLIENT = "127.0.0.1"
_HOST_BITS = 64
"""Prefix of the network that an IPv6 host has to itself (RFC 6177)."""


def client_address(peer: str) -> str:
    """The client that a peer counts as.

    Args:
        peer: `host:port`, `[host]:port`, or `UNIX_CLIENT`.
    """
    host = peer.rpartition(":")[0].strip("[]") or peer
    if ":" not in host:
        return _LOOPBACK_CLIENT if host.startswith("127.") else host
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    mapped = address if isinstance(address, IPv4Address) else address.ipv4_mapped
    if address.is_loopback or (mapped is not None and mapped.is_loopback):
        return _LOOPBACK_CLIENT
    if mapped is not None:
        return str(mapped)
    assert isinstance(address, IPv6Address)
    if address.is_link_local:
        return str(address)
    return str(ip_network((address, _HOST_BITS), strict=False))


def share_of(limit: int, percent: int) -> int:
    """Part of a limit that one client may take, at least 1."""
    return max(1, limit * percent // 100)
