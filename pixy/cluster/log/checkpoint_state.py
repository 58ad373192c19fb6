"""State machines from the records of checkpoints, which may be anybody's.

A checkpoint has a checksum, which finds damage and no forgery; and a leader that another one
follows may be a node with a bug. So whatever a record holds ends here, as a checkpoint that is
damaged: a start is refused with the reason, `pixy storage check` reports it, a download is given up
before it replaces anything. Each machine refuses with ValueError what its commands never make.
"""

from collections.abc import Iterable, Iterator

from google.protobuf.message import DecodeError

from pixy.cluster.log.replica import RestoredState, StateMachine
from pixy.errors import CorruptData, PixyError
from pixy.multiraft import DedupTable, split_checkpoint, why_no_configuration
from pixy.proto.state_pb2 import GroupStateRecord


def restore_state(
    name: str, machine: StateMachine, records: Iterable[tuple[bytes, bytes]]
) -> GroupStateRecord:
    """Replace the state of a machine by the records of a checkpoint.

    Args:
        name: of the state group.

    Returns:
        The record of its raft group.

    Raises:
        CorruptData: no node writes such a checkpoint; the machine is not to be used.
    """
    try:
        state, others = split_checkpoint(records)
        machine.restore(_drained(others))
    except (DecodeError, ValueError, LookupError, ArithmeticError, AssertionError, PixyError) as error:
        what = f"{type(error).__name__} {error}" if isinstance(error, LookupError) else error
        raise CorruptData(f"the checkpoint of {name} has records that no node writes: {what}") from error
    reason = why_no_configuration(state.configuration) if state.configuration.voters else ""
    if reason:
        raise CorruptData(f"the checkpoint of {name} has a configuration that is none: {reason}")
    return state


def restored_state(name: str, kind: type[StateMachine], records: list[tuple[bytes, bytes]]) -> RestoredState:
    """The state in a checkpoint, whose records are used up. A large one takes seconds: those who
    serve meanwhile have another thread do it.

    Args:
        name: of the state group.
        kind: of its state machine.

    Raises:
        CorruptData: as `restore_state`.
    """
    machine = kind()
    state = restore_state(name, machine, _drained(records))
    return RestoredState(machine, DedupTable(state.rows), state.configuration)


def _drained(records: list[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The records in their order. Each leaves the list: many that go at once stop every thread."""
    records.reverse()
    while records:
        yield records.pop()
