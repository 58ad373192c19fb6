"""State machines from the records of checkpoints, which may be anybody's.

A checkpoint has a checksum, which finds damage and no forgery; and a leader that another one
follows may be a node with a bug. So whatever a record holds ends here, as a checkpoint that is
damaged: a start is refused with the reason, `pixy storage check` reports it, a download is given up
before it replaces anything. Each machine refuses with ValueError what its commands never make.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from pixy.cluster.group_states import split_checkpoint
from pixy.cluster.impossible_states import why_no_configuration
from pixy.cluster.replica import StateMachine
from pixy.errors import CorruptData, PixyError
from pixy.proto.state_pb2 import GroupStateRecord

__all__ = ["check_state", "restore_state"]


def restore_state(
    name: str, machine: StateMachine, records: Sequence[tuple[bytes, bytes]]
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
        machine.restore(others)
    except (DecodeError, ValueError, LookupError, ArithmeticError, AssertionError, PixyError) as error:
        what = f"{type(error).__name__} {error}" if isinstance(error, LookupError) else error
        raise CorruptData(f"the checkpoint of {name} has records that no node writes: {what}") from error
    reason = why_no_configuration(state.configuration) if state.configuration.voters else ""
    if reason:
        raise CorruptData(f"the checkpoint of {name} has a configuration that is none: {reason}")
    return state


def check_state(name: str, machine: StateMachine, records: Sequence[tuple[bytes, bytes]]) -> None:
    """Check the records of a checkpoint before they replace the state of a machine, which stays as
    it is. Takes the time and memory of a restore.

    Raises:
        CorruptData: as `restore_state`.
    """
    restore_state(name, type(machine)(), records)
