from dataclasses import FrozenInstanceError, replace
from types import MappingProxyType

import pytest

from pixy.config import Config, ProxyConfig
from pixy.config.options import ConsumerConfig, ProducerConfig, ValueType, leaves, members, values_of
from pixy.config.tree import Place, plain_scalar
from pixy.config.values import format_value, parse_value


def test_every_default_is_within_its_bounds() -> None:
    for table in (Config, ProxyConfig):
        for leaf in leaves(table):
            value: object = table()
            for name in leaf.path.split("."):
                value = getattr(value, name)
            written = format_value(leaf.option, value)
            text = ",".join(written) if isinstance(written, list) else str(written)
            assert parse_value(leaf.option, plain_scalar(text, Place("default"))) == value


@pytest.mark.parametrize("text", [str(2**63), "1" * 30])
def test_no_number_turns_a_limit_off_by_a_slip_of_the_pen(text: str) -> None:
    numbers = {ValueType.INTEGER, ValueType.BYTES}
    found = [leaf for table in (Config, ProxyConfig) for leaf in leaves(table) if leaf.option.type in numbers]
    assert len(found) > 40
    for leaf in found:
        with pytest.raises(ValueError, match=r"^must be <= \d+, is \d+$"):
            parse_value(leaf.option, plain_scalar(text, Place(leaf.path)))


def test_a_leaf_names_the_kinds_of_cluster_it_affects() -> None:
    effect = {leaf.path: leaf.effect for leaf in leaves(ProxyConfig)}
    assert effect["producer.compression"] == ("embedded", "kafka")
    assert effect["producer.required_acks"] == ("kafka",)
    assert effect["kafka.version"] == ()
    assert effect["journal.file_bytes"] == ("embedded",)
    assert effect["net.sasl.user"] == ("kafka",)
    assert effect["zoo_keeper.chroot"] == ()


def test_warnings_are_not_an_option() -> None:
    assert "warnings" not in members(Config)
    assert replace(Config(), warnings=("x",)) == Config()


def test_the_first_cluster_is_the_default_unless_another_is_chosen() -> None:
    config = Config(proxies=MappingProxyType({"b": ProxyConfig(), "a": ProxyConfig()}))
    assert config.effective_default_cluster == "b"
    assert replace(config, default_cluster="a").effective_default_cluster == "a"


def test_values_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Config().grpc_addr = "x"  # type: ignore[misc]  # that is the point
    assert values_of(ConsumerConfig())["ack_timeout"] == 300.0


def test_linger_ms_is_the_linger_of_a_kafka_cluster() -> None:
    """kafka-pixy's files have a `flush_frequency` that would delay every message."""
    producer = ProducerConfig(flush_frequency=0.5, linger_ms=7)
    assert ProxyConfig(kind="kafka", producer=producer).effective_producer.flush_frequency == 0.007
    assert ProxyConfig(producer=producer).effective_producer.flush_frequency == 0.5
