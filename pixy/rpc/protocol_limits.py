"""Options behind the limits of the HTTP/2 core, by the reasons that it gives clients."""

__all__ = ["limit_of"]

_OPTIONS = {
    "too many concurrent streams": "grpc.max_concurrent_streams",
    "header block timeout": "grpc.handshake_timeout",
    "handshake timeout": "grpc.handshake_timeout",
    "response larger than the output buffer's space": "grpc.output_buffer_bytes",
}


def limit_of(reason: str) -> str:
    """The option of a limit that a stream or connection met; the reason itself if it has none.

    Reasons are texts of the core, never of a client.
    """
    return _OPTIONS.get(reason, reason)
