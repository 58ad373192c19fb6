"""Compatibility with kafka-pixy's configuration files and flags.

kafka-pixy's option names are pixy's own, so its files are read like any other, except that

- an entry under `proxies` with a section `kafka` and no `kind` means a Kafka cluster;
- an entry of a file with `zoo_keeper` or `net`, and neither `kafka` nor `kind`, is refused: to
  kafka-pixy it is a cluster at the default brokers, to pixy it would be an empty log;
- `zoo_keeper` is ignored with one warning, options without effect are named in warnings, and none
  is dropped silently;
- `logging` may name sinks that pixy lacks, and may spell severities in more ways.
"""

from collections.abc import Mapping

from pixy.config.options import Config, ProxyConfig, leaves
from pixy.config.tree import Branch, BranchEntry, Items, Node, Place, Problem, Scalar

FLAGS: Mapping[str, str] = {
    "kafkaPeers": "proxy.kafka.seed_peers",
    "tls": "proxy.kafka.tls",
    "caCertFile": "proxy.kafka.ca_certificate_file",
    "clientCertFile": "proxy.kafka.client_certificate_file",
    "clientCertKeyFile": "proxy.kafka.client_key_file",
    "insecureTLS": "proxy.kafka.insecure",
    "zookeeperPeers": "proxy.zoo_keeper.seed_peers",
}
"""Option of the default cluster that each of kafka-pixy's cluster flags sets."""

_UNSUPPORTED_SINKS = ("syslog", "udplog", "kafkahook", "kafka")
_SEVERITIES = {
    "trace": "debug",
    "warn": "warning",
    "err": "error",
    "fatal": "error",
    "panic": "error",
    "critical": "error",
}


_ONLY_WITH_KAFKA = ("zoo_keeper", "net")


def adapt(root: Branch, problems: list[Problem]) -> list[str]:
    """Adapts a tree so that it means in pixy what it means in kafka-pixy. Ambiguous entries are
    added to `problems`.

    Returns:
        warnings about ignored settings.
    """
    proxies = root.entries.get("proxies")
    if proxies is not None and isinstance(proxies.node, Branch):
        for name, entry in proxies.node.entries.items():
            if isinstance(entry.node, Branch):
                _infer_kind(name, entry.node, problems)
    logging = root.entries.get("logging")
    if logging is None or not isinstance(logging.node, Items):
        return []
    kept, left_out = _adapt_logging(logging.node)
    root.entries["logging"] = BranchEntry(logging.place, kept)
    return left_out


def _infer_kind(name: str, proxy: Branch, problems: list[Problem]) -> None:
    kind = proxy.entries.get("kind")
    if kind is not None and not (isinstance(kind.node, Scalar) and kind.node.type == "null"):
        return
    if "kafka" in proxy.entries:
        place = proxy.entries["kafka"].place
        proxy.entries["kind"] = BranchEntry(place, Scalar("kafka", "text", place))
        return
    for section in _ONLY_WITH_KAFKA:
        if section in proxy.entries and proxy.entries[section].place.line:
            problems.append(
                Problem(
                    proxy.entries[section].place,
                    f"proxies.{name} has {section} and names no brokers: is it a Kafka cluster? Then set kafka.seed_peers "
                    "(kafka-pixy's default is localhost:9092); for pixy's own log, which would be empty, set kind: embedded",
                )
            )
            return


def _adapt_logging(logging: Items) -> tuple[Items, list[str]]:
    kept: list[Node] = []
    warnings: list[str] = []
    for item in logging.items:
        if not isinstance(item, Branch):
            kept.append(item)
            continue
        name = item.entries.get("name")
        if name is not None and isinstance(name.node, Scalar) and name.node.text in _UNSUPPORTED_SINKS:
            warnings.append(f"{name.place}: logging to {name.node.text} is not available and is ignored")
            continue
        severity = item.entries.get("severity")
        if severity is not None and isinstance(severity.node, Scalar):
            word = severity.node.text.lower()
            scalar = Scalar(_SEVERITIES.get(word, word), "text", severity.node.place)
            item.entries["severity"] = BranchEntry(severity.place, scalar)
        kept.append(item)
    return Items(tuple(kept), logging.place), warnings


def warnings(config: Config, places: Mapping[str, Place]) -> list[str]:
    """Warnings about options set without effect, one per kind of option and cluster."""
    found = []
    ignored = [f"proxies.{name}.zoo_keeper" for name in config.proxies]
    ignored = [path for path in ignored if path in places]
    if ignored:
        found.append(f"{places[ignored[0]]}: zoo_keeper is ignored: pixy needs no ZooKeeper")
    for name, proxy in config.proxies.items():
        without = _without_effect(name, proxy, places)
        if without:
            verb = "has" if len(without) == 1 else "have"
            found.append(f"proxies.{name} is kind: {proxy.kind}, where {', '.join(without)} {verb} no effect")
        if proxy.kind == "kafka" and proxy.producer.required_acks == "no_response":
            found.append(
                f"proxies.{name}.producer.required_acks: no_response is treated as wait_for_all: pixy answers with the "
                "offset of a message. Produce with async_mode does not wait"
            )
    return found


def _without_effect(name: str, proxy: ProxyConfig, places: Mapping[str, Place]) -> list[str]:
    return [
        leaf.path
        for leaf in leaves(ProxyConfig)
        if proxy.kind not in leaf.effect
        and not leaf.path.startswith("zoo_keeper.")
        and f"proxies.{name}.{leaf.path}" in places
    ]
