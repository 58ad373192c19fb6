"""A mirror between two clusters of three nodes, while producers write: mirror and nodes are killed
with SIGKILL at random moments. In the end the target has every record of the source once, in its
place.

PIXY_CRASH_CYCLES is the number of kills (6), PIXY_CRASH_SEED repeats the random choices of a run;
timing depends on the machine.
"""

import os
import random
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.fakes.waiting import until_blocking
from tests.integration.clusters import Cluster, ClusterNode
from tests.integration.loaded import LoadedCluster
from tests.integration.mirrored import Place, mirror_once, mirroring, offsets_at, records_at, set_offsets

pytestmark = [pytest.mark.process, pytest.mark.long]

PARTITIONS = 3
GROUPS = ("--groups", "--interval", "0.5")


def addresses(cluster: Cluster) -> Place:
    return Place(",".join(node.address for node in cluster.nodes))


def copied(cluster: Cluster, topic: str) -> int:
    return sum(map(len, records_at(Place(cluster.running[0].address), topic)))


def test_everything_dies_and_every_record_is_copied_once(tmp_path: Path) -> None:
    seed = int(os.environ.get("PIXY_CRASH_SEED", random.randrange(1 << 32)))
    rng = random.Random(seed)
    print(f"seed {seed}")
    log = tmp_path / "mirror.log"
    log.touch()
    with Cluster(tmp_path / "source") as source, Cluster(tmp_path / "target") as target:
        source.start()
        target.start()
        loaded = LoadedCluster(source, partitions=PARTITIONS)
        with ExitStack() as lives:
            staying = source[3]
            lives.enter_context(loaded.produced([staying]))
            mirror = lives.enter_context(mirroring(addresses(source), addresses(target), log, *GROUPS))
            until_blocking(lambda: copied(target, loaded.topic) > 0, log.read_text)
            for _ in range(int(os.environ.get("PIXY_CRASH_CYCLES", "6"))):
                victim = rng.choice([mirror, *target.nodes, *source.nodes[:2]])
                before = copied(target, loaded.topic)
                if isinstance(victim, ClusterNode):
                    victim.kill()
                    # Two of three go on, and so does the mirror.
                    until_blocking(lambda: copied(target, loaded.topic) > before, log.read_text)  # noqa: B023
                    victim.start()
                else:
                    kill_at = rng.uniform(0, 100)
                    until_blocking(
                        lambda: copied(target, loaded.topic) > before + kill_at,  # noqa: B023
                        log.read_text,
                    )
                    mirror.kill()
                    mirror.wait()
                    mirror = lives.enter_context(
                        mirroring(addresses(source), addresses(target), log, *GROUPS)
                    )
                assert mirror.poll() is None, log.read_text()
        check(source, target, loaded.topic, mirror)


def check(source: Cluster, target: Cluster, topic: str, mirror: "subprocess.Popen[bytes]") -> None:
    """Copy the rest, with the offsets of a group, and compare."""
    assert mirror.poll() is not None
    places = Place(source.running[0].address), Place(target.running[0].address)
    expected = records_at(places[0], topic)
    ends = {number: len(records) for number, records in enumerate(expected)}
    set_offsets(places[0], topic, "group", {number: end // 2 for number, end in ends.items()})
    events = mirror_once(addresses(source), addresses(target), "--groups")
    assert events[-1]["lag"] == 0
    found = records_at(places[1], topic)
    assert [len(records) for records in found] == list(ends.values())
    assert found == expected
    assert offsets_at(places[1], topic, "group") == {number: end // 2 for number, end in ends.items()}
