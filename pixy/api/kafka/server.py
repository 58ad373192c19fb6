"""Kafka's protocol of a daemon, for the default cluster."""

from collections.abc import Iterator

import structlog

from pixy.access import Logins, UsersFile
from pixy.api.kafka.brokers import Brokers
from pixy.api.kafka.configs import ConfigsApi
from pixy.api.kafka.fetch import FetchApi
from pixy.api.kafka.group_lists import GroupListsApi
from pixy.api.kafka.group_offsets import GroupOffsetsApi
from pixy.api.kafka.groups import GroupsApi
from pixy.api.kafka.list_offsets import ListOffsetsApi
from pixy.api.kafka.log_dirs import LogDirsApi
from pixy.api.kafka.metadata import MetadataApi
from pixy.api.kafka.produce import ProduceApi
from pixy.api.kafka.producer_ids import ProducerIdsApi
from pixy.api.kafka.sasl import SaslApi
from pixy.api.kafka.topic_ids import TopicIds
from pixy.api.kafka.topics import TopicsApi
from pixy.backend import ClassicGroups
from pixy.config import Config, GrpcConfig, read_users
from pixy.errors import StartError
from pixy.proxy import Proxy
from pixy.serving import Server
from pixy.wire import ApiTable, ServedApi, WireFactory, WireOptions

log = structlog.get_logger(__name__)

_FRAME_PART = 4
"""Part of `grpc.buffer_bytes` that the largest request may have."""


def wire_options(config: GrpcConfig, *, logs_in: bool = False) -> WireOptions:
    """Limits of connections by a configuration, which are those of gRPC."""
    return WireOptions(
        logs_in=logs_in,
        records_frame_bytes=max(config.buffer_bytes // _FRAME_PART, config.max_message_bytes),
        frame_bytes=config.max_message_bytes,
        held_bytes=config.output_buffer_bytes,
        first_s=config.handshake_timeout,
        frame_s=config.request_timeout,
        idle_s=config.idle_timeout,
    )


class KafkaServer:
    """Serves one cluster over Kafka's protocol.

    Args:
        config: address, limits and certificates.
        proxy: of the cluster.
        server: of all connections of the daemon.

    Attributes:
        table: the APIs.
    """

    def __init__(self, config: Config, proxy: Proxy, server: Server) -> None:
        self._config = config
        self._server = server
        self._proxy = proxy
        self._brokers = Brokers(proxy)
        users_file = config.sasl.users_file
        self._users = UsersFile(users_file, read_users) if users_file else None
        self.table = ApiTable([*self._apis(proxy)])
        self._factory = WireFactory(
            server.environment, self.table, wire_options(config.grpc, logs_in=bool(users_file))
        )

    def _apis(self, proxy: Proxy) -> Iterator[ServedApi]:
        """A row for each API but ApiVersions. Those of other parts, such as consumer groups, come
        here.
        """
        brokers, topic_ids = self._brokers, TopicIds(proxy)
        options = self._config.proxies[proxy.name]
        clock, tasks = self._server.environment.clock, self._server.environment.tasks
        produce, fetch = ProduceApi(proxy, brokers, tasks), FetchApi(proxy, topic_ids, clock)
        metadata = MetadataApi(proxy, brokers, topic_ids)
        # KAFKA-18659: librdkafka before 2.10 compresses only for brokers that name version 0.
        yield ServedApi(0, 3, 12, produce.produce, has_records=True, shown_from=0)
        yield ServedApi(1, 4, 16, fetch.fetch)
        yield ServedApi(2, 1, 8, ListOffsetsApi(proxy).list_offsets)
        yield ServedApi(3, 0, 13, metadata.metadata)
        topics = TopicsApi(proxy, brokers, topic_ids, options)
        yield ServedApi(19, 2, 7, topics.create_topics)
        yield ServedApi(20, 1, 6, topics.delete_topics)
        yield ServedApi(21, 0, 2, topics.delete_records)
        yield ServedApi(37, 0, 3, topics.create_partitions)
        configs = ConfigsApi(proxy, brokers, options)
        yield ServedApi(32, 1, 4, configs.describe_configs)
        yield ServedApi(44, 0, 1, configs.incremental_alter_configs)
        yield ServedApi(22, 0, 5, ProducerIdsApi(proxy).init_producer_id)
        yield ServedApi(60, 0, 2, metadata.describe_cluster)
        sasl = SaslApi(None if self._users is None else Logins(self._users))
        yield ServedApi(17, 0, 1, sasl.handshake, before_login=True)
        yield ServedApi(36, 0, 2, sasl.authenticate, before_login=True)
        if proxy.classic_groups is not None:
            yield from self._embedded_apis(proxy, proxy.classic_groups)

    def _embedded_apis(self, proxy: Proxy, groups: ClassicGroups) -> Iterator[ServedApi]:
        """A row for each API of consumer groups, and of directories. In front of Kafka there is
        none: its coordinators and brokers serve clients themselves.
        """
        members, offsets, lists = (
            GroupsApi(groups, self._brokers),
            GroupOffsetsApi(groups),
            GroupListsApi(groups),
        )
        yield ServedApi(8, 2, 9, offsets.commit)
        yield ServedApi(9, 1, 9, offsets.fetch)
        yield ServedApi(10, 0, 6, members.find_coordinator)
        yield ServedApi(11, 0, 9, members.join)
        yield ServedApi(12, 0, 4, members.heartbeat)
        yield ServedApi(13, 0, 5, members.leave)
        yield ServedApi(14, 0, 5, members.sync)
        yield ServedApi(15, 0, 6, lists.describe)
        yield ServedApi(16, 0, 5, lists.list_groups)
        yield ServedApi(42, 0, 2, lists.delete)
        yield ServedApi(47, 0, 0, offsets.delete)
        yield ServedApi(35, 1, 4, LogDirsApi(proxy).describe_log_dirs)

    async def maybe_reload(self) -> None:
        """Use users that have changed."""
        if self._users is not None:
            await self._users.present()

    async def start(self) -> dict[str, str]:
        """Listen.

        Returns:
            The address by the name of the listener, with the real port; nothing if there is none.

        Raises:
            StartError: the address cannot be used.
        """
        config = self._config
        address, tls = config.kafka_addr, config.tls
        if not address:
            return {}
        try:
            real = await self._server.listen(
                address, self._factory, tls if tls.certificate_path else None, "kafka_addr"
            )
        except StartError as error:
            if address != Config().kafka_addr:
                raise
            log.warning("there is no Kafka API: its default address is taken", reason=str(error))
            return {}
        self._brokers.own_address = config.advertised.kafka or real
        self._proxy.announce_broker(self._brokers.own_address)
        return {"kafka": real}
