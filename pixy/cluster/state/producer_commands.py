"""Commands about idempotent producers. Pure.

A leader that judges a batch of a producer to be no new one appends its answer in the place of the
batch: the proposal gets its result from a committed entry as any other, whichever node has proposed
it and whoever leads next. A repetition is answered behind its original, which is committed then.
"""

from collections.abc import Iterable

from pixy.errors import PixyError
from pixy.multiraft import error_text, stored_error
from pixy.proto.state_pb2 import AnsweredBatch, ExpireProducers, PartitionCommand

BLOCK_IDS = 1000
"""Producer ids that a node takes at a time."""
PRODUCER_IDS_SKIPPED = 2**31
"""Ids that are never given after a loss of state, because some of them may have been."""
EXPIRED_MAX = 1000
"""Producers that one command forgets."""


def answered_batch(answer: int | PixyError) -> bytes:
    """The command that answers a batch: with the offset of its original, or with an error."""
    command = AnsweredBatch(offset=answer) if isinstance(answer, int) else AnsweredBatch()
    if isinstance(answer, PixyError):
        command.error = error_text(answer)
    return PartitionCommand(answered_batch=command).SerializeToString()


def answer_of(command: AnsweredBatch) -> int | PixyError:
    """The answer in a command of `answered_batch`."""
    return stored_error(command.error) if command.error else command.offset


def expire_producers(producers: Iterable[tuple[int, int]]) -> bytes:
    """The command that forgets producers, each with the offset of its newest batch."""
    ids, offsets = zip(*producers, strict=True)
    command = ExpireProducers(producer_ids=ids, offsets=offsets)
    return PartitionCommand(expire_producers=command).SerializeToString()
