"""The answer to SIGHUP: what of a changed configuration is used without a start.

The log's options are. Certificates, keys and secrets of most files are read again when they change,
whoever asks; SIGHUP has that happen now. Everything else counts from the next start on, and the log
names it. A faulty configuration changes nothing.
"""

from collections.abc import Callable, Iterator

import structlog

from pixy.config import Config, changed_options, check_files
from pixy.errors import ConfigError

log = structlog.get_logger(__name__)


def maybe_read_again(read: Callable[[], Config]) -> Config | None:
    """The configuration as it is at present; None, and an error in the log, if it has faults."""
    try:
        present = read()
        check_files(present)
    except ConfigError as error:
        log.error("the configuration has faults, and nothing is reloaded", reason=str(error))
        return None
    return present


def say_used(running: Config, present: Config) -> None:
    """Log what is used without a start, and what waits for one.

    Args:
        running: the configuration of the start.
        present: the one of now, whose options of the log are used.
    """
    used = ", ".join(["logging", *_files(running)])
    log.info("reloaded what needs no start: options of the log, and these files", used=used)
    waiting = [option for option in changed_options(running, present) if option != "logging"]
    if waiting:
        log.warning("options have changed that count from the next start on", options=", ".join(waiting))
    if kafka := list(_files_of_a_start(running)):
        log.info("these files are read at a start alone", files=", ".join(kafka))


def _files(config: Config) -> Iterator[str]:
    """Options with files that are read again when they change."""
    cluster = config.cluster
    if config.tls.certificate_path:
        yield "tls"
    if config.sasl.users_file:
        yield "sasl.users_file"
    if cluster.tls.cert_file:
        yield "cluster.tls"
    if cluster.secret_file:
        yield "cluster.secret_file"
    if cluster.second_secret_file:
        yield "cluster.second_secret_file"
    for name, proxy in config.proxies.items():
        if proxy.kind == "kafka" and proxy.net.sasl.enable and proxy.net.sasl.token_path:
            yield f"proxies.{name}.net.sasl.token_path"


def _files_of_a_start(config: Config) -> Iterator[str]:
    for name, proxy in config.proxies.items():
        if proxy.kind == "kafka" and proxy.kafka.tls:
            for option in ("ca_certificate_file", "client_certificate_file", "client_key_file"):
                if getattr(proxy.kafka, option):
                    yield f"proxies.{name}.kafka.{option}"
