# ruff: noqa: RUF009 - every call in the classes below ends in dataclasses.field()
"""Options of the daemon: its listeners, its place among the nodes, its log."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pixy.config.options.proxy import ProxyConfig
from pixy.config.options.table import (
    EMBEDDED_ONLY,
    KAFKA_ONLY,
    MIB,
    boolean,
    choice,
    integer,
    private_file,
    seconds,
    section,
    size,
    text,
    texts,
)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`tls`: certificates of the server."""

    certificate_path: str = text("", "Certificate chain of the server, PEM. Empty: no TLS.")
    key_path: str = private_file("Private key of that certificate, PEM.")
    client_ca_path: str = text(
        "",
        "Certificate authority of client certificates, PEM. Clients must present a certificate "
        "signed by it. Empty: no client certificates.",
    )
    reload_interval: float = seconds(
        10.0,
        "How often these files are checked for changes. New connections use the new certificate, "
        "open ones stay. 0s: never.",
    )


@dataclass(frozen=True, slots=True)
class AdvertisedConfig:
    """`advertised`: addresses of this node as others reach it."""

    peer: str = text(
        "",
        "Address and port for the other nodes. Empty: peer_addr. Required if that is an address of "
        "all interfaces, such as 0.0.0.0.",
    )
    grpc: str = text(
        "",
        "Address and port for clients, as `pixy cluster status` shows it. Empty: grpc_addr.",
    )
    kafka: str = text(
        "",
        "Address and port that Kafka's clients are told. Empty: kafka_addr. Required if that is an "
        "address of all interfaces, such as 0.0.0.0.",
    )


@dataclass(frozen=True, slots=True)
class ServedSaslConfig:
    """`sasl`: logins of Kafka's clients."""

    users_file: str = private_file(
        "File with the users that may connect, a line of `pixy user NAME` for each. Clients log in with "
        "PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. The file is read again when it changes. Empty: no "
        "login. gRPC and HTTP know no users.",
    )


@dataclass(frozen=True, slots=True)
class PeerTlsConfig:
    """`cluster.tls`: certificates between nodes."""

    cert_file: str = text("", "Certificate of this node, PEM, for both directions. Empty: no TLS.")
    key_file: str = private_file("Private key of that certificate, PEM.")
    ca_file: str = text(
        "",
        "Certificate authority of the nodes, PEM. Use one that signs for this cluster alone: "
        "whoever has a certificate of it is let in as a node.",
    )


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """`cluster`: the nodes that form a cluster."""

    join: tuple[str, ...] = texts(
        (),
        "Peer addresses of the nodes that form the cluster at their first start, this one among "
        "them; the same on all of them, in any order. This node alone: a cluster of one, which other "
        "nodes can join later. Empty: a cluster of one that listens to no peer. A node that belongs to "
        "a cluster asks them only while it reaches no other one.",
    )
    secret_file: str = text(
        "",
        "File with a secret of at least 16 bytes, the same on all nodes. Each node proves to the "
        "others that it knows it. What nodes then send is neither encrypted nor protected from "
        "changes: for that set tls. One or the other is required with cluster.join or peers, and once "
        "others have joined. The file is read again when it changes.",
    )
    second_secret_file: str = text(
        "",
        "File with another secret that nodes may prove while secret_file is being changed. Empty, or no "
        "file there: none.",
    )
    tls: PeerTlsConfig = section(
        PeerTlsConfig, PeerTlsConfig, "Mutual TLS between nodes. All three files, or none."
    )
    replace_after: float = seconds(
        900.0,
        "How long a node has to be unreachable until other nodes get its replicas; the option of the "
        "node that leads metadata counts. Longer than a restart or an upgrade takes: all data of the "
        "node is copied. 0s: never.",
    )
    rack: str = text("", "Where the node stands, such as a rack or zone; shown by `pixy cluster status`.")


@dataclass(frozen=True, slots=True)
class LoggingConfig:
    """One entry of `logging`."""

    name: str = choice("console", ("console", "json"), "console (for people) or json (one object per line).")
    severity: str = choice(
        "info", ("debug", "info", "warning", "error"), "Minimum severity: debug, info, warning or error."
    )


LARGEST_GRPC_BYTES = (1 << 31) - 1


