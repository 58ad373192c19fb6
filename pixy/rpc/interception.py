"""Interception: the one place between the head of a call and its handler.

An interceptor sees the head of a call and returns the principal of its caller, which handlers find
in `Call.principal`. By default that is the subject of the client's certificate (mutual TLS). A
server that identifies callers by metadata, or authorises methods, is given an interceptor of its
own.

A decision holds for all calls of a connection with the same header section, whose deadlines may
differ: clients repeat their sections, so a usual call pays nothing for it. Refusals are not kept.
What depends on the request, such as the right to a topic, is the handler's to decide, by the
principal.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pixy.http2 import Field
from pixy.rpc.metadata import decode_metadata
from pixy.rpc.status import GrpcError, Status

ANONYMOUS = ""
"""The principal of a caller that nothing identifies."""

_ATTRIBUTES = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "domainComponent": "DC",
    "userId": "UID",
}
"""Short names of attribute types (RFC 4514 §3)."""
_ESCAPED = str.maketrans({character: f"\\{character}" for character in '\\,+"<>;='})


@dataclass(frozen=True, slots=True)
class CallHead:
    """A call of which the request was not read.

    Attributes:
        method: `package.Service/Method`.
        peer: the client's address.
        certificate: the client's verified certificate as `ssl.SSLSocket.getpeercert` describes it,
            or None.
        fields: the header section, without pseudo-header fields.
    """

    method: str
    peer: str
    certificate: Mapping[str, Any] | None
    fields: Sequence[Field]

    @property
    def metadata(self) -> list[tuple[str, str | bytes]]:
        """The client's metadata.

        Raises:
            GrpcError: INTERNAL, binary metadata that cannot be read.
        """
        try:
            return decode_metadata(self.fields)
        except ValueError as error:
            raise GrpcError(Status.INTERNAL, str(error)) from error


Interceptor = Callable[[CallHead], str]
"""Returns the principal of the caller, or raises `GrpcError` to refuse the call."""


def principal_of_certificate(head: CallHead) -> str:
    """The subject of the client's certificate (RFC 4514), `ANONYMOUS` without one."""
    if head.certificate is None:
        return ANONYMOUS
    subject = head.certificate.get("subject", ())
    return ",".join(
        "+".join(f"{_ATTRIBUTES.get(name, name)}={value.translate(_ESCAPED)}" for name, value in relative)
        for relative in reversed(subject)
    )
