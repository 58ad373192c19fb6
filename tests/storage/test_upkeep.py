"""Background tasks: order of steps, results, faults, stop."""

from pixy.storage.disk.upkeep import Steps, Upkeep
from tests.fakes.worker import StepWorker


class Bench:
    """An upkeep whose steps run when the test requests them."""

    def __init__(self) -> None:
        self.worker = StepWorker()
        self.faults: list[BaseException] = []
        self.upkeep = Upkeep(self.worker, self.faults.append)
        self.done: list[str] = []
        self.steps: list[str] = []

    def work(self, name: str, steps: int) -> Steps:
        for number in range(steps):
            self.steps.append(f"{name}{number}")
            if number < steps - 1:
                yield
        return name

    def run(self) -> None:
        while len(self.worker):
            assert len(self.worker) == 1
            self.worker.step()


def test_tasks_run_round_robin_and_report_their_results() -> None:
    bench = Bench()
    bench.upkeep.add(bench.work("a", 3), bench.done.append)
    bench.upkeep.add(bench.work("b", 1), bench.done.append)
    bench.upkeep.add(bench.work("c", 2), bench.done.append)
    bench.run()
    assert bench.steps == ["a0", "b0", "c0", "a1", "c1", "a2"]
    assert bench.done == ["b", "c", "a"]


def test_a_callback_may_add_a_task() -> None:
    bench = Bench()

    def again(name: str) -> None:
        bench.done.append(name)
        if len(bench.done) < 3:
            bench.upkeep.add(bench.work(f"{name}'", 2), again)

    bench.upkeep.add(bench.work("a", 2), again)
    bench.run()
    assert bench.done == ["a", "a'", "a''"]


def test_an_error_is_a_fault_and_ends_everything() -> None:
    def broken() -> Steps:
        yield
        raise OSError("no")

    bench = Bench()
    bench.upkeep.add(broken(), bench.done.append)
    bench.upkeep.add(bench.work("a", 3), bench.done.append)
    bench.run()
    bench.upkeep.add(bench.work("b", 1), bench.done.append)
    bench.run()
    assert [str(fault) for fault in bench.faults] == ["no"]
    assert (bench.steps, bench.done) == (["a0"], [])


def test_after_a_stop_no_further_step_begins() -> None:
    bench = Bench()
    bench.upkeep.add(bench.work("a", 3), bench.done.append)
    bench.upkeep.stop()
    bench.upkeep.add(bench.work("b", 3), bench.done.append)
    assert bench.worker.stopped
    assert (bench.steps, bench.done) == (["a0"], [])


def test_a_callback_may_stop_the_upkeep() -> None:
    bench = Bench()
    bench.upkeep.add(bench.work("a", 1), lambda _: bench.upkeep.stop())
    bench.upkeep.add(bench.work("b", 1), bench.done.append)
    bench.run()
    assert (bench.steps, bench.done, bench.faults) == (["a0"], [], [])
