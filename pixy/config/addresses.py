"""Addresses in options: host and port, or the path of a unix socket. Pure."""

import ipaddress
import re

__all__ = ["is_every_interface", "is_loopback", "is_socket_path", "split_address"]

_ADDRESS = re.compile(r"(?:\[(?P<v6>[^\[\]]*)\]|(?P<host>[^\[\]:/\s]*)):(?P<port>[0-9]{1,5})")


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port`, `[v6]:port` or `:port` (all interfaces, with an empty host).

    Raises:
        ValueError: not such an address; the text says what is expected.
    """
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match["port"]) > 65_535:
        raise ValueError(f'is "{address}"; expected host:port, such as 127.0.0.1:19091')
    return match["v6"] or match["host"] or "", int(match["port"])


def is_socket_path(address: str) -> bool:
    """True if an address names a unix socket instead of host and port."""
    return "/" in address


def is_loopback(address: str) -> bool:
    """True if no other machine can reach an address. A name other than localhost may be reached."""
    if is_socket_path(address):
        return True
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_every_interface(address: str) -> bool:
    """True if an address to listen on stands for all addresses of the machine."""
    host, _ = split_address(address)
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
