"""Every input of the corpus of the fuzz target for record batches, as it is and mutated."""

import random

import pytest

from tests.consume import fuzz_batches
from tests.http2.fuzzing import corpus, mutate


@pytest.mark.slow
def test_every_other_record_of_the_partition_is_delivered_once_to_every_group() -> None:
    inputs = corpus("records")
    assert len(inputs) > 5
    for number, known in enumerate(inputs * 5):
        fuzz_batches.check(known, random.Random(number))
    for number in range(300):
        chooser = random.Random(number)
        fuzz_batches.check(mutate(chooser, inputs), chooser)