LARGEST_HTTP2_NUMBER = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class GrpcConfig:
    """`grpc`: the gRPC server. Each limit bounds what one client can cost the others."""

    max_message_bytes: int = size(
        4 * MIB,
        "Largest request message, compressed or not. Must exceed the largest "
        "producer.max_message_bytes by at least 65536 bytes. A larger request is answered "
        "RESOURCE_EXHAUSTED.",
        maximum=LARGEST_GRPC_BYTES,
    )
    max_connections: int = integer(
        10_000,
        "Maximum number of connections; further ones are closed at once. An idle connection takes "
        "about 12 KB, one in its TLS handshake up to 300 KB. The daemon lowers and logs the limit if the limit of open files does not "
        "allow as many beside the files of the clusters.",
        minimum=1,
    )
    max_calls: int = integer(
        50_000,
        "Maximum number of open calls of all connections: those that wait, like long polls, and "
        "those at work. Further ones are answered RESOURCE_EXHAUSTED. A call takes 1 to 10 KB while "
        "it is open.",
        minimum=1,
    )
    max_concurrent_streams: int = integer(
        4096,
        "Concurrent calls per connection. Clients with thousands of long polls use one "
        "connection. Further calls are refused, and safe to retry.",
        minimum=1,
        maximum=LARGEST_HTTP2_NUMBER,
    )
    output_buffer_bytes: int = size(
        8 * MIB,
        "Bytes of responses of a connection that wait for the client's flow-control windows, or "
        "for a transport that the client does not read fast enough. Calls whose response would "
        "exceed it are cancelled (RST_STREAM), and their messages are offered to other clients. A "
        "client with many concurrent calls with large responses must read them as they arrive. "
        "Fetches of record batches wait for space in half of it. Must be at least "
        "max_message_bytes.",
        maximum=LARGEST_HTTP2_NUMBER,
    )
    buffer_bytes: int = size(
        256 * MIB,
        "The same for all connections together: incomplete requests and waiting responses. Large "
        "requests are admitted while they fit in half of it, and wait otherwise. Requests with many "
        "elements are parsed while those of their method that are being answered fit in a sixteenth "
        "of it besides. Beyond it the connections that hold the most are closed. Must be at least "
        "output_buffer_bytes.",
    )
    handshake_timeout: float = seconds(
        10.0,
        "How long a client may take for the TLS and HTTP/2 handshakes, and for a header block. 0s: no limit.",
    )
    request_timeout: float = seconds(
        120.0,
        "How long a client may take to complete a request, or a message on a stream, before the "
        "call is answered DEADLINE_EXCEEDED. Time that a large request waits for buffer space "
        "does not count; while others wait for it, such a request needs 32 KiB a second besides. "
        "0s: no limit.",
    )
    keepalive: float = seconds(
        60.0, "A connection that has received nothing for this long is sent a PING. 0s: never."
    )
    idle_timeout: float = seconds(
        0.0,
        "A connection without calls for this long is closed gracefully. 0s: never, because "
        "clients keep connections for long.",
    )
    stall_timeout: float = seconds(
        300.0,
        "How long a client may read nothing of a response, or take it in pieces of less than 128 "
        "bytes, before the call is reset; the connection is closed if it reads nothing at all "
        "(CVE-2019-9517). 0s: no limit.",
    )
    max_connection_age: float = seconds(
        0.0,
        "A connection older than this, give or take a tenth, is closed gracefully, so that "
        "clients spread again over the servers behind a name. 0s: never.",
    )


@dataclass(frozen=True, slots=True)
class ManagementConfig:
    """`management`: metrics, health and diagnosis over HTTP, on `management_addr`."""

    allowed_hosts: tuple[str, ...] = texts(
        (),
        "Names, without ports, by which clients call management_addr, beside its own, localhost, and "
        "any IP address. Requests for another host are refused, so that no web page reaches the "
        "listener under a name of its own (DNS rebinding).",
    )
    tls: bool = boolean(
        False, "Serve it with the certificates of tls, and ask for client certificates as they say."
    )
    debug: bool = boolean(
        True,
        "Serve /debug too: tasks, stacks, a profile, memory by type. They show code and names of tasks, "
        "and cost time.",
    )
    max_topics: int = integer(
        1000,
        "Topics that have series of their own in the metrics: those with most records. All others are "
        "counted together, as the topic `other`.",
        minimum=1,
    )
    max_groups: int = integer(1000, "The same for consumer groups, each counted per topic.", minimum=1)
    max_partitions: int = integer(
        20_000,
        "Series of a metric by partition, and by consumer group and partition. Partitions of further "
        "topics, and of further groups, have none.",
        minimum=1,
    )


