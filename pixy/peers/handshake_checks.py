"""Reasons to refuse a connection that the greetings of its two sides give; see `handshake`."""

from pixy.peers.handshake_side import NotYet
from pixy.peers.hello import Greeting, LinkPurpose


def unknown_entry(cluster: str) -> str:
    """The reason to refuse a connection for a cluster that is not configured here."""
    return (
        f'no embedded cluster "{cluster}" is configured on the node that was dialled: the key under proxies must be '
        "the same on all nodes of a cluster"
    )


def reason_to_refuse(own: Greeting, peer: Greeting, purpose: LinkPurpose, expected: int) -> str | None:
    """A row of the table of `handshake`, or None.

    Args:
        own, peer: greetings of this side and of the other.
        purpose: of the connection.
        expected: id of the node that was dialled, 0 for any.
    """
    for check in (_protocols, _entries, _clusters, _identities, _join_lists):
        reason = check(own, peer, purpose)
        if reason is not None:
            return reason
    if expected and peer.hello.node_id != expected:
        return (
            f"node {expected} was dialled, {peer.hello} has answered: the address belongs to another node; the right "
            "one is registered when the node starts with its advertised address"
        )
    return None


def _protocols(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    older, newer = sorted((own, peer), key=lambda each: each.protocols)
    if newer.protocols[0] <= older.protocols[1]:
        return None
    return (
        f"{newer.hello} (pixy {newer.hello.version}) speaks peer protocols from {newer.protocols[0]} on, {older.hello} "
        f"(pixy {older.hello.version}) up to {older.protocols[1]}: update {older.hello}"
    )


def _entries(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    if own.hello.cluster == peer.hello.cluster:
        return None
    return unknown_entry(own.hello.cluster)


def _clusters(own: Greeting, peer: Greeting, purpose: LinkPurpose) -> str | None:
    one, other = own.hello, peer.hello
    if one.cluster_id and other.cluster_id and one.cluster_id != other.cluster_id:
        return (
            f"{other} belongs to cluster {other.cluster_id.hex()}, {one} to {one.cluster_id.hex()}: an address in the "
            "join list is wrong, a data directory comes from another cluster, or `pixy cluster recover` was run for one "
            "of the two nodes, and the other one has to join as a new node, with an empty data directory"
        )
    if purpose is LinkPurpose.PASSING:
        return None
    for each in (one, other):
        if not each.cluster_id or not each.node_id:
            return NotYet(f"{each} has not {'started' if each.cluster_id else 'joined the cluster'} yet")
    return None


def _identities(own: Greeting, peer: Greeting, purpose: LinkPurpose) -> str | None:
    one, other = own.hello, peer.hello
    if one.process == other.process:
        return None if purpose is LinkPurpose.PASSING else f"{other} has dialled itself"
    if one.node_id and one.node_id == other.node_id:
        return (
            f"{other} and {one} have the same id: one of their data directories is a copy; stop the copy, remove its "
            "data directory and let it join as a new node"
        )
    return None


def _join_lists(own: Greeting, peer: Greeting, _: LinkPurpose) -> str | None:
    one, other = own.hello, peer.hello
    if not one.join_hash or not other.join_hash or one.join_hash == other.join_hash:
        return None
    return (
        f"{other} and {one} have different lists of nodes: cluster.join, or peers in front of Kafka, must name the "
        "same addresses on all of them, in any order"
    )
