"""Header sections of requests (PROTOCOL-HTTP2.md, Requests).

Clients repeat the same section for call after call, and the HTTP/2 core then returns the same
`RequestHeaders`. So its meaning is kept in `memo`, and a usual call pays for one look-up. Of a
section that differs from an earlier one only in its grpc-timeout, that alone is read.

    found                                              answer
    content-type is not application/grpc, or +proto    HTTP status 415 and a text, once the
                                                       request is complete
    :method is not POST                                HTTP status 405, likewise
    malformed grpc-timeout                             INTERNAL
    :path of no method                                 UNIMPLEMENTED
    unknown grpc-encoding                              UNIMPLEMENTED, with grpc-accept-encoding
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pixy.http2 import Field, RequestHeaders
from pixy.rpc.messages import Encoding
from pixy.rpc.methods import Method
from pixy.rpc.status import GrpcError, Status, status_fields

ANSWER_HEADERS: list[Field] = [(b":status", b"200"), (b"content-type", b"application/grpc")]
"""Header section of every answer, before the metadata of its handler."""

TIMEOUT = b"grpc-timeout"
"""The field that varies from call to call."""

_ACCEPT_ENCODING: Field = (b"grpc-accept-encoding", b"identity,gzip")
_CONTENT_TYPE = b"application/grpc"
_CONTENT_TYPES = frozenset((_CONTENT_TYPE, b"application/grpc+proto"))
_ENCODINGS: dict[bytes, Encoding] = {encoding.value: encoding for encoding in Encoding}
_UNIT_SECONDS = dict(zip(b"HMSmun", (3600.0, 60.0, 1.0, 1e-3, 1e-6, 1e-9), strict=True))
_TIMEOUT_DIGITS_MAX = 8


class Refusal(NamedTuple):
    """Answer to a call that is not served.

    Attributes:
        fields: its header section.
        text: its body, for a client that does not speak gRPC; otherwise b"".
    """

    fields: list[Field]
    text: bytes = b""


class CallHeaders:
    """Meaning of a header section.

    Attributes:
        called: the method of the path, None if the section is refused.
        method: the same once the interceptor has admitted a call, else None.
        refusal: the answer to a refused section, else None.
        timeout_s: seconds from its arrival to its deadline, None without one.
        encoding: compression of its messages.
        accepts_gzip: the answer may be compressed.
        fields: all fields that may be metadata.
        authority: the host that the client called.
        principal: of the caller, by the interceptor.
    """

    __slots__ = (
        "accepts_gzip",
        "authority",
        "called",
        "encoding",
        "fields",
        "method",
        "principal",
        "refusal",
        "timeout_s",
    )

    def __init__(self, fields: Sequence[Field], authority: bytes) -> None:
        self.called: Method | None = None
        self.method: Method | None = None
        self.refusal: Refusal | None = None
        self.timeout_s: float | None = None
        self.encoding = Encoding.IDENTITY
        self.accepts_gzip = False
        self.fields = fields
        self.authority = authority
        self.principal = ""


def read_call_headers(headers: RequestHeaders, methods: Mapping[bytes, Method]) -> CallHeaders:
    """Read a header section that is well-formed HTTP/2."""
    return _read(headers, headers.fields, methods)


def read_varying(headers: RequestHeaders, varying: Field, methods: Mapping[bytes, Method]) -> CallHeaders:
    """Read a section that has one field more than `headers`.

    For a timeout, `read_timeout` is enough.
    """
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
        call.refusal = Refusal(refusal_fields(GrpcError(Status.INTERNAL, "malformed grpc-timeout")))
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
        call.called, call.encoding = method, encoding


def _http_refusal(status: bytes, text: str, *fields: Field) -> Refusal:
    body = f"{text}\n".encode()
    return Refusal([(b":status", status), (b"content-type", b"text/plain"), *fields], body)


def refusal_fields(error: GrpcError) -> list[Field]:
    """The only section of an answer that is a status alone (Trailers-Only)."""
    return [*ANSWER_HEADERS, *status_fields(error)]


def read_timeout(value: bytes) -> float | None:
    """A grpc-timeout in seconds, None if it is malformed (PROTOCOL-HTTP2.md, Timeout)."""
    digits = value[:-1]
    if len(digits) > _TIMEOUT_DIGITS_MAX or not digits.isdigit():
        return None
    unit = _UNIT_SECONDS.get(value[-1])
    return None if unit is None else int(digits) * unit
