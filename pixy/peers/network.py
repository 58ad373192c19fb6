"""The network as a constructor argument: `TcpNetwork`, or the simulated one of the tests."""

import asyncio
from collections.abc import Callable, Collection
from typing import Protocol

from pixy.peers.address import Address


class Listening(Protocol):
    """A socket that accepts connections.

    Attributes:
        address: with the real port.
    """

    @property
    def address(self) -> Address: ...

    async def close(self) -> None:
        """Accept no more. Connections stay."""


class Network(Protocol):
    """Opens connections."""

    async def listen(
        self,
        factory: Callable[[], asyncio.BaseProtocol],
        address: Address,
        admits: Callable[[str], bool] = ...,
    ) -> Listening:
        """Accept connections, each with a protocol of its own.

        Args:
            admits: tells of an IP address if a connection from it is taken; else it is closed
                before it has cost anything.

        Raises:
            StartError: the address cannot be used.
        """

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> asyncio.BaseTransport:
        """Open a connection.

        Raises:
            OSError: nobody accepts it, or not as it has to be.
        """

    def addresses_of(self, host: str) -> Collection[str]:
        """IP addresses of a host name, as of the last attempt to connect to it."""
