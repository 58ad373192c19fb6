"""A small seeded fuzzer: mutates inputs from a corpus until its time is up.

Each input is derived from the seed and its number, so a failure is reproduced with `--seed` and
`--only`. Findings go into the corpus folder, which the tests replay.
"""

import argparse
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x3F, 0x40)
_CHANGES_MAX = 8


def corpus(kind: str) -> list[bytes]:
    """Inputs of one kind, in the order of their names."""
    return [bytes.fromhex(path.read_text()) for path in sorted((CORPUS / kind).glob("*.hex"))]


def mutate(chooser: random.Random, inputs: Sequence[bytes]) -> bytes:
    """A mutated input of the corpus."""
    found = bytearray(chooser.choice(inputs))
    for _ in range(chooser.randint(1, _CHANGES_MAX)):
        at = chooser.randrange(len(found) + 1)
        match chooser.randrange(6):
            case 0 if at < len(found):
                found[at] ^= 1 << chooser.randrange(8)
            case 1 if at < len(found):
                found[at] = chooser.choice(_INTERESTING)
            case 2:
                found[at:at] = chooser.randbytes(chooser.randint(1, 9))
            case 3:
                del found[at : at + chooser.randint(1, 20)]
            case 4:
                other = chooser.choice(inputs)
                begin = chooser.randrange(len(other) + 1)
                found[at:at] = other[begin : begin + chooser.randint(1, 60)]
            case _:
                found += found[at : at + chooser.randint(1, 60)]
    return bytes(found)


def run(
    kind: str, check: Callable[[bytes, random.Random], None], arguments: Sequence[str] | None = None
) -> None:
    """Check mutated inputs until the time is up; stops at the first failure and prints how to
    reproduce it.

    Args:
        kind: kind of input.
        check: raises if an input is mishandled; its random source belongs to the input.
        arguments: command line arguments.
    """
    parser = argparse.ArgumentParser(description=f"fuzz {kind}")
    parser.add_argument("--time", type=float, default=60, help="seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of one input")
    options = parser.parse_args(arguments)
    inputs = corpus(kind)
    until, number = time.monotonic() + options.time, options.only or 0
    while time.monotonic() < until:
        chooser = random.Random(f"{options.seed}/{number}")
        changed = mutate(chooser, inputs)
        try:
            check(changed, chooser)
        except BaseException:
            print(f"{kind}: input {number} of seed {options.seed} failed: {changed.hex()}")
            raise
        number += 1
        if options.only is not None:
            break
    print(f"{kind}: {number} inputs, seed {options.seed}, nothing found")
