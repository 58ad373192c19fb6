"""Every input of the corpus of HTTP/1.1's fuzz target, as it is and mutated."""

import random

import pytest

from tests.http1 import fuzz_http1
from tests.http2.fuzzing import corpus, mutate


@pytest.mark.slow
def test_every_input_of_the_corpus_is_understood_or_refused() -> None:
    inputs = corpus("http1")
    assert len(inputs) > 5
    for number, known in enumerate(inputs):
        fuzz_http1.check(known, random.Random(number))
    for number in range(1000):
        chooser = random.Random(number)
        fuzz_http1.check(mutate(chooser, inputs), chooser)
