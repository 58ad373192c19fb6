"""kafkapixy.proto is kafka-pixy's and a few fields more, and its stubs have a pool of their own, so
that old clients' stubs can be loaded beside pixy's in one process.
"""

import shutil
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
from google.protobuf import descriptor_pool, message_factory
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


ADDED = {("ProdRq", "value_undefined"), ("ConsRs", "value_undefined")}
"""Fields that kafka-pixy does not have."""


def without_added(file: FileDescriptorProto) -> FileDescriptorProto:
    """A copy without the added fields, which must be there."""
    original = FileDescriptorProto()
    original.CopyFrom(file)
    found = set()
    for message in original.message_type:
        for at, field in reversed(list(enumerate(message.field))):
            if (message.name, field.name) in ADDED:
                found.add((message.name, field.name))
                del message.field[at]
    assert found == ADDED
    return original


@pytest.mark.slow
def test_the_interface_equals_the_original_but_for_the_added_fields(
    original: FileDescriptorProto, tmp_path: Path
) -> None:
    ours = without_added(compiled(OURS, tmp_path / "ours"))
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
    stub = FileDescriptorProto.FromString(kafkapixy_pb2.DESCRIPTOR.serialized_pb)
    assert without_added(stub).SerializeToString(deterministic=True) == as_stub(original)


def test_stubs_of_the_original_load_beside_pixys(original: FileDescriptorProto) -> None:
    file = descriptor_pool.Default().AddSerializedFile(as_stub(original))
    request = message_factory.GetMessageClass(file.message_types_by_name["ProdRq"])(
        topic="t", key_undefined=True, message=b"m"
    )
    ours = kafkapixy_pb2.ProdRq(topic="t", key_undefined=True, message=b"m")
    assert request.SerializeToString() == ours.SerializeToString()
    assert type(request) is not type(ours)


def test_an_interface_that_differs_in_one_field_is_detected(
    original: FileDescriptorProto, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.proto"
    changed.write_text(OURS.read_text().replace("int64 ack_offset = 7;", "int64 ack_offset = 8;"))
    assert without_added(compiled(changed, tmp_path / "changed")) != original


@pytest.mark.parametrize("name", ["pixy_topics", "pixy_log", "pixy_cluster"])
def test_go_stubs_have_a_package(name: str) -> None:
    """protoc-gen-go refuses a file without one."""
    options = import_module(f"pixy.proto.{name}_pb2").DESCRIPTOR.GetOptions()
    subject = name.removeprefix("pixy_")
    assert options.go_package == f"pixy/{subject}/v1;{subject}v1"
