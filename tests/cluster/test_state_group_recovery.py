"""State groups at a start."""

from pathlib import Path
from typing import Any

from pixy.cluster.node_log import LogHooks, LogPeers, NodeLog
from pixy.cluster.node_options import NodeOptions
from pixy.cluster.raft_group import RaftGroup
from pixy.cluster.raft_storage import RaftStorage
from pixy.cluster.recovery import recover_node
from pixy.cluster.replica import StateReplica
from pixy.cluster.state_group_recovery import recover_state_group
from pixy.config import JournalConfig, StorageConfig
from pixy.proto.state_pb2 import HardState
from pixy.raft import ConfState
from pixy.storage import CheckpointId, CheckpointStore
from tests.cluster.test_checkpoints import Value
from tests.fakes.clock import FakeClock
from tests.fakes.disk import Call, RecordingDisk
from tests.fakes.waiting import settle
from tests.fakes.worker import InlineWorker


def ignore(*_: Any) -> None:
    pass


async def test_a_fetched_checkpoint_is_durable_before_the_start_records_the_log_reset(tmp_path: Path) -> None:
    """The process may have been killed between its rename and the sync."""
    disk = RecordingDisk()
    recovered = recover_node(disk, tmp_path, bytes)
    store = CheckpointStore(disk, tmp_path / "state" / "state")
    made = StateReplica(RaftGroup(1, RaftStorage(ConfState((1, 2, 3)))), "state", Value(), store)
    store.write(CheckpointId(2, 10), made.checkpoint_records(), 1)
    disk.calls.clear()
    options = NodeOptions(tmp_path, JournalConfig(), StorageConfig(), bytes, InlineWorker)
    hooks = LogHooks(ignore, ignore, ignore, ignore, ignore)
    log = NodeLog(disk, FakeClock(), options, recovered, InlineWorker(), hooks, LogPeers(ignore, ignore))
    replica = await recover_state_group(log, recovered, 1, "state", Value(), HardState(), ignore)
    await settle()
    assert replica.group.reset == (2, 10)
    written = [at for at, call in enumerate(disk.calls) if call.what == "write" and call.at]
    assert disk.calls.index(Call("sync_directory", "state")) < max(written)
    recovered.lock.close()
    log.abandon()
