"""Traces of configuration changes: `simple`, `enter-joint [autoleave=true]`, `leave-joint`."""

from pixy.raft import ConfChangeError
from pixy.raft.conf_change import Changer
from pixy.raft.messages import ConfState
from pixy.raft.progress import Inflights, Progress
from pixy.raft.text import describe_config
from tests.raft.etcd.text import describe_progress_map, parse_conf_changes
from tests.raft.trace.script import BadScript, Case


class ConfChangeTrace:
    """A configuration built from scratch.

    The last index of the log is incremented by every command, even a failed one.
    """

    def __init__(self) -> None:
        self._config = ConfState()
        self._progress: dict[int, Progress] = {}
        self._last_index = 0

    def __call__(self, case: Case) -> str:
        """The configuration after the command, or its error."""
        try:
            self._config, self._progress = self._run(case)
        except ConfChangeError as error:
            return f"{error}\n"
        finally:
            self._last_index += 1
        return f"{describe_config(self._config)}\n{describe_progress_map(self._progress)}"

    def _run(self, case: Case) -> tuple[ConfState, dict[int, Progress]]:
        changes = parse_conf_changes(case.input)
        changer = Changer(self._config, self._progress, self._new_progress)
        match case.command:
            case "simple":
                return changer.simple(changes)
            case "enter-joint":
                return changer.enter_joint(_auto_leave(case), changes)
            case "leave-joint":
                if changes:
                    raise ConfChangeError("this command takes no input")
                return changer.leave_joint()
        raise ConfChangeError("unknown command")

    def _new_progress(self, learner: bool) -> Progress:
        return Progress(max(self._last_index, 1), Inflights(10), learner=learner, recently_active=True)


def _auto_leave(case: Case) -> bool:
    for key, values in case.arguments:
        if key != "autoleave" or values not in (("true",), ("false",)):
            raise BadScript(f"cannot take {key}={values}")
        return values == ("true",)
    return False
