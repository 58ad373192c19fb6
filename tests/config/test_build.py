import time

import pytest

from pixy.config.build import Builder
from pixy.config.options import Config
from pixy.config.tree import Branch, from_yaml


def build(text: str) -> tuple[Config, list[str]]:
    root, problems = from_yaml(text, "config.yaml")
    assert problems == []
    assert isinstance(root, Branch)
    builder = Builder()
    config = builder.build(Config, root)
    return config, [str(problem) for problem in builder.problems]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "proxies:\n  default:\n    consumer:\n      ack_timeot: 5m\n",
            "config.yaml:4: proxies.default.consumer.ack_timeot is not an option; did you mean ack_timeout?",
        ),
        (
            "xyz: 1\n",
            "config.yaml:1: xyz is not an option; allowed: grpc_addr, insecure, unix_addr, unix_access, tcp_addr, ",
        ),
        (
            "producer: {flush_bytes: 1}\n",
            "config.yaml:1: producer is not an option; it belongs under proxies.<name>",
        ),
        (
            "ack_timeout: 5m\n",
            "config.yaml:1: ack_timeout is not an option; it belongs under proxies.<name>.consumer",
        ),
        (
            "proxies:\n  a:\n    data_dir: d\n",
            "config.yaml:3: proxies.a.data_dir is not an option; it belongs at the top level",
        ),
        (
            "seed_peers: [a:1]\n",
            "config.yaml:1: seed_peers is not an option; it belongs under proxies.<name>.kafka or proxies.<name>.zoo_keeper",
        ),
        (
            "proxies:\n  default:\n    producer:\n      compression: brotli\n",
            'config.yaml:4: proxies.default.producer.compression is "brotli"; allowed: none, gzip, snappy, lz4, zstd',
        ),
        (
            "proxies:\n  a:\n    consumer:\n      ack_timeout: 300\n",
            "config.yaml:4: proxies.a.consumer.ack_timeout is 300; a duration needs a unit: 300s, 300ms or 300m",
        ),
        (
            "proxies:\n  a:\n    consumer: {ack_timeout: 0s}\n",
            "config.yaml:3: proxies.a.consumer.ack_timeout must be > 0, is 0s",
        ),
        (
            "proxies:\n  a:\n    consumer: {max_retries: -2}\n",
            "config.yaml:3: proxies.a.consumer.max_retries must be >= -1, is -2",
        ),
        (
            "proxies:\n  a:\n    storage: {segment_bytes: 1073741825}\n",
            "config.yaml:3: proxies.a.storage.segment_bytes must be <= 1073741824, is 1073741825",
        ),
        (
            "proxies:\n  a:\n    journal: {file_bytes: 2GiB}\n",
            "config.yaml:3: proxies.a.journal.file_bytes must be <= 1073741824, is 2147483648",
        ),
        (
            "proxies:\n  a:\n    consumer: {session_timeout: 720h}\n",
            "config.yaml:3: proxies.a.consumer.session_timeout must be <= 576h, is 720h",
        ),
        (
            'proxies:\n  a:\n    auto_create_topics: "true"\n',
            'config.yaml:3: proxies.a.auto_create_topics is "true"; expected true or false',
        ),
        ("tls: yes\n", "config.yaml:1: tls is a section: indent its options below it"),
        ("proxies:\n  a: 1\n", "config.yaml:2: proxies.a is a section: indent its options below it"),
        ("grpc_addr: [a]\n", "config.yaml:1: grpc_addr is a list; expected a text"),
        ("data_dir: {a: b}\n", "config.yaml:1: data_dir is a section; expected a text"),
        ("logging: console\n", "config.yaml:1: logging must be a list"),
        ("logging:\n  - console\n", "config.yaml:2: logging[0] must have options: name, severity"),
        (
            "logging:\n  - name: consol\n",
            'config.yaml:2: logging[0].name is "consol"; allowed: console, json',
        ),
    ],
)
def test_a_mistake_is_reported_with_file_line_and_allowed_values(text: str, problem: str) -> None:
    _, problems = build(text)
    assert len(problems) == 1
    assert problems[0].startswith(problem)


def test_a_key_without_a_value_has_its_default() -> None:
    config, problems = build("tls:\ngrpc_addr:\nproxies:\n  a:\n  b:\n    producer:\n")
    assert problems == []
    assert config.grpc_addr == Config().grpc_addr
    assert list(config.proxies) == ["a", "b"]


def test_a_number_is_accepted_as_text_and_a_list_as_texts() -> None:
    config, problems = build("data_dir: 42\nproxies:\n  a:\n    kafka:\n      seed_peers: [x:1, y:2]\n")
    assert problems == []
    assert config.data_dir == "42"
    assert config.proxies["a"].kafka.seed_peers == ("x:1", "y:2")


@pytest.mark.slow
def test_the_walk_ends_after_many_problems() -> None:
    began = time.process_time()
    _, problems = build("".join(f"grpc_adr{number}: 1\n" for number in range(20_000)))
    assert len(problems) == 100
    assert time.process_time() - began < 10
