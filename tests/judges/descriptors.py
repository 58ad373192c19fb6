"""Services of the folder `protos`, compiled on demand; message classes are created from the
descriptors.
"""

import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc  # type: ignore[import-untyped]  # it publishes no types

_PROTOS = Path(__file__).parent / "protos"


def _compile() -> DescriptorPool:
    pool = DescriptorPool()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "descriptors"
        includes = [f"-I{_PROTOS}", f"-I{files('grpc_tools') / '_proto'}"]
        names = [path.name for path in sorted(_PROTOS.glob("*.proto"))]
        arguments = ["protoc", *includes, "--include_imports", f"--descriptor_set_out={output}", *names]
        assert protoc.main(arguments) == 0, f"{names} cannot be compiled"
        for file in FileDescriptorSet.FromString(output.read_bytes()).file:
            pool.Add(file)
    return pool


_POOL = _compile()

TEST: ServiceDescriptor = _POOL.FindServiceByName("grpc.testing.TestService")
ORCA: ServiceDescriptor = _POOL.FindServiceByName("xds.service.orca.v3.OpenRcaService")


def message_class(name: str) -> Any:
    """The message class with this full name."""
    return GetMessageClass(_POOL.FindMessageTypeByName(name))
