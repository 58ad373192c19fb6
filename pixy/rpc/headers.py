"""What gRPC makes of the header section of a request (PROTOCOL-HTTP2.md, Requests).

Clients repeat the same section for call after call, and the HTTP/2 core then hands out the same `RequestHeaders`. So what is read from
it is kept in its `memo`, and a usual call pays for one look. Of a section that differs from an earlier one in its grpc-timeout, that
alone is read.

    found                                              the call is answered
    content-type is not application/grpc, or +proto    HTTP status 415 and a text, when the request is complete
    :method is not POST                                HTTP status 405, the same
    grpc-timeout that cannot be read                   INTERNAL
    :path that names no method                         UNIMPLEMENTED
    grpc-encoding that is unknown                      UNIMPLEMENTED, with grpc-accept-encoding
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pixy.http2 import Field, RequestHeaders
from pixy.rpc.messages import Encoding
from pixy.rpc.methods import Method
from pixy.rpc.status import GrpcError, Status, status_fields

__all__ = [
    "ANSWER_HEADERS",
    "TIMEOUT",
    "CallHeaders",
    "Refusal",
    "read_call_headers",
    "read_timeout",
    "read_varying",
    "refusal_fields",
]

ANSWER_HEADERS: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
"""The header section of every answer, in front of what its handler adds."""

TIMEOUT = b"grpc-timeout"
"""The field that usually differs from call to call."""

_ACCEPT_ENCODING: Field = (b"grpc-accept-encoding", b"identity,gzip")
_CONTENT_TYPE = b"application/grpc"
_CONTENT_TYPES = frozenset((_CONTENT_TYPE, b"application/grpc+proto"))
_ENCODINGS: dict[bytes, Encoding] = {encoding.value: encoding for encoding in Encoding}
_UNIT_SECONDS = dict(zip(b"HMSmun", (3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9), strict=True))
_TIMEOUT_DIGITS_MAX = 8


class Refusal(NamedTuple):
    """The answer to a call that is not served.

    Attributes:
        fields: of its header section.
        text: its body, for who does not speak gRPC; b"" for who does, and needs no more than the fields.
    """

    fields: list[Field]
    text: bytes = b""


class CallHeaders:
    """How to serve a call.

    Attributes:
        method: what to call, None if the call is refused.
        refusal: the answer of a call that is refused, else None.
        timeout_s: seconds from its arrival to its deadline, None without one.
        encoding: how its messages may be compressed.
        accepts_gzip: whether its answer may be.
        fields: all that may be metadata.
        authority: the host that the client called.
        principal: of the caller, as the interceptor says.
    """

    __slots__ = (
        "accepts_gzip",
        "authority",
        "encoding",
        "fields",
        "method",
        "principal",
        "refusal",
        "timeout_s",
    )

    def __init__(self, fields: Sequence[Field], authority: bytes) -> None:
        self.method: Method | None = None
        self.refusal: Refusal | None = None
        self.timeout_s: float | None = None
        self.encoding = Encoding.IDENTITY
        self.accepts_gzip = False
        self.fields = fields
        self.authority = authority
        self.principal = ""


def read_call_headers(headers: RequestHeaders, methods: Mapping[bytes, Method]) -> CallHeaders:
    """Read a header section that HTTP/2 has found to be right."""
    return _read(headers, headers.fields, methods)


def read_varying(headers: RequestHeaders, varying: Field, methods: Mapping[bytes, Method]) -> CallHeaders:
    """Read a header section that has one field more than `headers`. If that is a timeout, `read_timeout` is enough."""
    return _read(headers, [*headers.fields, varying], methods)


def _read(headers: RequestHeaders, fields: Sequence[Field], methods: Mapping[bytes, Method]) -> CallHeaders:
    call = CallHeaders(fields, headers.authority)
    content_type = timeout = b""
    encoding: Encoding | None = Encoding.IDENTITY
    for name, value in fields:
        if name == b"content-type":
            content_type = value
        elif name[:5] == b"grpc-":
            if name == TIMEOUT:
                timeout = value
            elif name == b"grpc-encoding":
                encoding = _ENCODINGS.get(value)
            elif name == b"grpc-accept-encoding":
                call.accepts_gzip = b"gzip" in value
    if content_type not in _CONTENT_TYPES and content_type.partition(b";")[0] not in _CONTENT_TYPES:
        call.refusal = _http_refusal(b"415", "this is a gRPC server: content-type must be application/grpc")
    elif headers.method != b"POST":
        call.refusal = _http_refusal(
            b"405", "this is a gRPC server: the method must be POST", (b"allow", b"POST")
        )
    elif timeout and (seconds := read_timeout(timeout)) is not None:
        call.timeout_s = seconds
    elif timeout:
        call.refusal = Refusal(refusal_fields(GrpcError(Status.INTERNAL, "grpc-timeout cannot be read")))
    if call.refusal is None:
        _choose_method(call, headers.path, methods, encoding)
    return call


def _choose_method(
    call: CallHeaders, path: bytes, methods: Mapping[bytes, Method], encoding: Encoding | None
) -> None:
    method = methods.get(path)
    if method is None:
        error = GrpcError(Status.UNIMPLEMENTED, f"unknown method {path.decode('utf-8', 'replace')}")
        call.refusal = Refusal(refusal_fields(error))
    elif encoding is None:
        error = GrpcError(Status.UNIMPLEMENTED, "grpc-encoding is not one of identity and gzip")
        call.refusal = Refusal([*refusal_fields(error), _ACCEPT_ENCODING])
    else:
        call.method, call.encoding = method, encoding


def _http_refusal(status: bytes, text: str, *fields: Field) -> Refusal:
    body = f"{text}\n".encode()
    return Refusal([(b":status", status), (b"content-type", b"text/plain"), *fields], body)


def refusal_fields(error: GrpcError) -> list[Field]:
    """The one section of an answer that has nothing but a status (Trailers-Only)."""
    return [*ANSWER_HEADERS, *status_fields(error)]


def read_timeout(value: bytes) -> float | None:
    """The seconds that a grpc-timeout means, None if it means nothing (PROTOCOL-HTTP2.md, Timeout)."""
    digits = value[:-1]
    if len(digits) > _TIMEOUT_DIGITS_MAX or not digits.isdigit():
        return None
    unit = _UNIT_SECONDS.get(value[-1])
    return None if unit is None else int(digits) * unit
