"""Addresses in options: host and port, or the path of a unix socket. Pure."""

import ipaddress
import re
import socket

_BROADCAST = ipaddress.IPv4Address("255.255.255.255")
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


def why_not_dialled(address: str) -> str:
    """Reason why no node can be reached at an address, empty if one may be.

    Names are not resolved.
    """
    try:
        host, port = split_address(address)
    except ValueError as error:
        return str(error)
    reason = "its port is 0" if not port else _why_not_host(host)
    return f'is "{address}": {reason}' if reason else ""


def _why_not_host(host: str) -> str:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return "its host is a number" if _is_number(host) else "" if host else "it has no host"
    ip = getattr(ip, "ipv4_mapped", None) or ip
    if ip.is_unspecified:
        return "it stands for all addresses of a machine"
    if ip.is_multicast or ip == _BROADCAST:
        return "it is of many machines"
    if ip.is_link_local and not getattr(ip, "scope_id", None):
        return "it is link-local, and names no interface"
    return ""


def _is_number(host: str) -> bool:
    """True for an IPv4 address in a form that only the resolver takes, such as 0 or 0x7f.1."""
    try:
        socket.inet_aton(host)
    except OSError:
        return False
    return True


def is_every_interface(address: str) -> bool:
    """True if an address to listen on stands for all addresses of the machine."""
    host, _ = split_address(address)
    try:
        return not host or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
