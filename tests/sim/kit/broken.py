"""Rules of raft groups at rest that do not hold."""

from pixy.multiraft.resting_groups import RestClaim, RestingGroups, Waking
from pixy.raft.raft import Raft
from pixy.raft.rest import may_ask

_tick_at_rest = RestingGroups.tick


def one_agrees(raft: Raft) -> bool:
    """A leader rests as soon as one follower does."""
    return bool(raft.rest_answers) and may_ask(raft)


def heard_of_anything(self: RestingGroups, node_id: int, _: RestClaim) -> None:
    """A claim proves whatever rests with its node."""
    pair = self._pairs.get(node_id)
    if pair is not None:
        pair.unheard = pair.unproven = 0


def tick_for_ever(self: RestingGroups) -> list[Waking]:
    """Followers rest although no claim comes."""
    return [each for each in _tick_at_rest(self) if each.silent]
