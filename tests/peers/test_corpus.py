"""Every input of the corpus of the fuzz target for peers, as it is and mutated."""

import random

import pytest

from tests.http2.fuzzing import corpus, mutate
from tests.peers import fuzz_frames


@pytest.mark.slow
def test_every_input_of_the_corpus_is_understood_or_refused() -> None:
    inputs = corpus("peers")
    assert len(inputs) > 5
    for number, known in enumerate(inputs):
        fuzz_frames.check(known, random.Random(number))
    for number in range(300):
        chooser = random.Random(number)
        fuzz_frames.check(mutate(chooser, inputs), chooser)
