"""Rules between options, and warnings for the operator.

Pure: takes a configuration whose values each fit the table, and the places where they were set.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from pixy.config.addresses import is_every_interface, is_loopback, is_socket_path, split_address
from pixy.config.build import nearest
from pixy.config.cluster_checks import find_contradictions, find_dangers
from pixy.config.options import Config
from pixy.config.tree import Place, Problem

GRPC_HEADROOM_BYTES = 65_536
"""Space of a request beside its message: names, and the framing of headers."""

_PORTS = {"grpc_addr": 19091, "tcp_addr": 19092, "kafka_addr": 19095}
"""Options of addresses of APIs, with their default ports."""
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def find_problems(config: Config, places: Mapping[str, Place], *, is_new: bool = True) -> list[Problem]:
    """All contradictions between options, each with the place where one of the options was set.

    Args:
        is_new: as for `find_contradictions`.
    """
    check = _Checks(config, places, is_new=is_new)
    for rule in (
        check.addresses,
        check.public_address,
        check.public_management,
        check.tls,
        check.clusters,
        check.nodes,
        check.sizes,
        check.kafka,
    ):
        rule()
    return check.problems


def find_warnings(config: Config) -> Iterator[str]:
    """Warnings about settings that work and are dangerous."""
    for name, address in _for_anybody(config):
        clear = "" if config.tls.certificate_path else ", and the network reads along: there is no TLS"
        if _has_users(config, name):
            yield (
                f"insecure is true: who can read the network at {name} {address} gets passwords and may read, write "
                "and delete every topic, because there is no TLS"
            )
            continue
        yield (
            f"insecure is true: whoever reaches {name} {address} may read, write and delete every topic{clear}"
        )
    if config.unix_addr and config.unix_access == "all":
        yield (
            f"unix_access is all: every user of this machine may read, write and delete every topic at {config.unix_addr}"
        )
    if _shows_anybody(config):
        clear = "" if config.management.tls else ", and the network reads along: it has no TLS"
        yield (
            f"insecure is true: whoever reaches management_addr {config.management_addr} may read the metrics, with the "
            f"names of topics and consumer groups, and ask for profiles{clear}"
        )
    yield from find_dangers(config)
    for name, proxy in config.proxies.items():
        if proxy.kind != "kafka":
            continue
        if proxy.kafka.tls and proxy.kafka.insecure:
            yield (
                f"proxies.{name}.kafka.insecure is true: the brokers' certificates are not verified, so whoever is between "
                "pixy and Kafka can read and change everything. Set kafka.ca_certificate_file instead"
            )
        sasl = proxy.net.sasl
        if sasl.enable and not proxy.kafka.tls and not sasl.mechanism.startswith("SCRAM"):
            yield (
                f"proxies.{name} authenticates at Kafka with {sasl.mechanism} and without TLS: anyone who can "
                "read the connection gets the credentials. Set kafka.tls"
            )


def _for_anybody(config: Config) -> Iterator[tuple[str, str]]:
    """Options and addresses that serve other machines, whoever they are. Malformed ones are left
    out.
    """
    if _asks_for_certificates(config):
        return
    for name in _PORTS:
        address = getattr(config, name)
        if _has_users(config, name) and config.tls.certificate_path:
            continue
        with suppress(ValueError):
            if address and not is_loopback(address):
                yield name, address


def _has_users(config: Config, name: str) -> bool:
    """True if clients log in at the address of an option."""
    return name == "kafka_addr" and bool(config.sasl.users_file)


def _shows_anybody(config: Config) -> bool:
    """True if the management listener serves other machines, whoever they are.

    Raises:
        ValueError: management_addr is no address.
    """
    is_public = bool(config.management_addr) and not is_loopback(config.management_addr)
    return is_public and not (config.management.tls and _asks_for_certificates(config))


def _asks_for_certificates(config: Config) -> bool:
    return bool(config.tls.certificate_path and config.tls.client_ca_path)


def _broker_address(address: str) -> None:
    host, port = split_address(address)
    if not host or not port:
        raise ValueError(f'is "{address}"; expected host:port of a broker, such as kafka-1:9092')


def _address_to_tell(address: str) -> None:
    try:
        is_to_tell = not is_every_interface(address)
    except ValueError:
        return  # reported already
    if not is_to_tell:
        raise ValueError(
            f"{address} stands for all addresses of this machine: set advertised.kafka to the one that clients are told"
        )


class _Checks:
    """The rules; each adds to `problems`."""

    def __init__(self, config: Config, places: Mapping[str, Place], *, is_new: bool) -> None:
        self.problems: list[Problem] = []
        self._config = config
        self._places = places
        self._is_new = is_new

    def addresses(self) -> None:
        config = self._config
        if not (config.grpc_addr or config.unix_addr or config.tcp_addr or config.kafka_addr):
            message = "grpc_addr, tcp_addr, kafka_addr and unix_addr must not all be empty"
            self._report(message, "grpc_addr", "tcp_addr", "kafka_addr")
        for name in (*_PORTS, "management_addr"):
            address = getattr(config, name)
            if address and (name == "kafka_addr" or not is_socket_path(address)):
                self._expect(name, address, split_address)
        if config.kafka_addr and not config.advertised.kafka:
            self._expect("kafka_addr", config.kafka_addr, _address_to_tell)

    def public_address(self) -> None:
        config = self._config
        for name, address in () if config.insecure else _for_anybody(config):
            here = f"Set an address of this machine alone, such as 127.0.0.1:{_PORTS[name]}"
            if _has_users(config, name):
                self._report(
                    f"{name} {address} can be reached from other machines, where the network could read passwords and "
                    f"messages. {here}; or set tls.certificate_path and tls.key_path; or set insecure: true",
                    name,
                )
                continue
            users = ", or users with sasl.users_file, tls.certificate_path and tls.key_path" * (
                name == "kafka_addr"
            )
            self._report(
                f"{name} {address} can be reached from other machines, where anybody could read, write and "
                f"delete every topic. {here}; or require client certificates with tls.certificate_path, tls.key_path and "
                f"tls.client_ca_path{users}; or set insecure: true",
                name,
            )

    def public_management(self) -> None:
        config = self._config
        try:
            is_refused = _shows_anybody(config) and not config.insecure
        except ValueError:
            return
        if is_refused:
            self._report(
                f"management_addr {config.management_addr} can be reached from other machines, where anybody could read the "
                "metrics and ask for profiles. Set an address of this machine alone, such as 127.0.0.1:19093; or require "
                "client certificates with management.tls, tls.certificate_path, tls.key_path and tls.client_ca_path; or set "
                "insecure: true",
                "management_addr",
            )

    def tls(self) -> None:
        tls = self._config.tls
        if self._config.management.tls and not tls.certificate_path:
            self._report("management.tls needs tls.certificate_path and tls.key_path", "management.tls")
        if bool(tls.certificate_path) != bool(tls.key_path):
            message = "tls.certificate_path and tls.key_path must be set together"
            self._report(message, "tls.certificate_path", "tls.key_path")
        if tls.client_ca_path and not tls.certificate_path:
            self._report(
                "tls.client_ca_path needs tls.certificate_path and tls.key_path", "tls.client_ca_path"
            )

    def clusters(self) -> None:
        config = self._config
        if not config.proxies:
            self._report("at least one proxy must be configured", "proxies")
            return
        for name in config.proxies:
            if not _CLUSTER_NAME.fullmatch(name) or name in {".", ".."}:
                message = f'"{name}" cannot be the name of a cluster: letters, digits, ".", "_" and "-", at most 100'
                self._report(message, f"proxies.{name}")
        if config.default_cluster and config.default_cluster not in config.proxies:
            hint = nearest(config.default_cluster, config.proxies)
            message = f'default_cluster is "{config.default_cluster}", which is not under proxies; {hint}'
            self._report(message, "default_cluster")

    def nodes(self) -> None:
        for message, options in find_contradictions(self._config, is_new=self._is_new):
            self._report(message, *options)

    def sizes(self) -> None:
        grpc = self._config.grpc
        limit = grpc.max_message_bytes
        if grpc.output_buffer_bytes < limit:
            self._report(
                f"grpc.output_buffer_bytes must be >= grpc.max_message_bytes = {limit}, is {grpc.output_buffer_bytes}",
                "grpc.output_buffer_bytes",
                "grpc.max_message_bytes",
            )
        if grpc.buffer_bytes < grpc.output_buffer_bytes:
            self._report(
                f"grpc.buffer_bytes must be >= grpc.output_buffer_bytes = {grpc.output_buffer_bytes}, is {grpc.buffer_bytes}",
                "grpc.buffer_bytes",
                "grpc.output_buffer_bytes",
            )
        for name, proxy in self._config.proxies.items():
            path, producer = f"proxies.{name}.producer", proxy.producer
            if limit < producer.max_message_bytes + GRPC_HEADROOM_BYTES:
                self._report(
                    f"grpc.max_message_bytes must be >= {path}.max_message_bytes + {GRPC_HEADROOM_BYTES} "
                    f"= {producer.max_message_bytes + GRPC_HEADROOM_BYTES}, is {limit}",
                    "grpc.max_message_bytes",
                    f"{path}.max_message_bytes",
                )
            if producer.buffer_bytes < producer.max_message_bytes:
                self._report(
                    f"{path}.buffer_bytes must be >= {path}.max_message_bytes = {producer.max_message_bytes}, "
                    f"is {producer.buffer_bytes}",
                    f"{path}.buffer_bytes",
                    f"{path}.max_message_bytes",
                )

    def kafka(self) -> None:
        for name, proxy in self._config.proxies.items():
            if proxy.kind != "kafka":
                continue
            path, kafka, sasl = f"proxies.{name}", proxy.kafka, proxy.net.sasl
            if not kafka.seed_peers:
                self._report(f"{path}.kafka.seed_peers must name a broker", f"{path}.kafka.seed_peers")
            for peer in kafka.seed_peers:
                self._expect(f"{path}.kafka.seed_peers", peer, _broker_address)
            if kafka.client_key_file and not kafka.client_certificate_file:
                self._report(
                    f"{path}.kafka.client_key_file needs {path}.kafka.client_certificate_file",
                    f"{path}.kafka.client_key_file",
                )
            if sasl.enable and sasl.mechanism == "OAUTHBEARER" and not sasl.token_path:
                self._report(
                    f"{path}.net.sasl.mechanism OAUTHBEARER needs {path}.net.sasl.token_path",
                    f"{path}.net.sasl.mechanism",
                )
            if sasl.enable and sasl.mechanism != "OAUTHBEARER" and not (sasl.user and sasl.password):
                self._report(
                    f"{path}.net.sasl.mechanism {sasl.mechanism} needs {path}.net.sasl.user and {path}.net.sasl.password",
                    f"{path}.net.sasl.mechanism",
                    f"{path}.net.sasl.enable",
                )

    def _expect(self, path: str, value: str, parse: Callable[[str], object]) -> None:
        try:
            parse(value)
        except ValueError as error:
            self._report(f"{path} {error}", path)

    def _report(self, message: str, *paths: str) -> None:
        place = next(self._places[path] for path in paths if path in self._places)
        self.problems.append(Problem(place, message))
