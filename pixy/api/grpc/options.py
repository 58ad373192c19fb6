"""Limits of the server and of gRPC, from the section `grpc` of the configuration."""

from pixy.config import GrpcConfig
from pixy.http2 import Options
from pixy.rpc import GrpcOptions
from pixy.serving import ServerOptions

__all__ = ["grpc_options", "server_options"]

_DEFAULT = Options()


def server_options(config: GrpcConfig, client_share_percent: int) -> ServerOptions:
    """Limits of all connections by a configuration."""
    return ServerOptions(
        buffer_bytes=config.buffer_bytes,
        connections_max=config.max_connections,
        calls_max=config.max_calls,
        client_share_percent=client_share_percent,
        turn_bytes=config.turn_bytes,
        handshake_s=config.handshake_timeout,
        stall_s=config.stall_timeout,
        age_s=config.max_connection_age,
        age_grace_s=config.max_connection_age_grace,
        linger_s=config.linger_timeout,
    )


def grpc_options(config: GrpcConfig) -> GrpcOptions:
    """Limits of gRPC's connections by a configuration.

    Tokens that a bucket earns with each answer are not configurable.
    """
    http2 = Options(
        max_concurrent_streams=config.max_concurrent_streams,
        max_header_list_bytes=config.max_header_list_bytes,
        max_frame_bytes=config.max_frame_bytes,
        stream_window_bytes=config.stream_window_bytes,
        connection_window_bytes=config.connection_window_bytes,
        output_bytes=config.output_buffer_bytes,
        continuation_frames=config.max_continuation_frames,
        resets=_DEFAULT.resets._replace(burst=config.reset_burst, per_second=config.resets_per_second),
        pings=_DEFAULT.pings._replace(burst=config.ping_burst, per_second=config.pings_per_second),
        settings=_DEFAULT.settings._replace(
            burst=config.settings_burst, per_second=config.settings_per_second
        ),
        overhead=_DEFAULT.overhead._replace(
            burst=config.overhead_burst, per_second=config.overhead_per_second
        ),
        handshake_s=config.handshake_timeout,
        header_block_s=config.handshake_timeout,
        keepalive_s=config.keepalive,
        keepalive_timeout_s=config.keepalive_timeout,
        idle_s=config.idle_timeout,
        send_stall_s=config.stall_timeout,
        drain_ping_s=config.drain_ping_timeout,
    )
    return GrpcOptions(
        http2=http2,
        message_bytes_max=config.max_message_bytes,
        request_bytes_max=config.request_buffer_bytes,
        request_s=config.request_timeout,
    )
