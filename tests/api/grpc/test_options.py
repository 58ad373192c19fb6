"""pixy/api/grpc/options.py: every limit of the configuration reaches the server, with the same
defaults on both sides.
"""

from dataclasses import fields, replace
from typing import Any

import pytest

from pixy.api.grpc.options import grpc_options, server_options
from pixy.config import Config, GrpcConfig
from pixy.rpc import GrpcOptions
from pixy.serving import ServerOptions


def test_the_defaults_of_the_configuration_are_those_of_the_server() -> None:
    assert server_options(GrpcConfig(), Config().client_share_percent) == ServerOptions()
    assert grpc_options(GrpcConfig()) == GrpcOptions()


@pytest.mark.parametrize("name", [option.name for option in fields(GrpcConfig)])
def test_every_option_changes_a_limit(name: str) -> None:
    changed: dict[str, Any] = {name: getattr(GrpcConfig(), name) + 70_000}
    assert limits(replace(GrpcConfig(), **changed)) != limits(GrpcConfig())


def limits(config: GrpcConfig) -> tuple[ServerOptions, GrpcOptions]:
    return server_options(config, 50), grpc_options(config)
