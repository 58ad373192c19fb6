"""The bulk log API over gRPC."""
