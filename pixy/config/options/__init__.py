"""The table of options: name, type, default, bounds, comment, and the kinds of cluster they affect.

Each class is a section of the file; each field is an option or a subsection. The rest of this
package works on the fields' metadata alone. Parsing, bounds, `config.yaml`, the names of the
environment variables and `pixy config print` all follow from this table, so an option is added here
and nowhere else.

Durations are seconds as float, sizes are bytes as int. All values are immutable.
"""

from pixy.config.options.daemon import (
    AdvertisedConfig,
    ClusterConfig,
    Config,
    GrpcConfig,
    LoggingConfig,
    ManagementConfig,
    PeerTlsConfig,
    ServedSaslConfig,
    TlsConfig,
)
from pixy.config.options.kafka import KafkaConfig, NetConfig, SaslConfig, ZooKeeperConfig
from pixy.config.options.messages import ConsumerConfig, ProducerConfig
from pixy.config.options.proxy import ProxyConfig
from pixy.config.options.storage import JournalConfig, LimitsConfig, StagingConfig, StorageConfig
from pixy.config.options.table import Option, Section, ValueType, leaves, members, values_of

__all__ = [
    "AdvertisedConfig",
    "ClusterConfig",
    "Config",
    "ConsumerConfig",
    "GrpcConfig",
    "JournalConfig",
    "KafkaConfig",
    "LimitsConfig",
    "LoggingConfig",
    "ManagementConfig",
    "NetConfig",
    "Option",
    "PeerTlsConfig",
    "ProducerConfig",
    "ProxyConfig",
    "SaslConfig",
    "Section",
    "ServedSaslConfig",
    "StagingConfig",
    "StorageConfig",
    "TlsConfig",
    "ValueType",
    "ZooKeeperConfig",
    "leaves",
    "members",
    "values_of",
]
