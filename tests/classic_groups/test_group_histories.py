"""Random histories of one group with restarts of its coordinator: what was told is stored, and
every request is answered once.
"""

from random import Random

import pytest

from pixy.classic_groups import GroupCode, GroupPhase, Joined, MemberProtocol, Synced
from tests.classic_groups.scenario import REBALANCE_MS, SESSION_MS, GroupScenario

STEPS = 400
PROTOCOLS = (
    [MemberProtocol("range", b"a")],
    [MemberProtocol("range", b"b"), MemberProtocol("sticky", b"b")],
    [MemberProtocol("sticky", b"c")],
)


class History:
    """Clients that know what they were told, and a coordinator that moves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.scenario = GroupScenario()
        self.asked: list[int] = []
        self.known: list[tuple[str, str | None]] = [("", None)]
        self.seen = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
            self.look()

    def step(self) -> None:
        scenario, random = self.scenario, self.random
        member_id, instance_id = random.choice(self.known)
        present = list(scenario.group.members)
        if present and random.random() < 0.7:
            member = random.choice(present)
            member_id, instance_id = member.member_id, member.instance_id
        generation = scenario.group.generation - (random.random() < 0.1)
        match random.randrange(12):
            case 0 | 1 | 2:
                self.asked.append(
                    scenario.join(
                        member_id,
                        instance_id=instance_id,
                        takes_member_id=random.random() < 0.5,
                        skips_assignment=random.random() < 0.5,
                        protocols=random.choice(PROTOCOLS[: random.choice((1, 1, 3))]),
                    )
                )
            case 3:
                self.asked.append(scenario.join(instance_id=random.choice((None, "one", "two"))))
            case 4 | 5:
                plan = {each: each.encode() for each in scenario.group.members.by_id}
                self.asked.append(scenario.sync(member_id, generation, plan, instance_id=instance_id))
            case 6:
                scenario.heartbeat(member_id, generation, instance_id)
            case 7:
                scenario.commit(member_id, generation, instance_id)
            case 8 if random.random() < 0.3:
                scenario.leave(member_id, instance_id=instance_id)
            case 9:
                scenario.wait(random.choice((1, 100, SESSION_MS / 2, SESSION_MS)))
            case 10:
                scenario.holds_writes = random.random() < 0.5
                if not scenario.holds_writes and scenario.writes:
                    scenario.store()
            case 11 if random.random() < 0.2:
                scenario.move()
        self.known = self.known[-12:]

    def look(self) -> None:
        """All that was told must be stored, whoever leads later."""
        answers = list(self.scenario.answers.values())
        for answer in answers[self.seen :]:
            if isinstance(answer, Joined):
                self.known.append((answer.member_id, None))
                if answer.code is GroupCode.NONE:
                    self.check_joined(answer)
            elif answer.code is GroupCode.NONE:
                self.check_synced(answer)
        self.seen = len(answers)

    def check_joined(self, answer: Joined) -> None:
        records = [each for each in self.scenario.stored if each.generation == answer.generation]
        assert any(answer.member_id in {member.member_id for member in each.members} for each in records)
        if answer.members:
            ids = [{member.member_id for member in each.members} for each in records]
            assert {each.member_id for each in answer.members} in ids

    def check_synced(self, answer: Synced) -> None:
        assert any(
            member.assignment == answer.assignment
            for each in self.scenario.stored
            if each.is_assigned
            for member in each.members
        )

    def end(self) -> None:
        """Nobody asks any more: every request is answered, and the group is empty."""
        scenario = self.scenario
        scenario.holds_writes = False
        if scenario.writes:
            scenario.store()
        scenario.wait(10 * REBALANCE_MS)
        self.look()
        assert set(self.asked) <= scenario.answers.keys()
        assert scenario.group.phase is GroupPhase.EMPTY
        generations = [each.generation for each in scenario.stored]
        assert generations == sorted(generations)


@pytest.mark.parametrize("seed", range(30))
def test_what_was_told_is_stored_and_every_request_is_answered(seed: int) -> None:
    history = History(seed)
    history.run()
    history.end()
