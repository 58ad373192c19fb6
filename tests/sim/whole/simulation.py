"""Whole nodes under faults: first they must be safe, then, healed, they must make progress.

Clients call all nodes while faults happen. Then everything is repaired, or a majority while the
rest stays as it is: every call is answered, and all nodes are equal, within `PATIENCE_S`. At last
all nodes are started again, and must have the same. The histories of all calls are judged in the
end.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

from structlog.testing import capture_logs

from pixy.cluster.peering import move_controller
from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.faults import draw_faults
from tests.sim.kit.lives import LivesLoop
from tests.sim.kit.rare import counting
from tests.sim.kit.rest_audit import RestAudit
from tests.sim.kit.run import Run
from tests.sim.outcome import Outcome
from tests.sim.whole.calls import Call
from tests.sim.whole.cluster import Cluster
from tests.sim.whole.operator import Operator
from tests.sim.whole.swarm import Swarm
from tests.sim.whole.trouble import Trouble
from tests.sim.whole.verdict import Verdict

PATIENCE_S = 120.0
"""Virtual time within which a healed cluster answers everything and all nodes are equal."""
_STEP_S = 0.2
_CROWDED_S = 20.0
"""Time after which clients wait for nodes that are not ready: the network may carry less than they
send, and what the start of a node needs waits behind it.
"""
_COMMITTED_S = 2.0
"""By then everything acked is committed."""
_STEPS_OF_A_NUDGE = 25
_LONGEST_CHECK_S = 1.0
_OLD_S = 12 * 86_400.0
"""Everything expires earlier."""
_MOVES_AFTER_S = 2.0
"""Time after which a new leader of metadata moves partitions."""
_AGE_STEP_S = 30.0
"""Too little for a clock to be off: a beat that is on its way meanwhile has an earlier time."""


class Simulation(Run[Swarm]):
    """One run."""

    _cluster: Cluster
    _operator: Operator
    _trouble: Trouble
    _verdict: Verdict
    _rest_audit: RestAudit

    def run(self) -> Outcome:
        """See `Run`."""
        self._rest_audit = RestAudit()
        loop = LivesLoop()
        asyncio.set_event_loop(loop)
        task: asyncio.Task[None] = loop.create_task(self._run())
        try:
            cluster = self._cluster = Cluster(self.seed, loop, prints=self._prints, focus=self._focus)
            with (
                capture_logs() as logs,
                cluster.watches.spying(),
                self._rest_audit.watching(),
                counting(cluster.scene.counts),
                _moves(cluster.swarm),
            ):
                loop.run_until_complete(task)
        except Exception as error:
            raise ClusterFailure(f"{type(error).__name__}: {error}") from error
        finally:
            with capture_logs():
                close_loop(loop)
        scene = cluster.scene
        told = Counter(f"log: {line['event']}" for line in logs)
        return Outcome(self.seed, scene.counts + told, scene.trace_hash)

    async def _run(self) -> None:
        cluster = self._cluster
        swarm, scene = cluster.swarm, cluster.scene
        self._operator = Operator(cluster)
        self._trouble = Trouble(cluster, self._operator)
        self._verdict = Verdict(cluster)
        self._rest_audit.begin(scene, cluster.running_groups)
        cluster.start()
        rng = scene.random("faults")
        if swarm.formation.anew:
            await self._make_anew()
        for number in range(swarm.formation.joins):
            scene.loop.outside(rng.uniform(0.0, 1.0 + 2.0 * number), self._operator.add)
        cluster.clients.start()
        cluster.group_clients.start()
        cluster.sinks.start()
        cluster.producers.start()
        cluster.shown_offsets.start()
        self._keeper()
        if swarm.faults_from_s:
            await self._ready()
        faults = draw_faults(rng, swarm.faults, swarm.faults_count, swarm.faults_from_s, swarm.duration_s)
        self.faults = [
            fault._replace(at=scene.now + fault.at) for fault in faults if fault.number not in self._skipped
        ]
        for fault in self.faults:
            scene.loop.outside(fault.at - scene.now, self._trouble.happen, fault)
        await asyncio.sleep(swarm.duration_s)
        self._heal()
        await self._settle("after healing")
        if rng.random() < 0.5:
            await asyncio.sleep(_COMMITTED_S)
        for machine in cluster.ordinary():
            if not machine.broken:
                machine.end(power=True)
        await asyncio.sleep(_STEP_S)
        await self._settle("after a last start of all")
        self._verdict.judge()
        cluster.watches.turn()
        if swarm.retention_check_s <= _LONGEST_CHECK_S:
            await self._grow_old()

    async def _grow_old(self) -> None:
        """Days pass, all clocks are set right, and everything that is too old must go."""
        for machine in self._cluster.ordinary():
            machine.clock.advance(_OLD_S)
            machine.clock.set_wall(0)
        kept = ""
        for _ in range(round(PATIENCE_S / _STEP_S)):
            await asyncio.sleep(_STEP_S)
            kept = next(self._verdict.too_old(), "")
            if not kept:
                self._cluster.scene.counts["removed because of its age"] += 1
                return
            # A node that had a wrong clock believes the right ones after an hour.
            for machine in self._cluster.ordinary():
                machine.clock.advance(_AGE_STEP_S)
        raise ClusterFailure(f"not removed within {PATIENCE_S} s: {kept}")

    async def _make_anew(self) -> None:
        """Make the cluster once, have a node join, and make it again while that node is down, which
        goes on as before then: as long as it dials the others, they found nothing.
        """
        cluster = self._cluster
        self._operator.add()
        await self._ready()
        *first, stranger = cluster.ordinary()
        stranger.stranger = True
        stranger.end(power=False)
        for machine in first:
            self._operator.empty(machine)
        cluster.watches.start_over()
        for machine in first:
            cluster.switch_on(machine)
        await self._ready()
        cluster.switch_on(stranger)

    async def _ready(self) -> None:
        """Wait until all nodes are ready, as they are without faults."""
        clients = self._cluster.clients
        for step in range(round(PATIENCE_S / _STEP_S)):
            await asyncio.sleep(_STEP_S)
            clients.held = step * _STEP_S >= _CROWDED_S
            if all(each.ready for each in self._cluster.ordinary()):
                clients.held = False
                return
        raise ClusterFailure(f"not ready within {PATIENCE_S} s: {self._unsettled()}")

    def _keeper(self) -> None:
        """Start what has ended by itself."""
        cluster = self._cluster
        scene = cluster.scene
        rng = scene.random(f"keeper {scene.now}")
        for machine in cluster.ordinary():
            if machine.life is None and machine.lives and not machine.broken:
                delay = 0.0 if scene.healed else rng.uniform(0.1, 2.0)
                scene.loop.outside(delay, cluster.switch_on, machine)
        scene.loop.outside(1.0 if not scene.healed else 0.2, self._keeper)

    def _heal(self) -> None:
        cluster = self._cluster
        cluster.scene.note("*** everything is repaired")
        cluster.clients.stop()
        cluster.scene.healed = True
        broken = None if cluster.swarm.heals_all else self._operator.break_one()
        healthy = [each for each in cluster.ordinary() if each is not broken]
        cluster.network.heal([each.host for each in healthy])
        for machine in healthy:
            machine.heal()
        cluster.sinks.drain(self._verdict.ready, self._verdict.has_stuck_partitions)
        cluster.producers.drain(self._verdict.ready, self._verdict.has_stuck_partitions)
        if cluster.swarm.consuming.clients:
            verdict = self._verdict
            cluster.group_clients.drain(verdict.misses_records, verdict.is_stuck_partition, verdict.ready)

    async def _settle(self, when: str) -> None:
        """Wait until everything is answered, and all nodes are equal; then have all nodes asked for
        something, and wait again.
        """
        marks: list[Call] = []
        for step in range(round(PATIENCE_S / _STEP_S)):
            await asyncio.sleep(_STEP_S)
            if self._unsettled():
                if not step % _STEPS_OF_A_NUDGE and self._is_led_by_a_broken_one():
                    healthy = self._verdict.healthy()
                    self._cluster.clients.nudge([each for each in healthy if each.serving])
                continue
            if marks:
                self._verdict.check_marks(marks)
                self._verdict.read_replicas()
                return
            marks = self._cluster.clients.mark(self._verdict.healthy())
        raise ClusterFailure(f"{when}, not within {PATIENCE_S} s: {self._unsettled()}")

    def _is_led_by_a_broken_one(self) -> bool:
        """True if a broken machine leads a raft group: by writes alone it finds that its disk is
        slow.
        """
        leaders = map(self._cluster.leader, self._cluster.raft_groups())
        return any(leader is not None and leader.broken for leader in leaders)

    def _unsettled(self) -> str:
        """The first thing that is not as it should be yet, empty if all is."""
        if self._operator.in_doubt:
            return f"node {min(self._operator.in_doubt)} may be removed yet"
        with suppress(StopIteration):
            return next(self._verdict.unsettled())
        return ""


@contextmanager
def _moves(swarm: Swarm) -> Iterator[None]:
    """Have nodes move partitions by themselves, soon after they lead."""
    patience_s = _MOVES_AFTER_S if swarm.moving else move_controller.PATIENCE_S
    with patch.object(move_controller, "PATIENCE_S", patience_s):
        yield


def close_loop(loop: LivesLoop) -> None:
    """Close a loop on which tasks have not ended, without running any of their clean-up."""
    loop.set_exception_handler(lambda *_: None)
    tasks: list[asyncio.Task[Any]] = [*asyncio.all_tasks(loop), *loop.dead_tasks]
    for task in tasks:
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # nobody waits for it
        coroutine = task.get_coro()
        with suppress(BaseException):
            coroutine.close()
    asyncio.set_event_loop(None)
    loop.close()
