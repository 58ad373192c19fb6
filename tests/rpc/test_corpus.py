"""Every input of the corpus of gRPC's fuzz target, whole and changed a few times, goes through it."""

import random

from tests.http2.fuzzing import corpus, mutate
from tests.rpc import fuzz_grpc


def test_the_corpus_is_treated_well() -> None:
    inputs = corpus("grpc")
    assert len(inputs) > 5
    for number, known in enumerate(inputs):
        fuzz_grpc.check(known, random.Random(number))
    for number in range(300):
        chooser = random.Random(number)
        fuzz_grpc.check(mutate(chooser, inputs), chooser)
