"""Configuration of a daemon: one table of options, read from a YAML file, the environment and
flags.

Of pixy it imports only the errors, the escaping of texts, and what a file of users has.
"""

from pixy.config.addresses import is_every_interface, is_socket_path, split_address, why_not_dialled
from pixy.config.files import check_files, find_unverified
from pixy.config.identity import effective_client_id
from pixy.config.kafka_pixy import FLAGS as KAFKA_PIXY_FLAGS
from pixy.config.load import load_config
from pixy.config.options import (
    Config,
    ConsumerConfig,
    GrpcConfig,
    JournalConfig,
    KafkaConfig,
    LimitsConfig,
    LoggingConfig,
    ManagementConfig,
    ProducerConfig,
    ProxyConfig,
    ServedSaslConfig,
    StagingConfig,
    StorageConfig,
    TlsConfig,
)
from pixy.config.render import changed_options, config_values, render_config
from pixy.config.secret_file import check_regular, is_there, read_secret, read_users
from pixy.config.values import parse_bytes, parse_duration

__all__ = [
    "KAFKA_PIXY_FLAGS",
    "Config",
    "ConsumerConfig",
    "GrpcConfig",
    "JournalConfig",
    "KafkaConfig",
    "LimitsConfig",
    "LoggingConfig",
    "ManagementConfig",
    "ProducerConfig",
    "ProxyConfig",
    "ServedSaslConfig",
    "StagingConfig",
    "StorageConfig",
    "TlsConfig",
    "changed_options",
    "check_files",
    "check_regular",
    "config_values",
    "effective_client_id",
    "find_unverified",
    "is_every_interface",
    "is_socket_path",
    "is_there",
    "load_config",
    "parse_bytes",
    "parse_duration",
    "read_secret",
    "read_users",
    "render_config",
    "split_address",
    "why_not_dialled",
]
