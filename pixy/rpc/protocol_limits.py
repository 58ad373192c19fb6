"""Options behind the limits of the HTTP/2 core, by the reasons that it gives clients."""

__all__ = ["limit_of"]

_OPTIONS = {
    "too many concurrent streams": "grpc.max_concurrent_streams",
    "header list too large": "grpc.max_header_list_bytes",
    "header block timeout": "grpc.handshake_timeout",
    "handshake timeout": "grpc.handshake_timeout",
    "response larger than the output buffer's space": "grpc.output_buffer_bytes",
    "too many stream resets": "grpc.reset_burst",
    "too_many_pings": "grpc.ping_burst",
    "too many settings": "grpc.settings_burst",
    "too many frames without a message": "grpc.overhead_burst",
}


def limit_of(reason: str) -> str:
    """The option of a limit that a stream or connection met; the reason itself if it has none.

    Reasons are texts of the core, never of a client.
    """
    if reason.startswith("header block of more than"):
        return "grpc.max_continuation_frames" if "CONTINUATION" in reason else "grpc.max_header_list_bytes"
    return _OPTIONS.get(reason, reason)
