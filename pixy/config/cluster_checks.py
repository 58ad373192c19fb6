"""Rules for the options of a cluster's nodes: addresses of peers, the join list, secret and TLS.

Pure, as `checks`, which reports what is found here.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pixy.config.addresses import is_every_interface, is_loopback, split_address, why_not_dialled
from pixy.config.options import Config

_RESTART_S = 60.0
"""Longest restart that is nothing special."""


class Contradiction(NamedTuple):
    """A contradiction, and the options of which at least one was set."""

    message: str
    options: tuple[str, ...]


def find_contradictions(config: Config, *, is_new: bool) -> Iterator[Contradiction]:
    """All contradictions between the options of a cluster's nodes.

    Args:
        is_new: the node belongs to no cluster yet. One that does needs its join list no more, which
            may have an address that it had before.
    """
    unusable = list(_unusable_addresses(config))
    yield from unusable
    yield from _tls(config)
    if not unusable:
        yield from _own_address(config)
        yield from _node_list(config, "cluster.join", config.cluster.join, names_itself=is_new)
        yield from _node_list(config, "peers", config.peers, names_itself=True)
        yield from _unprotected(config)


def find_dangers(config: Config) -> Iterator[str]:
    """Warnings about settings that work and are dangerous."""
    join, kinds = config.cluster.join, {proxy.kind for proxy in config.proxies.values()}
    if join and "embedded" not in kinds:
        yield "cluster.join has no effect: no entry under proxies is an embedded cluster"
    if config.peers and "kafka" not in kinds:
        yield "peers has no effect: no entry under proxies is a Kafka cluster"
    if "embedded" not in kinds and not config.peers:
        return
    if "embedded" in kinds and 0 < config.cluster.replace_after < _RESTART_S:
        yield (
            f"cluster.replace_after is {config.cluster.replace_after:g} s: a node that restarts for as long loses its replicas "
            "to others, which copy all of its data. Set some minutes, or 0s for never"
        )
    if len(join) == 2 and "embedded" in kinds:
        yield (
            "cluster.join names two nodes: if they found a cluster, both have to confirm each write, so the loss of "
            "either one stops all writes; name three, or run one node alone. A node that joins a cluster needs no more"
        )
    if _beyond_loopback(config) and not config.cluster.tls.cert_file:
        yield (
            "nodes prove to each other that they know the secret of cluster.secret_file, but what they send is neither "
            "encrypted nor protected from changes: set cluster.tls, unless you trust the network between them"
        )


def _unusable_addresses(config: Config) -> Iterator[Contradiction]:
    try:
        if config.peer_addr:
            split_address(config.peer_addr)
    except ValueError as error:
        yield Contradiction(f"peer_addr {error}", ("peer_addr",))
    for option, address in (
        ("peer", config.advertised.peer),
        ("grpc", config.advertised.grpc),
        ("kafka", config.advertised.kafka),
    ):
        reason = address and why_not_dialled(address)
        if reason:
            message = f"advertised.{option} {reason}; expected host:port that others can connect to"
            yield Contradiction(message, (f"advertised.{option}",))
    for option, addresses in (("cluster.join", config.cluster.join), ("peers", config.peers)):
        for address in addresses:
            if why_not_dialled(address):
                message = f'{option} has "{address}"; expected host:port of a node, such as 10.0.0.1:19094'
                yield Contradiction(message, (option,))


def _own_address(config: Config) -> Iterator[Contradiction]:
    if config.peer_addr and not config.advertised.peer and is_every_interface(config.peer_addr):
        message = (
            f"peer_addr {config.peer_addr} stands for all addresses of this machine: set advertised.peer to the one that "
            "the other nodes connect to"
        )
        yield Contradiction(message, ("peer_addr",))


def _node_list(
    config: Config, name: str, addresses: Sequence[str], *, names_itself: bool
) -> Iterator[Contradiction]:
    """Contradictions of a list of nodes, which may have to name this one."""
    if not addresses:
        return
    if not config.peer_addr:
        yield Contradiction(f"{name} needs peer_addr, which is empty", ("peer_addr", name))
        return
    nodes = [_node(address) for address in addresses]
    repeated = [address for at, address in enumerate(addresses) if nodes[at] in nodes[:at]]
    if repeated:
        yield Contradiction(f"{name} has {repeated[0]} more than once", (name,))
    option = "advertised.peer" if config.advertised.peer else "peer_addr"
    own = config.advertised.peer or config.peer_addr
    if names_itself and not is_every_interface(own) and _node(own) not in nodes:
        message = (
            f"{name} does not name this node, which is {own} by {option}: add it, on all nodes, or set "
            f"advertised.peer to the address in the list that is this node's ({', '.join(addresses)})"
        )
        yield Contradiction(message, (name, option))


def _node(address: str) -> tuple[str, int]:
    host, port = split_address(address)
    return host.lower(), port


def _tls(config: Config) -> Iterator[Contradiction]:
    tls = config.cluster.tls
    files = {"cert_file": tls.cert_file, "key_file": tls.key_file, "ca_file": tls.ca_file}
    if any(files.values()) and not all(files.values()):
        message = "cluster.tls.cert_file, cluster.tls.key_file and cluster.tls.ca_file must be set together"
        yield Contradiction(message, tuple(f"cluster.tls.{name}" for name in files))


def _unprotected(config: Config) -> Iterator[Contradiction]:
    """Nodes that nobody has to prove to be one of."""
    if config.cluster.secret_file or config.cluster.tls.cert_file:
        return
    kinds = {proxy.kind for proxy in config.proxies.values()}
    far = _beyond_loopback(config)
    if far:
        options, addresses = zip(*far, strict=True)
        who = f"{options[0]} has {addresses[0]}, which other machines can reach"
    elif not config.peer_addr:
        return
    elif config.cluster.join and "embedded" in kinds:
        options, who = ("cluster.join",), "cluster.join is set, so every process of this machine could join"
    elif config.peers and "kafka" in kinds:
        options, who = ("peers",), "peers is set, so every process of this machine could pass for one of them"
    else:
        return
    message = (
        f"{who}: nodes need a secret that all of them share. Write one to a file, with `umask 077; openssl rand -hex 32 > "
        "FILE`, and name that in cluster.secret_file (PIXY_CLUSTER__SECRET_FILE), on all nodes. Or set cluster.tls"
    )
    yield Contradiction(message, options)


def _beyond_loopback(config: Config) -> list[tuple[str, str]]:
    """Options with an address that other machines can reach, and the address."""
    named = [
        ("peer_addr", config.peer_addr),
        ("advertised.peer", config.advertised.peer if config.peer_addr else ""),
        *(("cluster.join", address) for address in config.cluster.join),
        *(("peers", address) for address in config.peers),
    ]
    return [(option, address) for option, address in named if address and not is_loopback(address)]
