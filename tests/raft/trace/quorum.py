"""Traces of quorum arithmetic: `committed` and `vote` for one configuration (`cfg`) or two (`cfg`,
`cfgj`).

`idx` and `votes` have one value per voter, in the order in which the voters are first named; `_` is
a voter without a value. Results are computed a second way where there is one, and differences are
reported.
"""

from collections.abc import Callable, Collection

from pixy.raft.quorum import (
    INFINITY,
    joint_committed_index,
    joint_vote_result,
    majority_committed_index,
    majority_vote_result,
)
from tests.raft.etcd.text import describe_index, describe_majority
from tests.raft.trace.script import BadScript, Case

Acked = Callable[[int], int | None]


class QuorumTrace:
    """Stateless: every command is independent."""

    def __call__(self, case: Case) -> str:
        """Description and result."""
        values: dict[str, list[str]] = {"cfg": [], "cfgj": [], "idx": [], "votes": []}
        values |= {key: list(given) for key, given in case.arguments}
        unknown = values.keys() - {"cfg", "cfgj", "idx", "votes"}
        if unknown:
            raise BadScript(f"unknown arg {' '.join(sorted(unknown))}")
        joint = any(key == "cfgj" for key, _ in case.arguments)
        incoming = [int(voter) for voter in values["cfg"]]
        outgoing = [] if values["cfgj"] == ["zero"] else [int(voter) for voter in values["cfgj"]]
        voters = list(dict.fromkeys([*incoming, *outgoing]))
        given = values["votes" if case.command == "vote" else "idx"]
        if len(given) != len(voters):
            return f"error: mismatched input (explicit or _) for voters {_map(voters)}: {_numbers(given)}\n"
        known = {voter: value for voter, value in zip(voters, given, strict=True) if value != "_"}
        if case.command == "vote":
            return _vote(
                set(incoming), set(outgoing), joint, {voter: _yes(value) for voter, value in known.items()}
            )
        if case.command == "committed":
            return _committed(
                set(incoming), set(outgoing), joint, {voter: int(value) for voter, value in known.items()}
            )
        raise BadScript(f"unknown command: {case.command}")


def _map(voters: list[int]) -> str:
    """Formatted like a set in Go."""
    return "map[" + " ".join([f"{voter}:{{}}" for voter in sorted(voters)]) + "]"


def _numbers(given: list[str]) -> str:
    """Values as in Go's test: unknown is 0, no is 1, yes is 2."""
    return "[" + " ".join([{"_": "0", "n": "1", "y": "2"}.get(value, value) for value in given]) + "]"


def _yes(value: str) -> bool:
    if value not in ("y", "n"):
        raise BadScript(f"unknown vote: {value}")
    return value == "y"


def _vote(incoming: set[int], outgoing: set[int], joint: bool, votes: dict[int, bool]) -> str:
    if not joint:
        return f"{majority_vote_result(incoming, votes).value}\n"
    result = joint_vote_result(incoming, outgoing, votes)
    swapped = joint_vote_result(outgoing, incoming, votes)
    extra = "" if swapped is result else f"{swapped.value} <-- via symmetry\n"
    return f"{extra}{result.value}\n"


def _committed(incoming: set[int], outgoing: set[int], joint: bool, acked: dict[int, int]) -> str:
    if joint:
        index = joint_committed_index(incoming, outgoing, acked.get)
        others = {"symmetry": joint_committed_index(outgoing, incoming, acked.get)}
        text = describe_majority(incoming | outgoing, acked.get)
    else:
        index = majority_committed_index(incoming, acked.get)
        others = {
            "alternative computation": _by_counting(incoming, acked.get),
            "zero-joint quorum": joint_committed_index(incoming, set(), acked.get),
            "self-joint quorum": joint_committed_index(incoming, incoming, acked.get),
        }
        text = describe_majority(incoming, acked.get)
    for way, other in others.items():
        if other != index:
            text += f"{describe_index(other)} <-- via {way}\n"
    if not joint:
        text += _overlays(incoming, acked, index)
    return f"{text}{describe_index(index)}\n"


def _by_counting(voters: Collection[int], acked: Acked) -> int:
    """The highest index with enough acknowledgements, found by trying each."""
    if not voters:
        return INFINITY
    known = [acked(voter) or 0 for voter in voters]
    enough = [index for index in known if sum(1 for other in known if other >= index) > len(known) // 2]
    return max(enough, default=0)


def _overlays(voters: set[int], acked: dict[int, int], index: int) -> str:
    """A voter below the result must not change it by acknowledging even less."""
    text = ""
    for voter in sorted(voters & acked.keys()):
        if 0 < acked[voter] < index:
            for lower, name in ((acked[voter] - 1, str(acked[voter])), (0, "0")):
                other = majority_committed_index(voters, {**acked, voter: lower}.get)
                if other != index:
                    text += f"{describe_index(other)} <-- overlaying {voter}->{name}"
    return text
