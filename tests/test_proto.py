"""kafkapixy.proto equals kafka-pixy's byte for byte, so that old clients' stubs can be loaded
beside pixy's in one process.
"""

import shutil
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc  # type: ignore[import-untyped]  # publishes no types

from pixy.proto import kafkapixy_pb2

OURS = Path(__file__).parent.parent / "kafkapixy.proto"
ORIGINAL = Path(__file__).parent / "proto" / "kafka_pixy.proto"


def compiled(source: Path, folder: Path) -> FileDescriptorProto:
    """Descriptor that protoc generates for `source` under the name kafkapixy.proto."""
    folder.mkdir()
    shutil.copy(source, folder / "kafkapixy.proto")
    output = folder / "descriptors"
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={output}", "kafkapixy.proto"]) == 0
    (file,) = FileDescriptorSet.FromString(output.read_bytes()).file
    return file


@pytest.fixture
def original(tmp_path: Path) -> FileDescriptorProto:
    return compiled(ORIGINAL, tmp_path / "original")


@pytest.mark.slow
def test_the_interface_equals_the_original_byte_for_byte(
    original: FileDescriptorProto, tmp_path: Path
) -> None:
    ours = compiled(OURS, tmp_path / "ours")
    assert str(ours) == str(original)
    assert ours.SerializeToString(deterministic=True) == original.SerializeToString(deterministic=True)


@pytest.mark.slow
def test_the_package_has_the_same_file() -> None:
    assert (files("pixy.proto") / OURS.name).read_bytes() == OURS.read_bytes()


def as_stub(file: FileDescriptorProto) -> bytes:
    """The descriptor as in the generated Python module: protoc omits derived JSON names there."""
    stub = FileDescriptorProto()
    stub.CopyFrom(file)
    for message in stub.message_type:
        for each in (message, *message.nested_type):
            for field in each.field:
                field.ClearField("json_name")
    return stub.SerializeToString(deterministic=True)


def test_the_stubs_are_generated_from_that_interface(original: FileDescriptorProto) -> None:
    assert kafkapixy_pb2.DESCRIPTOR.serialized_pb == as_stub(original)


def test_stubs_of_the_original_load_beside_pixys(original: FileDescriptorProto) -> None:
    pool = descriptor_pool.Default()
    assert pool.FindFileByName("kafkapixy.proto") is kafkapixy_pb2.DESCRIPTOR
    pool.AddSerializedFile(as_stub(original))  # raises if it differs
    assert pool.FindFileByName("kafkapixy.proto") is kafkapixy_pb2.DESCRIPTOR


def test_an_interface_that_differs_in_one_field_is_detected(
    original: FileDescriptorProto, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.proto"
    changed.write_text(OURS.read_text().replace("int64 ack_offset = 7;", "int64 ack_offset = 8;"))
    assert compiled(changed, tmp_path / "changed") != original
    with pytest.raises(TypeError):
        descriptor_pool.Default().AddSerializedFile(as_stub(compiled(changed, tmp_path / "again")))
