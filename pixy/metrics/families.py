"""Every metric: its name, type, unit, labels and help. The page `metrics.md` is made from it.

Names begin with `pixy_`; those of kafka_exporter, which dashboards know, and those that Prometheus'
client libraries have for a process are given besides. Units are in the names: seconds, bytes,
records. Labels have few values: clusters, nodes, methods, statuses, and the names of the topics and
consumer groups with most to count (`top`); never a client, a key or an address.
"""

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple


class Kind(Enum):
    """The type of a metric, as both formats call it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Family(NamedTuple):
    """One metric.

    Attributes:
        name: of its series, with `_total` for a counter.
        help: a sentence without a point at its end.
        unit: its base unit, as at the end of the name; empty for a number of things.
    """

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""


def _counter(name: str, help: str, *labels: str) -> Family:
    return Family(name, Kind.COUNTER, help, labels, _unit(name.removesuffix("_total")))


def _gauge(name: str, help: str, *labels: str) -> Family:
    return Family(name, Kind.GAUGE, help, labels, _unit(name))


def _histogram(name: str, help: str, *labels: str) -> Family:
    return Family(name, Kind.HISTOGRAM, help, labels, _unit(name))


def _unit(name: str) -> str:
    last = name.rpartition("_")[2]
    return last if last in ("seconds", "bytes", "records") else ""


_OF_TOPIC = ("cluster", "topic")
_OF_GROUP = ("cluster", "group", "topic")
_OF_NODE = ("cluster", "node")
_OF_PARTITION = ("cluster", "topic", "partition")
_OF_CONSUMER = ("cluster", "consumergroup", "topic", "partition")

GROUPS: Sequence[tuple[str, str, Sequence[Family]]] = (
    (
        "Requests",
        "All listeners for clients together. A call of gRPC ends with a status; a call whose client "
        "has gone has the status CANCELLED. Of calls that are answered together one is timed, and "
        "of a busy route of HTTP one request in sixteen.",
        (
            _counter(
                "pixy_rpc_requests_total",
                "Calls that have ended, by method and status of gRPC",
                "method",
                "code",
            ),
            _histogram(
                "pixy_rpc_duration_seconds",
                "Time from the arrival of a call to its answer, of calls with status OK of unary methods",
                "method",
            ),
            _counter(
                "pixy_http_requests_total",
                "Requests of HTTP by route and status; 499: the client has gone before the answer",
                "route",
                "method",
                "code",
            ),
            _histogram(
                "pixy_http_duration_seconds",
                "Time from a request of HTTP to its answer, of statuses below 400; up to the first piece of an answer in pieces",
                "route",
                "method",
            ),
            _counter(
                "pixy_kafka_requests_total",
                "Requests of Kafka's protocol by API and version",
                "api",
                "version",
            ),
            _gauge("pixy_rpc_open_calls", "Calls and requests that have begun and were not answered"),
            _gauge("pixy_connections", "Connections of clients that are open"),
            _counter("pixy_connections_accepted_total", "Connections of clients that were served"),
            _counter(
                "pixy_connections_refused_total",
                "Connections of clients beyond a limit, or without a protocol",
            ),
            _counter(
                "pixy_handshakes_failed_total",
                "Connections of clients that have ended in their TLS handshake",
            ),
            _counter("pixy_logins_failed_total", "Logins of Kafka clients with wrong credentials"),
            _counter(
                "pixy_requests_rejected_total",
                "Requests that reached no handler: refused, or against the protocol",
            ),
            _counter("pixy_received_bytes_total", "Bytes that clients have sent"),
            _counter("pixy_sent_bytes_total", "Bytes that were sent to clients"),
            _counter(
                "pixy_fair_waits_total",
                "Times that a connection had used up its share of the event loop, and waited",
            ),
            _counter("pixy_bugs_total", "Unexpected exceptions, each with a traceback in the log"),
        ),
    ),
    (
        "Producing",
        "Records of Produce and Append, counted when they are durable, and of stages, counted when they "
        "are published, at the node that took the call.",
        (
            _counter("pixy_produced_records_total", "Records that were written", *_OF_TOPIC),
            _counter(
                "pixy_produced_bytes_total",
                "Size of their keys, values and headers; of Append and stages that of the batches as they came",
                *_OF_TOPIC,
            ),
            _histogram("pixy_batch_bytes", "Size of the record batches made of single messages", "cluster"),
            _gauge("pixy_buffered_records", "Messages that are not durable or refused yet", "cluster"),
            _gauge("pixy_buffered_bytes", "Size of these messages", "cluster"),
            _gauge("pixy_waiting_producers", "Calls that wait for room in the buffer of messages", "cluster"),
            _counter("pixy_lost_records_total", "Messages without sync that could not be written", "cluster"),
        ),
    ),
    (
        "Consuming",
        "Counted at the node that owns the partition for the consumer group. For users of NATS: "
        "`num_pending` is the lag, `num_ack_pending` the unacked records, `num_redelivered` the "
        "redelivered ones.",
        (
            _counter(
                "pixy_offered_records_total", "Records that were offered to clients, again or not", *_OF_GROUP
            ),
            _counter(
                "pixy_redelivered_records_total",
                "Records that were offered again after the ack timeout",
                *_OF_GROUP,
            ),
            _counter(
                "pixy_acks_total",
                "Ends of offers: `ack` by a client, `expired` at the ack timeout, `dead` after the last retry",
                *_OF_GROUP,
                "outcome",
            ),
            _histogram(
                "pixy_ack_latency_seconds", "Time from the delivery of a record to its ack", "cluster"
            ),
            _gauge(
                "pixy_unacked_records",
                "Records that clients have and did not ack, or that come again",
                *_OF_GROUP,
            ),
            _gauge("pixy_waiting_consumers", "Requests that wait for a record (long polls)", *_OF_GROUP),
            _gauge(
                "pixy_group_lag_records",
                "Records from the committed offset of a consumer group to the end, also without a consumer",
                *_OF_GROUP,
            ),
        ),
    ),
    (
        "Disk",
        "Of embedded clusters.",
        (
            _histogram(
                "pixy_journal_sync_seconds", "Time to write and sync a flush of the journal", "cluster"
            ),
            _gauge("pixy_log_bytes", "Size of the segments of a topic's partitions on this node", *_OF_TOPIC),
            _gauge("pixy_unwritten_bytes", "Bytes that are in the journal and not in segments", "cluster"),
            _gauge("pixy_unapplied_bytes", "Bytes of entries that are not applied", "cluster"),
            _gauge("pixy_disk_bytes", "Size of the file system with the data of a node", *_OF_NODE),
            _gauge("pixy_disk_free_bytes", "Bytes that are free there", *_OF_NODE),
        ),
    ),
    (
        "Nodes and replicas",
        "What `pixy cluster status` says, the same at every node. A node that does not answer within "
        "two seconds is left out of it.",
        (
            _gauge("pixy_ready", "1 if the cluster is ready at this node", "cluster"),
            _gauge(
                "pixy_problems",
                "Sentences of `pixy cluster status` about what is not well; with Kafka about this daemon's files",
                "cluster",
            ),
            _gauge("pixy_node_info", "1, with what a node tells of itself", *_OF_NODE, "version", "rack"),
            _gauge(
                "pixy_cut_links",
                "Pairs of nodes without a connection, which reach each other through others",
                "cluster",
            ),
            _gauge("pixy_node_up", "1 if a node can be reached", *_OF_NODE),
            _gauge("pixy_node_silent_seconds", "Time since a node was heard of", *_OF_NODE),
            _gauge(
                "pixy_node_clock_offset_seconds", "Clock of a node minus the time of the majority", *_OF_NODE
            ),
            _gauge("pixy_node_starts", "Number of the newest start of a node", *_OF_NODE),
            _gauge("pixy_node_troubles", "Sentences of a node about what is wrong with itself", *_OF_NODE),
            _gauge("pixy_node_draining", "1 if a node gives its replicas to others", *_OF_NODE),
            _gauge("pixy_node_replicas", "Replicas that a node has, or is to have, by all moves", *_OF_NODE),
            _gauge(
                "pixy_node_kept_replicas",
                "Replicas on a drained node that no other node can take",
                *_OF_NODE,
            ),
            _gauge("pixy_raft_groups", "Raft groups: state groups and partitions", "cluster"),
            _gauge("pixy_raft_groups_led", "Raft groups that a node leads", *_OF_NODE),
            _gauge("pixy_raft_groups_without_leader", "Raft groups without a leader", "cluster"),
            _gauge("pixy_raft_term", "Highest term of the raft groups", "cluster"),
            _gauge("pixy_raft_learners", "Raft groups in which a node does not vote yet", *_OF_NODE),
            _gauge(
                "pixy_raft_commit_lag",
                "Entries that a node is not known to have, of the raft group in which it lacks most",
                *_OF_NODE,
            ),
            _gauge(
                "pixy_replicas_behind",
                "Replicas that are behind their leader, or wait for a copy, by node",
                *_OF_NODE,
            ),
            _gauge("pixy_replicas_damaged", "Replicas in which a node has found damage", *_OF_NODE),
            _gauge(
                "pixy_under_replicated_topics", "Topics with fewer replicas than they should have", "cluster"
            ),
            _gauge("pixy_moves", "Partitions that move to other nodes, by reason", "cluster", "reason"),
            _gauge("pixy_waiting_moves", "Those of them that something keeps from going on", "cluster"),
            _gauge("pixy_moves_copied_bytes", "Bytes that a node has copied for moves under way", *_OF_NODE),
            _gauge("pixy_moves_size_bytes", "Bytes that it is to copy for them", *_OF_NODE),
            _gauge(
                "pixy_moves_copied_bytes_per_second",
                "Bytes that it copies in a second, over the last seconds",
                *_OF_NODE,
            ),
            _counter(
                "pixy_raft_leader_changes_total",
                "Leaders that this node has heard of anew, of all raft groups",
                "cluster",
            ),
            _histogram(
                "pixy_raft_commit_seconds",
                "Time from the proposal of an entry at its leader until it is applied there, of one entry of a raft group at a time",
                "cluster",
            ),
        ),
    ),
    (
        "Between nodes",
        "What this node exchanges with others; the label `node` is the other one. Snapshots are those of "
        "state groups, and copies those of partitions, which a node fetches that lacks more than the "
        "journals of others reach back, or gets a replica.",
        (
            _counter("pixy_peer_sent_bytes_total", "Bytes of frames that were sent to a node", *_OF_NODE),
            _counter("pixy_peer_received_bytes_total", "Bytes that a node has sent", *_OF_NODE),
            _counter("pixy_peer_sent_frames_total", "Messages, calls and answers for a node", *_OF_NODE),
            _counter("pixy_peer_received_frames_total", "Messages, calls and answers of a node", *_OF_NODE),
            _counter(
                "pixy_peer_reconnects_total",
                "Connections to a node that were made in place of ones that had ended",
                *_OF_NODE,
            ),
            _counter("pixy_snapshots_sent_total", "Snapshots that other nodes have fetched here", "cluster"),
            _counter("pixy_snapshots_sent_bytes_total", "Bytes of snapshots sent to other nodes", "cluster"),
            _counter("pixy_snapshots_fetched_total", "Snapshots that this node has fetched", "cluster"),
            _counter("pixy_snapshots_fetched_bytes_total", "Bytes of snapshots that have come", "cluster"),
            _counter("pixy_snapshots_failed_total", "Fetches of snapshots that were given up", "cluster"),
            _counter(
                "pixy_copies_sent_total", "Copies of partitions that other nodes have fetched here", "cluster"
            ),
            _counter("pixy_copies_sent_bytes_total", "Bytes of copies sent to other nodes", "cluster"),
            _counter(
                "pixy_copies_fetched_total", "Copies of partitions that this node has fetched", "cluster"
            ),
            _counter("pixy_copies_fetched_bytes_total", "Bytes of copies that have come", "cluster"),
            _counter("pixy_copies_failed_total", "Attempts to fetch a copy that have failed", "cluster"),
        ),
    ),
    (
        "Process",
        "Names with `process_` are those of Prometheus' client libraries.",
        (
            _gauge("pixy_build_info", "1, with the release of pixy and of Python", "version", "python"),
            _histogram(
                "pixy_loop_lag_seconds", "Delay of a timer of the event loop that is set twice a second"
            ),
            _gauge(
                "pixy_memory_bytes",
                "Memory by use: `connections` incomplete requests and answers not read, `fetched` and `unpacked` record "
                "batches for consumers, `produce` messages, `append` and `stage` record batches of clients",
                "use",
            ),
            _gauge("pixy_tasks", "Tasks of the event loop"),
            _counter(
                "pixy_scrape_failures_total",
                "Parts of scrapes that could not be had, of a cluster",
                "cluster",
            ),
            _counter("process_cpu_seconds_total", "Processor time"),
            _gauge("process_resident_memory_bytes", "Resident memory"),
            _gauge("process_virtual_memory_bytes", "Virtual memory"),
            _gauge("process_open_fds", "Open file descriptors"),
            _gauge("process_max_fds", "Limit of open file descriptors"),
            _gauge("process_start_time_seconds", "Start of the process, in seconds since 1970"),
        ),
    ),
    (
        "Names of kafka_exporter",
        "For dashboards that exist. They have a label `cluster` besides, because a daemon may serve "
        "several. Partitions of topics that have no series of their own are left out.",
        (
            _gauge("kafka_brokers", "Nodes of the cluster", "cluster"),
            _gauge("kafka_topic_partitions", "Partitions of a topic", *_OF_TOPIC),
            _gauge("kafka_topic_partition_current_offset", "End of a partition", *_OF_PARTITION),
            _gauge("kafka_topic_partition_oldest_offset", "Oldest offset of a partition", *_OF_PARTITION),
            _gauge(
                "kafka_topic_partition_leader", "Node that leads a partition, -1 without one", *_OF_PARTITION
            ),
            _gauge("kafka_topic_partition_replicas", "Replicas of a partition", *_OF_PARTITION),
            _gauge("kafka_topic_partition_in_sync_replica", "Replicas that are not behind", *_OF_PARTITION),
            _gauge(
                "kafka_topic_partition_under_replicated_partition", "1 if replicas are behind", *_OF_PARTITION
            ),
            _gauge(
                "kafka_consumergroup_current_offset", "Committed offset of a consumer group", *_OF_CONSUMER
            ),
            _gauge("kafka_consumergroup_lag", "Records from that offset to the end", *_OF_CONSUMER),
        ),
    ),
)
"""Sections of the page: title, text, families."""

FAMILIES = {each.name: each for _, _, families in GROUPS for each in families}
