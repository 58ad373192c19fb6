"""pixy/config/removed_options.py: options of earlier releases are dropped, with a true warning."""

from pathlib import Path

import pytest

from pixy.api.grpc.options import grpc_options, server_options
from pixy.config import Config, load_config
from pixy.config.options import GrpcConfig
from pixy.config.removed_options import REMOVED
from pixy.http2 import Options
from pixy.http2.token_buckets import TokenBucketOptions
from pixy.rpc import GrpcOptions
from pixy.serving import ServerOptions


def loaded(tmp_path: Path, text: str, variables: dict[str, str] | None = None) -> Config:
    path = tmp_path / "pixy.yaml"
    path.write_text(text)
    return load_config(path, variables or {}, {})


@pytest.mark.parametrize("option", REMOVED)
def test_a_removed_option_has_no_effect_and_a_warning_says_what_holds(tmp_path: Path, option: str) -> None:
    section, _, name = option.partition(".")
    config = loaded(tmp_path, f"{section}:\n  {name}: 12345\n")
    (warning,) = config.warnings
    assert warning == (
        f"{tmp_path}/pixy.yaml:2: {option} is no option any more and has no effect: it is {REMOVED[option]}"
    )
    assert config.grpc == GrpcConfig()


def test_a_removed_option_may_be_of_the_environment_and_beside_others(tmp_path: Path) -> None:
    text = "grpc:\n  turn_bytes: 1\n  max_calls: 7\n  reset_burst: [1, 2]\n"
    config = loaded(tmp_path, text, {"PIXY_GRPC__PING_BURST": "x"})
    assert config.grpc.max_calls == 7
    assert [warning.split(" is ")[0].split(": ")[1] for warning in config.warnings] == [
        "grpc.turn_bytes",
        "grpc.reset_burst",
        "grpc.ping_burst",
    ]
    assert config.warnings[2].startswith("PIXY_GRPC__PING_BURST: ")


def test_what_the_warnings_say_is_true() -> None:
    grpc, server = grpc_options(GrpcConfig()), server_options(GrpcConfig(), 50)
    assert (grpc, server) == (GrpcOptions(), ServerOptions())
    http2 = Options()
    held = {
        "max_header_list_bytes": http2.max_header_list_bytes,
        "max_continuation_frames": http2.continuation_frames,
        "max_frame_bytes": http2.max_frame_bytes,
        "stream_window_bytes": http2.stream_window_bytes,
        "connection_window_bytes": http2.connection_window_bytes,
        "request_buffer_bytes": grpc.request_bytes_max,
        "turn_bytes": server.turn_bytes,
        "keepalive_timeout": http2.keepalive_timeout_s,
        "linger_timeout": server.linger_s,
        "drain_ping_timeout": http2.drain_ping_s,
        "max_connection_age_grace": server.age_grace_s,
    }
    buckets: dict[str, TokenBucketOptions] = {
        "reset": http2.resets,
        "ping": http2.pings,
        "setting": http2.settings,
        "overhead": http2.overhead,
    }
    for name, bucket in buckets.items():
        plural = name if name == "overhead" else f"{name}s"
        held["settings_burst" if name == "setting" else f"{name}_burst"] = bucket.burst
        held[f"{plural}_per_second"] = bucket.per_second
    assert held.keys() == {option.removeprefix("grpc.") for option in REMOVED}
    for option, holds in REMOVED.items():
        first = holds.split(",")[0].removesuffix("s").removesuffix(" byte").removesuffix(" frame")
        assert float(first) == held[option.removeprefix("grpc.")], option


@pytest.mark.parametrize(
    ("config", "request_bytes", "keepalive_timeout_s"),
    [
        (GrpcConfig(max_message_bytes=24 << 20), 24 << 20, 20),
        (GrpcConfig(buffer_bytes=8 << 20), 8 << 20, 20),
        (GrpcConfig(keepalive=3.0), 16 << 20, 3),
        (GrpcConfig(keepalive=0.0), 16 << 20, 20),
    ],
)
def test_limits_that_follow_from_options(
    config: GrpcConfig, request_bytes: int, keepalive_timeout_s: float
) -> None:
    options = grpc_options(config)
    assert (options.request_bytes_max, options.http2.keepalive_timeout_s) == (
        request_bytes,
        keepalive_timeout_s,
    )
