"""The gRPC server itself: no-op calls, deadlines, idle connections, the HTTP/2 core alone."""
