"""Samples of what nodes exchange with each other."""

from collections.abc import Iterable

from pixy.cluster import TransferCounts
from pixy.metrics import Registry, Sample
from pixy.peers import PeerTraffic


def add_traffic(registry: Registry, traffic: Iterable[tuple[str, int, PeerTraffic]]) -> None:
    """Add the traffic with other nodes, by cluster and node."""
    for cluster, node_id, each in traffic:
        numbers = {
            "pixy_peer_sent_bytes_total": each.sent_bytes,
            "pixy_peer_received_bytes_total": each.received_bytes,
            "pixy_peer_sent_frames_total": each.sent_frames,
            "pixy_peer_received_frames_total": each.received_frames,
            "pixy_peer_reconnects_total": each.reconnects,
        }
        _add(registry, (cluster, str(node_id)), numbers)


def add_transfers(registry: Registry, cluster: str, what: str, counts: TransferCounts) -> None:
    """Add the `snapshots` or the `copies` of a cluster."""
    numbers = {f"pixy_{what}_{name}_total": number for name, number in counts._asdict().items()}
    _add(registry, (cluster,), numbers)


def _add(registry: Registry, labels: tuple[str, ...], numbers: dict[str, int]) -> None:
    for name, number in numbers.items():
        registry.add(name, lambda number=number: (Sample(labels, number),))  # type: ignore[misc]
