"""The management listener: metrics, health and diagnosis over HTTP.

    management_server     the listener
    routes                its routes
    cluster_samples       metrics of a cluster; `status_samples` those of its status
    server_samples        metrics of connections and calls; `peer_samples` of those between nodes
    process, loop_lag     metrics of the process
    tasks, cpu_profile,   diagnosis
    memory_types

It has a server of its own, with few connections: clients that use up `grpc.max_connections` do not
keep anybody from seeing so.
"""

from pixy.management.cluster_samples import ClusterParts
from pixy.management.management_server import ManagementServer, Observed

__all__ = ["ClusterParts", "ManagementServer", "Observed"]
