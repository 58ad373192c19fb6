"""The Huffman code of HPACK (RFC 7541 §5.2, appendix B).

The code is canonical, so it is fully defined by the lengths of its 257 codes: codes of equal length
are consecutive numbers in the order of their symbols.

The decoder walks the code tree one byte at a time. The transitions of a node for all 256 bytes are
computed when a string first reaches it, in 0.1 ms: few of the 257 nodes are ever used, and
computing all of them would add 25 ms to the start-up. All of them take 8 MB per process, so no peer
can grow the tables further.
"""

from pixy.http2.errors import ErrorCode, Http2ConnectionError

# fmt: off
_LENGTHS = (
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
)
# fmt: on
_END_OF_STRING = 256
_PADDING_BITS_MAX = 7


class _CodeNode:
    """A node of the code tree."""

    __slots__ = ("children", "may_end", "steps")

    def __init__(self) -> None:
        # Children for bits 0 and 1: a node or a symbol. Invariant: complete once the module is
        # loaded.
        self.children: list[_CodeNode | int] = []
        # True if a string may end here: after a symbol, or after at most seven one-bits of padding
        # (RFC 7541 §5.2).
        self.may_end = False
        # Transitions by input byte: the next node and the symbols decoded. Invariant: empty or
        # complete.
        self.steps: list[tuple[_CodeNode, bytes]] = []

    def compute_steps(self) -> "list[tuple[_CodeNode, bytes]]":
        """Fill in `steps`."""
        steps: list[tuple[_CodeNode, bytes]] = [(self, b"")]
        for _ in range(8):
            steps = [_follow(child, met) for node, met in steps for child in node.children]
        self.steps = steps
        return steps


def _follow(child: _CodeNode | int, met: bytes) -> tuple[_CodeNode, bytes]:
    if isinstance(child, _CodeNode):
        return child, met
    return (_DEAD, met) if child == _END_OF_STRING else (_ROOT, met + bytes((child,)))


def _codes() -> list[str]:
    """The code of each symbol as a string of 0 and 1."""
    codes = [""] * len(_LENGTHS)
    code = length = 0
    for symbol in sorted(range(len(_LENGTHS)), key=lambda symbol: (_LENGTHS[symbol], symbol)):
        code <<= _LENGTHS[symbol] - length
        length = _LENGTHS[symbol]
        codes[symbol] = f"{code:0{length}b}"
        code += 1
    return codes


def _tree(codes: list[str]) -> _CodeNode:
    nodes = {"": _CodeNode()}
    for code in sorted(codes):
        for length in range(1, len(code)):
            if code[:length] not in nodes:
                nodes[code[:length]] = _CodeNode()
    symbols = {code: symbol for symbol, code in enumerate(codes)}
    for prefix, node in nodes.items():
        node.children = [
            nodes[prefix + bit] if prefix + bit in nodes else symbols[prefix + bit] for bit in "01"
        ]
        node.may_end = len(prefix) <= _PADDING_BITS_MAX and "0" not in prefix
    return nodes[""]


_CODES = _codes()
_ROOT = _tree(_CODES)
# Reached by the end-of-string symbol, which must not occur (RFC 7541 §5.2). It has no way out, and
# no string may end there.
_DEAD = _CodeNode()
_DEAD.children = [_DEAD, _DEAD]


def decode(encoded: bytes) -> bytes:
    """Decode a Huffman-coded string; the result has at most 8/5 of its length.

    Raises:
        Http2ConnectionError: COMPRESSION_ERROR if the padding exceeds 7 bits or has zeros, or if
            the end-of-string symbol occurs.
    """
    node, symbols = _ROOT, []
    for byte in encoded:
        node, met = (node.steps or node.compute_steps())[byte]
        symbols.append(met)
    if not node.may_end:
        raise Http2ConnectionError(ErrorCode.COMPRESSION_ERROR, "Huffman-coded string without valid padding")
    return b"".join(symbols)


def encoded_length(string: bytes) -> int:
    """Length of the result of `encode`, in bytes."""
    return (sum(map(_LENGTHS.__getitem__, string)) + 7) // 8


def encode(string: bytes) -> bytes:
    """Encode a string."""
    if not string:
        return b""
    bits = "".join(map(_CODES.__getitem__, string))
    bits += "1" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")
