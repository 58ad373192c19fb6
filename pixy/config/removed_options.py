"""Options of earlier releases that are fixed by now. They are dropped with a warning, so that a
daemon starts with its old configuration.
"""

from collections.abc import Mapping

from pixy.config.tree import Branch

REMOVED: Mapping[str, str] = {
    "grpc.max_header_list_bytes": "16384 bytes",
    "grpc.max_continuation_frames": "16 frames",
    "grpc.max_frame_bytes": "49152 bytes",
    "grpc.stream_window_bytes": "524288 bytes",
    "grpc.connection_window_bytes": "4194304 bytes",
    "grpc.request_buffer_bytes": "16777216 bytes, or grpc.max_message_bytes if that is more, and at most grpc.buffer_bytes",
    "grpc.turn_bytes": "16384 bytes",
    "grpc.reset_burst": "4096",
    "grpc.resets_per_second": "100",
    "grpc.ping_burst": "100",
    "grpc.pings_per_second": "1",
    "grpc.settings_burst": "100",
    "grpc.settings_per_second": "1",
    "grpc.overhead_burst": "10000",
    "grpc.overhead_per_second": "1000",
    "grpc.keepalive_timeout": "20s, or grpc.keepalive if that is less",
    "grpc.linger_timeout": "5s",
    "grpc.drain_ping_timeout": "1s",
    "grpc.max_connection_age_grace": "30s",
}
"""The constants that hold instead, by option."""


def drop_removed(root: Branch) -> list[str]:
    """Remove these options from a tree; returns warnings, one for each."""
    warnings = []
    for option, holds in REMOVED.items():
        section, _, name = option.partition(".")
        entry = root.entries.get(section)
        if entry is not None and isinstance(entry.node, Branch) and name in entry.node.entries:
            place, _node = entry.node.entries.pop(name)
            warnings.append(f"{place}: {option} is no option any more and has no effect: it is {holds}")
    return warnings
