"""pixy/rpc/joined.py: answers in parts are those that protobuf makes as a whole, within a bound."""

import asyncio
from typing import Any, cast

import pytest

from pixy.proto import kafkapixy_pb2 as pb
from pixy.rpc.call import UnaryCall
from pixy.rpc.joined import AnswerParts, JoinedMessage, join_in_steps
from pixy.rpc.status import GrpcError, Status


class Call:
    """A call of a small connection."""

    answer_bytes_max = 100


CALL = cast(UnaryCall, Call())


def parts(count: int) -> Any:
    return (pb.GetOffsetsRs(offsets=[pb.PartitionOffset(partition=number)]) for number in range(count))


async def test_parts_are_the_encoding_of_the_whole() -> None:
    whole = pb.GetOffsetsRs(offsets=[pb.PartitionOffset(partition=number) for number in range(20)])
    joined = await join_in_steps(CALL, parts(20))
    assert joined.SerializeToString() == whole.SerializeToString()
    assert (await join_in_steps(CALL, ())).SerializeToString() == b""


async def test_an_answer_larger_than_its_connection_takes_is_refused_before_it_is_made() -> None:
    made = 0

    def counted() -> Any:
        nonlocal made
        for part in parts(1_000_000):
            made += 1
            yield part

    with pytest.raises(GrpcError) as refused:
        await join_in_steps(CALL, counted())
    assert refused.value.status == Status.RESOURCE_EXHAUSTED
    assert refused.value.message == "the answer has more than grpc.output_buffer_bytes, 100 bytes"
    assert refused.value.limit == "grpc.output_buffer_bytes"
    assert made < 100


async def test_others_run_between_the_steps() -> None:
    class Large(Call):
        answer_bytes_max = 1 << 30

    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await join_in_steps(cast(UnaryCall, Large()), parts(20_000))
    counting.cancel()
    assert turns >= 20


def test_small_parts_are_gathered_in_pieces_and_none_is_copied_with_all_others() -> None:
    message = JoinedMessage()
    for _ in range(3000):
        message.append(bytes(100))
    pieces = message.pieces()
    assert len(pieces) == 5
    assert all(len(piece) < 70_000 for piece in pieces)
    assert b"".join(pieces) == message.SerializeToString() == bytes(300_000)


def test_the_largest_answer_is_made() -> None:
    answer = AnswerParts(CALL)
    answer.add(bytes(60))
    answer.add(bytes(40))
    with pytest.raises(GrpcError):
        answer.add(b"x")
    assert answer.message.SerializeToString() == bytes(100)
