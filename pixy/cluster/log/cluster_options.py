"""A node's place among others: what the configuration says of its cluster."""

from dataclasses import dataclass

from pixy.peers import Address, join_hash


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """Options of a node that may have peers.

    Attributes:
        name: of the cluster, the key of its entry under `proxies`.
        join: the join list, sorted; empty for a lone node.
        address: at which its peers reach it.
        grpc_address: at which clients reach it.
        rack: of the machine, empty if there is none.
        version: of this release.
        max_message_bytes: `producer.max_message_bytes`.
        look_s: seconds that a new node looks whether nodes of a cluster dial it before it founds
            one: more than the longest pause between their attempts.
        replace_after_s: seconds that a node has to be away until others get its replicas;
            `math.inf`: they never do.
    """

    name: str = ""
    join: tuple[Address, ...] = ()
    address: str = ""
    grpc_address: str = ""
    rack: str = ""
    version: str = ""
    max_message_bytes: int = 0
    look_s: float = 2.5
    replace_after_s: float = 900.0

    @property
    def has_join_list(self) -> bool:
        """True if a new node is told of others."""
        return bool(self.join) and not self.is_listed_alone

    @property
    def is_listed_alone(self) -> bool:
        """True with a list of this node alone: others may join it, or may have joined it before its
        directory was lost.
        """
        return [str(each) for each in self.join] == [self.address]

    @property
    def join_hash(self) -> bytes:
        """Hash of the join list, empty without one."""
        return join_hash(self.join)
