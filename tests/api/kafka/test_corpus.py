"""Every input of the corpus of the fuzz target for the Kafka API, as it is and mutated."""

import random

import pytest

from tests.api.kafka.fuzz_kafka import target
from tests.http2.fuzzing import corpus, mutate


@pytest.mark.slow
def test_every_input_of_the_corpus_is_answered_or_refused() -> None:
    inputs = corpus("kafka")
    assert len(inputs) > 25
    with target() as servers:
        for number, known in enumerate(inputs * 2):
            servers.check(known, random.Random(number))
        for number in range(200):
            chooser = random.Random(number)
            servers.check(mutate(chooser, inputs), chooser)
