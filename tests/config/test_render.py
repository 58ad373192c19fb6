import re
from dataclasses import replace
from pathlib import Path

import yaml

from pixy.config import Config, ProxyConfig, config_values, load_config, render_config
from pixy.config.options import Option, Section, leaves, members
from pixy.config.render import render_default_config

CONFIG_YAML = Path(__file__).parents[2] / "config.yaml"


def test_config_yaml_is_exactly_the_rendered_table() -> None:
    assert CONFIG_YAML.read_text() == render_default_config()


def test_config_yaml_loads_to_the_defaults_without_a_warning() -> None:
    config = load_config(CONFIG_YAML, {}, {})
    assert config == Config()
    assert config.warnings == ()


def test_every_option_of_the_table_is_in_config_yaml() -> None:
    active = yaml.safe_load(re.sub(r"(?m)^( *)#(?=\w+:)", r"\1", render_default_config()))
    written = {leaf.path for leaf in leaves(Config)} | {
        f"proxies.default.{leaf.path}" for leaf in leaves(ProxyConfig)
    }
    for path in written:
        node = active
        for name in path.split("."):
            node = node[name]
        assert not isinstance(node, dict)


def test_every_option_has_a_comment_that_is_a_sentence() -> None:
    def check(table: type[Config]) -> None:
        for member in members(table).values():
            assert member.doc[0].isupper() or member.doc.startswith("console")
            assert member.doc.endswith(".")
            assert isinstance(member, Option | Section)
            if isinstance(member, Section):
                check(member.table)  # type: ignore[arg-type]  # any table will do

    check(Config)


def test_no_line_is_longer_than_100_characters() -> None:
    assert max(map(len, render_default_config().splitlines())) <= 100


def test_durations_are_written_with_units_and_sizes_plain() -> None:
    text = render_default_config()
    assert "      ack_timeout: 5m\n" in text
    assert "      flush_frequency: 0s\n" in text
    assert "      file_bytes: 33554432\n" in text
    assert "      #rebalance_delay: 250ms\n" in text
    assert "\ntcp_addr: 127.0.0.1:19092\n" in text


def test_the_effective_configuration_loads_to_itself(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "unix_addr: 'a b'\nproxies:\n  x:\n    consumer: {ack_timeout: 90s}\n  '1':\n    producer: {compression: lz4}\n"
    )
    config = load_config(path, {}, {})
    path.write_text(render_config(config))
    again = load_config(path, {}, {})
    assert again == config
    assert list(again.proxies) == ["x", "1"]
    assert again.warnings == ()


def test_secrets_are_masked_and_options_without_effect_are_omitted() -> None:
    proxy = ProxyConfig()
    proxy = replace(proxy, net=replace(proxy.net, sasl=replace(proxy.net.sasl, password="hunter2")))
    kafka = config_values(replace(Config(), proxies={"a": replace(proxy, kind="kafka")}))["proxies"]["a"]
    assert kafka["net"]["sasl"]["password"] == "********"
    assert "storage" not in kafka
    embedded = config_values(replace(Config(), proxies={"a": proxy}))["proxies"]["a"]
    assert "net" not in embedded
    assert "required_acks" not in embedded["producer"]
    assert embedded["storage"]["segment_bytes"] == 268435456
