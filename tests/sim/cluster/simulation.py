"""Three nodes under faults: first they must be safe, then, healed, they must make progress.

A run asks for writes and reads at all nodes while faults happen. Then everything is repaired: every
request is answered, and all members are equal, within `PATIENCE_S`. At last all nodes are started
again, and must have the same.
"""

import asyncio
from collections import Counter
from contextlib import suppress
from unittest.mock import patch

from structlog.testing import capture_logs

from pixy.errors import PixyError
from pixy.multiraft import entry_cache
from tests.sim.cluster.cluster import Cluster
from tests.sim.cluster.swarm import Swarm
from tests.sim.cluster.trouble import Trouble
from tests.sim.kit.failure import ClusterFailure
from tests.sim.kit.faults import draw_faults
from tests.sim.kit.lives import LivesLoop
from tests.sim.kit.rare import counting
from tests.sim.kit.rest_audit import RestAudit
from tests.sim.kit.run import Run
from tests.sim.outcome import Outcome

PATIENCE_S = 30.0
"""Virtual time within which a healed cluster answers everything and all its members are equal: 15
of the longest election timeouts.
"""
_STEP_S = 0.1


class Simulation(Run[Swarm]):
    """One run."""

    _cluster: Cluster
    _trouble: Trouble
    _rest_audit: RestAudit

    def run(self) -> Outcome:
        """See `Run`."""
        # Here and not in a task: that of a failed run goes on with a `with` when it is collected.
        counts: Counter[str] = Counter()
        self._rest_audit = RestAudit()
        try:
            with (
                counting(counts),
                self._rest_audit.watching(),
                # A cache of a few bytes is to hold some entries.
                patch.multiple(entry_cache, ENTRY_BYTES=0, ROW_BYTES=0),
                capture_logs(),
                asyncio.Runner(loop_factory=LivesLoop, debug=False) as runner,
            ):
                runner.run(self._run())
        except (AssertionError, PixyError, OSError) as error:
            raise ClusterFailure(f"{type(error).__name__}: {error}") from error
        scene = self._cluster.scene
        return Outcome(self.seed, scene.counts + counts, scene.trace_hash)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, LivesLoop)
        cluster = self._cluster = Cluster(self.seed, loop, prints=self._prints, focus=self._focus)
        self._trouble = Trouble(cluster)
        swarm, scene = cluster.swarm, cluster.scene
        self._rest_audit.begin(scene, cluster.running_groups)
        cluster.start()
        rng = scene.random("faults")
        faults = draw_faults(rng, swarm.faults, swarm.faults_count, 1.0, swarm.duration_s)
        self.faults = [fault for fault in faults if fault.number not in self._skipped]
        for fault in self.faults:
            scene.loop.outside(fault.at, self._trouble.happen, fault)
        self._client()
        self._keeper()
        cluster.probe()
        await asyncio.sleep(swarm.duration_s)
        await self._heal()
        await self._settle("after healing")
        for machine in cluster.machines.values():
            machine.end(power=True)
        await asyncio.sleep(_STEP_S)
        await self._settle("after a last start of all")
        cluster.checks.turn()

    # --- what goes on all the time ----------------------------------------------------------------

    def _client(self) -> None:
        cluster, scene = self._cluster, self._cluster.scene
        if scene.healed:
            return
        rng = cluster.requests.rng
        running = cluster.running()
        if running:
            cluster.requests.send_any(rng.choice(running), rng)
        scene.loop.outside(rng.expovariate(1 / cluster.swarm.request_s), self._client)

    def _keeper(self) -> None:
        """Start what has ended by itself."""
        scene = self._cluster.scene
        for machine in self._cluster.machines.values():
            if machine.life is None:
                delay = 0.0 if scene.healed else self._cluster.requests.rng.uniform(0.1, 2.0)
                scene.loop.outside(delay, machine.start)
        if scene.healed:
            self._trouble.leave_joint()
        scene.loop.outside(1.0 if not scene.healed else 0.2, self._keeper)

    # --- the end ----------------------------------------------------------------------------------

    async def _heal(self) -> None:
        cluster = self._cluster
        cluster.scene.note("*** everything is repaired")
        cluster.scene.healed = True
        cluster.network.heal()
        for machine in cluster.machines.values():
            machine.heal()

    async def _settle(self, when: str) -> None:
        """Wait until everything is answered, and all members are equal."""
        cluster = self._cluster
        marked = False
        for _ in range(round(PATIENCE_S / _STEP_S)):
            await asyncio.sleep(_STEP_S)
            if any(each not in cluster.running() for each in cluster.machines.values() if not each.retired):
                continue
            if not marked:
                marked = True
                self._mark()
            if not self._unsettled():
                self._check_at_rest()
                return
        raise ClusterFailure(f"{when}, not within {PATIENCE_S} s: {self._unsettled()}")

    def _check_at_rest(self) -> None:
        self._cluster.requests.check_unwritten()
        for machine in self._cluster.running():
            assert machine.member is not None
            machine.member.check_at_rest()
            self._cluster.checks.probe(machine, self._cluster.scene.random("last probe"))

    def _mark(self) -> None:
        """Have every node write to every group."""
        cluster = self._cluster
        for machine in cluster.running():
            for raft_group in cluster.swarm.layout.state_groups:
                cluster.requests.command(machine, raft_group, cluster.requests.rng)
            for raft_group in cluster.swarm.layout.partitions:
                cluster.requests.append(machine, raft_group, cluster.requests.rng)

    def _unsettled(self) -> str:
        """The first thing that is not as it should be yet, empty if all is."""
        with suppress(StopIteration):
            return next(self._cluster.unsettled())
        return ""
