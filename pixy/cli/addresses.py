"""Addresses of the daemon as people write them, and as gRPC takes them."""

import re

import click

DEFAULT_ADDRESS = "127.0.0.1:19091"
_DEFAULT_PORT = 19091
_PORT_MAX = 65535


def grpc_targets(text: str) -> list[str]:
    """The addresses of a list as gRPC takes them, with the default port where there is none.

    Raises:
        click.UsageError: one of them is no address.
    """
    if text.startswith(("unix:", "unix-abstract:")) or re.match(r"(dns|xds):/|ipv[46]:", text):
        return [text]
    targets = []
    for address in text.split(","):
        host = address.strip()
        match = re.fullmatch(r"(?P<host>[^\s:\[\]/]+|\[[0-9a-fA-F:.%]+\])(:(?P<port>[0-9]{1,5}))?", host)
        if host.startswith("unix:"):
            targets.append(host)
        elif match is None or not 0 < int(match["port"] or _DEFAULT_PORT) <= _PORT_MAX:
            raise click.UsageError(f"--address: {host!r} is not HOST, HOST:PORT or unix:PATH")
        else:
            targets.append(f"{match['host']}:{match['port'] or _DEFAULT_PORT}")
    return targets