def _one_default_proxy() -> Mapping[str, ProxyConfig]:
    return MappingProxyType({"default": ProxyConfig()})


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a daemon."""

    grpc_addr: str = text(
        "127.0.0.1:19091",
        "Address and port of the gRPC API, or the path of a unix socket. Port 0 picks a free "
        "port; empty: none. 127.0.0.1 is reachable from this machine only; an address "
        "that other machines reach needs tls with client_ca_path, or insecure.",
    )
    insecure: bool = boolean(
        False,
        "Serve gRPC, HTTP or Kafka on an address that other machines reach without client certificates: "
        "whoever reaches it may read, write and delete everything. So for management_addr, where "
        "everything can be read but messages.",
    )
    unix_addr: str = text(
        "",
        "Path of an additional unix socket for both APIs: a connection that begins as HTTP/2 does is "
        "gRPC, any other one HTTP. Empty: none.",
    )
    unix_access: str = choice(
        "user",
        ("user", "group", "all"),
        "Users of the machine that may connect to unix_addr: user for that of the daemon alone (mode "
        "0600), group for its group as well (0660), all for anybody, as kafka-pixy had it (0777).",
    )
    tcp_addr: str = text(
        "127.0.0.1:19092",
        "Address and port of the HTTP API, or the path of a unix socket; the same rules as for "
        "grpc_addr. Port 0 picks a free port; empty: none. If another process has the default address, "
        "the daemon warns and goes on without it.",
    )
    kafka_addr: str = text(
        "127.0.0.1:19095",
        "Address and port of the Kafka API, for the default cluster; the same rules as for grpc_addr, but no "
        "unix socket, and tls with sasl.users_file is enough for other machines. Port 0 picks a free port; "
        "empty: none. If another process has the default address, the daemon warns and goes on without it.",
    )
    peer_addr: str = text(
        "127.0.0.1:19094",
        "Address and port for the other nodes of embedded clusters, and for other pixies in front of "
        "the same Kafka clusters. Listened to only with cluster.join or peers, or once others have "
        "joined. Port 0 picks a free port; empty: the node is alone; one that has others does not start.",
    )
    peers: tuple[str, ...] = texts(
        (),
        "Peer addresses of all pixies in front of the same Kafka clusters, this one among them; the "
        "same on all of them, in any order. They pass acks and messages on to each other, so a client "
        "may use any of them for each call. Empty: each pixy acks only what it has offered.",
        effect=KAFKA_ONLY,
    )
    management_addr: str = text(
        "127.0.0.1:19093",
        "Address and port of the management listener: /metrics for Prometheus, health, diagnosis. "
        "Whoever reaches it may read all that, and the names of topics and consumer groups; nothing "
        "can be changed. Port 0 picks a free port; empty: none. An address that other machines reach "
        "needs management.tls with tls.client_ca_path, or insecure.",
    )
    data_dir: str = text(
        "./pixy-data",
        "Directory of the embedded clusters; each has a subdirectory of its name, for the user of the "
        "daemon alone.",
    )
    default_cluster: str = text("", "Cluster of requests that name none. Empty: the first one under proxies.")
    shutdown_timeout: float = seconds(30.0, "How long a shutdown may take before it is cut short.")
    client_share_percent: int = integer(
        50,
        "Largest part, in percent, that the clients of one address may take of "
        "grpc.max_connections, grpc.max_calls and the buffer of large requests, and of "
        "consumer.max_groups, consumer.max_subscriptions, consumer.max_partitions, "
        "consumer.max_waiting_acks, staging.max_bytes and sinks of each cluster, so that they cannot shut out all others. All "
        "unix sockets are one address, and so is an IPv6 network of 64 bits. 100: no such limit, for "
        "a server whose clients all come through one proxy.",
        minimum=1,
        maximum=100,
    )
    tls: TlsConfig = section(TlsConfig, TlsConfig, "TLS of the gRPC, HTTP and Kafka APIs, on TCP.")
    sasl: ServedSaslConfig = section(ServedSaslConfig, ServedSaslConfig, "Logins at the Kafka API.")
    advertised: AdvertisedConfig = section(
        AdvertisedConfig,
        AdvertisedConfig,
        "Addresses of this node as others reach it, where they differ from those that it listens on.",
    )
    cluster: ClusterConfig = section(
        ClusterConfig,
        ClusterConfig,
        "The nodes that form a cluster. Each embedded entry under proxies is a cluster of its own "
        "over the same nodes.",
        effect=EMBEDDED_ONLY,
    )
    logging: tuple[LoggingConfig, ...] = section(
        LoggingConfig,
        lambda: (LoggingConfig(),),
        "Logs on standard error: format and minimum severity.",
        form="list",
    )
    grpc: GrpcConfig = section(
        GrpcConfig,
        GrpcConfig,
        "Limits of the gRPC API. Those of connections, calls, buffers and times are for HTTP and Kafka "
        "as well.",
    )
    management: ManagementConfig = section(
        ManagementConfig, ManagementConfig, "The management listener and its metrics."
    )
    proxies: Mapping[str, ProxyConfig] = section(
        ProxyConfig,
        _one_default_proxy,
        "The clusters by name: letters, digits, dot, dash and underscore.",
        form="map",
    )
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings for the operator, logged by the daemon."""

    @property
    def effective_default_cluster(self) -> str:
        """The cluster of requests that name none."""
        return self.default_cluster or next(iter(self.proxies))
