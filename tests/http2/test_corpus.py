"""The corpus of the fuzz targets, unchanged and mutated a few times."""

import random
from collections.abc import Callable

import pytest

from tests.http2 import fuzz_connection, fuzz_hpack
from tests.http2.fuzzing import corpus, mutate, run

TARGETS = {"connection": fuzz_connection.check, "hpack": fuzz_hpack.check}


@pytest.mark.slow
@pytest.mark.parametrize("kind", TARGETS)
def test_every_input_of_the_corpus_passes_its_target(kind: str) -> None:
    inputs = corpus(kind)
    assert len(inputs) > 5
    for number, known in enumerate(inputs):
        TARGETS[kind](known, random.Random(number))
    for number in range(200):
        chooser = random.Random(number)
        TARGETS[kind](mutate(chooser, inputs), chooser)


def failing_for(bad: bytes) -> Callable[[bytes, random.Random], None]:
    def check(changed: bytes, _: random.Random) -> None:
        if changed == bad:
            raise ValueError("found")

    return check


def test_a_fuzzing_failure_is_reproduced_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    bad = mutate(random.Random("7/12"), corpus("hpack"))
    with pytest.raises(ValueError, match="found"):
        run("hpack", failing_for(bad), ["--seed", "7", "--time", "600"])
    assert f"input 12 of seed 7 failed: {bad.hex()}" in capsys.readouterr().out
    with pytest.raises(ValueError, match="found"):
        run("hpack", failing_for(bad), ["--seed", "7", "--only", "12"])
    run("hpack", failing_for(bad), ["--seed", "7", "--only", "11"])
