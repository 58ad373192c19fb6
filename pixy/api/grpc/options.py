"""Limits of the server and of gRPC, from the section `grpc` of the configuration."""

from math import inf

from pixy.config import GrpcConfig
from pixy.http2 import Options
from pixy.rpc import GrpcOptions
from pixy.serving import ServerOptions


def server_options(config: GrpcConfig, client_share_percent: int) -> ServerOptions:
    """Limits of all connections by a configuration."""
    return ServerOptions(
        buffer_bytes=config.buffer_bytes,
        connections_max=config.max_connections,
        calls_max=config.max_calls,
        client_share_percent=client_share_percent,
        handshake_s=config.handshake_timeout,
        stall_s=config.stall_timeout,
        age_s=config.max_connection_age,
    )


def grpc_options(config: GrpcConfig, http1_hint: str = Options().http1_hint) -> GrpcOptions:
    """Limits of gRPC's connections by a configuration, and some that follow from it."""
    defaults = GrpcOptions()
    http2 = Options(
        max_concurrent_streams=config.max_concurrent_streams,
        output_bytes=config.output_buffer_bytes,
        handshake_s=config.handshake_timeout,
        header_block_s=config.handshake_timeout,
        keepalive_s=config.keepalive,
        keepalive_timeout_s=min(defaults.http2.keepalive_timeout_s, config.keepalive or inf),
        idle_s=config.idle_timeout,
        send_stall_s=config.stall_timeout,
        http1_hint=http1_hint,
    )
    return GrpcOptions(
        http2=http2,
        message_bytes_max=config.max_message_bytes,
        request_bytes_max=min(max(defaults.request_bytes_max, config.max_message_bytes), config.buffer_bytes),
        request_s=config.request_timeout,
    )
