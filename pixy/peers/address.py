"""Addresses of peers."""

from typing import NamedTuple

from pixy.config import split_address, why_not_dialled


class Address(NamedTuple):
    """Host and port of a peer. An empty host means all interfaces of this machine."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> "Address":
        """An address of `host:port` or `[v6]:port`.

        Raises:
            ValueError: not such an address; the text says what is expected.
        """
        return Address(*split_address(text))

    @staticmethod
    def of_node(text: str) -> "Address":
        """An address that a node gives of itself, or of another one.

        Raises:
            ValueError: no node can be there; the text says why.
        """
        reason = why_not_dialled(text)
        if reason:
            raise ValueError(reason)
        return Address.parse(text)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
