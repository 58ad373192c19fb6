"""Every input of the corpus of gRPC's fuzz target, as it is and mutated."""

import random

import pytest

from tests.http2.fuzzing import corpus, mutate
from tests.rpc import fuzz_grpc


@pytest.mark.slow
def test_every_input_of_the_corpus_is_understood_or_refused() -> None:
    inputs = corpus("grpc")
    assert len(inputs) > 5
    for number, known in enumerate(inputs):
        fuzz_grpc.check(known, random.Random(number))
    for number in range(300):
        chooser = random.Random(number)
        fuzz_grpc.check(mutate(chooser, inputs), chooser)
