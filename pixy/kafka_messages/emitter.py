"""Emits the functions that parse and write one message in one version.

Fixed fields are gathered into a run, together with the length or the count that follows them; a run
is one call of `struct`. Variables are called by field and depth of nesting.
"""

from collections.abc import Sequence

from pixy.kafka_messages.schema import SchemaField

_CODES = {
    "bool": "o",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "uuid": "u",
}
"""Letters of `struct`; `o` and `u` stand for "?" and "16s", which no name may have."""
_SIZES = {"o": 1, "b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "q": 8, "u": 16}


class _Emitter:
    """Lines of one function.

    Args:
        version: of the message.
        is_flexible: it has compact lengths and tagged fields.

    Attributes:
        packers: names of the functions of `struct` that are called.
    """

    SIGNATURE = ""

    def __init__(self, version: int, *, is_flexible: bool) -> None:
        self._version = version
        self._flexible = is_flexible
        self._lines: list[str] = []
        self._indent = 1
        # Letters of the run, and their variables or expressions.
        self._run: list[tuple[str, str]] = []
        self.packers: set[str] = set()

    def _add(self, *lines: str) -> None:
        self._lines += [f"{'    ' * self._indent}{line}" for line in lines]

    def _present(self, fields: Sequence[SchemaField]) -> tuple[list[SchemaField], list[SchemaField]]:
        """The fields of this version without a tag, and those with one."""
        present = [field for field in fields if self._version in field.versions]
        tagged = sorted((each for each in present if each.tag is not None), key=lambda each: each.tag or 0)
        return [each for each in present if each.tag is None], tagged

    def _packer(self, verb: str, code: str) -> str:
        name = f"_{verb}_{code}"
        self.packers.add(name)
        return name


class ReadEmitter(_Emitter):
    """Emits a function that parses."""

    SIGNATURE = "(b: bytes, p: int) -> Any"

    def __init__(self, version: int, *, is_flexible: bool) -> None:
        super().__init__(version, is_flexible=is_flexible)
        # The elements of all arrays together are bounded.
        self._is_request = False

    def function(self, message: str, fields: Sequence[SchemaField]) -> list[str]:
        """The lines of the body."""
        self._is_request = message.endswith("Request")
        self._add("e = len(b)")
        if self._is_request:
            self._add("left = ELEMENTS_MAX")
        if _has_records(fields):
            self._add("view = memoryview(b)")
        value = self._struct(message, fields, 1)
        self._flush()
        if not self._is_request:
            left = "{e - p} bytes are left behind the message"
            self._add("if p != e:", f'    raise MalformedKafkaMessage(f"{left}")')
        self._add(f"return {value}")
        return self._lines

    def _struct(self, name: str, fields: Sequence[SchemaField], depth: int) -> str:
        """Read a struct; returns the expression of its object."""
        plain, tagged = self._present(fields)
        for field in plain:
            self._field(field, depth)
        if self._flexible:
            self._flush()
            self._tags(tagged, depth)
        present = {field.name for field in (*plain, *tagged)}
        values = [f"{each.name}_{depth}" if each.name in present else each.default for each in fields]
        return f"{name}({', '.join(values)})"

    def _field(self, field: SchemaField, depth: int) -> None:
        target = f"{field.name}_{depth}"
        nullable = self._version in field.null_versions
        if field.is_array:
            self._array(field, target, depth, nullable=nullable)
        elif field.fields:
            value = self._struct(field.type, field.fields, depth + 1)
            self._flush()
            self._add(f"{target} = {value}")
        elif field.type in _CODES:
            self._run.append((_CODES[field.type], target))
        else:
            self._variable(field.type, target, nullable=nullable)

    def _variable(self, type_name: str, target: str, *, nullable: bool) -> None:
        """Read a string, bytes or records."""
        self._length("h" if type_name == "string" else "i")
        content = {"string": "b[p:q].decode()", "bytes": "b[p:q]", "records": "view[p:q]"}[type_name]
        if nullable:
            self._add("if n < 0:", f"    {target} = None", "else:")
            self._indent += 1
        self._add("q = p + n", f"if q > e{'' if nullable else ' or n < 0'}:", "    raise cut(n, p, e)")
        self._add(f"{target} = {content}", "p = q")
        self._indent -= nullable

    def _length(self, code: str) -> None:
        """Read a length or a count into `n`."""
        if self._flexible:
            self._flush()
            self._add("n = b[p] - 1", "if n < 127:", "    p += 1", "else:")
            self._add("    n, p = read_varint(b, p)", "    n -= 1")
        else:
            self._run.append((code, "n"))
            self._flush()

    def _array(self, field: SchemaField, target: str, depth: int, *, nullable: bool) -> None:
        self._length("i")
        if nullable:
            self._add("if n < 0:", f"    {target} = None", "else:")
            self._indent += 1
        size = 1 if field.fields or field.type not in _CODES else _SIZES[_CODES[field.type]]
        least = "n" if size == 1 else f"n * {size}"
        self._add(f"if {least} > e - p{'' if nullable else ' or n < 0'}:", "    raise cut(n, p, e)")
        if self._is_request:
            self._add("left -= n", "if left < 0:", "    raise too_many(p)")
        if field.type in _CODES:
            self._add(f'{target} = list(unpack_from(f">{{n}}{_CODES[field.type]}", b, p))', f"p += {least}")
        else:
            self._add(f"{target} = []", "for _ in range(n):")
            self._indent += 1
            if field.fields:
                value = self._struct(field.type, field.fields, depth + 1)
            else:
                value = f"each_{depth + 1}"
                self._variable(field.type, value, nullable=False)
            self._flush()
            self._add(f"{target}.append({value})")
            self._indent -= 1
        self._indent -= nullable

    def _tags(self, fields: Sequence[SchemaField], depth: int) -> None:
        for field in fields:
            self._add(f"{field.name}_{depth} = {field.default}")
        if not fields:
            self._add("if b[p]:", "    p = skip_tags(b, p)", "else:", "    p += 1")
            return
        last, ends = f"tag_{depth}", f"end_{depth}"
        self._add("n, p = read_varint(b, p)", f"{last} = -1", "for _ in range(n):")
        self._indent += 1
        self._add(f"{last}, n, p = read_tag(b, p, {last})", f"{ends} = p + n")
        for number, field in enumerate(fields):
            self._add(f"{'el' if number else ''}if {last} == {field.tag}:")
            self._indent += 1
            self._field(field, depth)
            self._flush()
            self._indent -= 1
        self._add("else:", f"    p = {ends}", f"if p != {ends}:")
        self._add(
            f'    raise MalformedKafkaMessage(f"tag {{{last}}} ends at byte {{p}} instead of {{{ends}}}")'
        )
        self._indent -= 1

    def _flush(self) -> None:
        if not self._run:
            return
        code, targets = "".join(code for code, _ in self._run), [target for _, target in self._run]
        call = f"{self._packer('read', code)}(b, p)"
        self._add(f"{targets[0]} = {call}[0]" if len(targets) == 1 else f"{', '.join(targets)} = {call}")
        self._add(f"p += {sum(_SIZES[each] for each in code)}")
        self._run.clear()


class WriteEmitter(_Emitter):
    """Emits a function that writes."""

    SIGNATURE = "(v: Any, o: bytearray, c: list[Any]) -> bytearray"

    def __init__(self, version: int, *, is_flexible: bool) -> None:
        super().__init__(version, is_flexible=is_flexible)
        # The variable of the output.
        self._out = "o"

    def function(self, message: str, fields: Sequence[SchemaField]) -> list[str]:
        """The lines of the body."""
        self._struct("v", fields, 1)
        self._flush()
        self._add("return o")
        return self._lines

    def _struct(self, value: str, fields: Sequence[SchemaField], depth: int) -> None:
        plain, tagged = self._present(fields)
        for field in plain:
            self._field(field, value, depth)
        if not self._flexible:
            return
        if tagged:
            self._tags(tagged, value, depth)
        else:
            self._run.append(("B", "0"))

    def _field(self, field: SchemaField, value: str, depth: int) -> None:
        source = f"{value}.{field.name}"
        nullable = self._version in field.null_versions
        if field.is_array:
            self._array(field, source, depth, nullable=nullable)
        elif field.fields:
            self._struct(source, field.fields, depth + 1)
        elif field.type in _CODES:
            self._run.append((_CODES[field.type], source))
        else:
            self._variable(field.type, source, nullable=nullable)

    def _variable(self, type_name: str, source: str, *, nullable: bool) -> None:
        """Write a string, bytes or records."""
        encoded = f"{source}.encode()" if type_name == "string" else source
        if nullable and type_name == "string":
            encoded = f"None if {source} is None else {encoded}"
        length = "(sum(map(len, s)) if type(s) is list else len(s))" if type_name == "records" else "len(s)"
        self._add(f"s = {encoded}", f"n = {'-1 if s is None else ' if nullable else ''}{length}")
        self._length("h" if type_name == "string" else "i")
        self._flush()
        if type_name == "records":
            self._add("if n > 0:", "    c.append(o)")
            self._add("    c += s if type(s) is list else (s,)", "    o = bytearray()")
        elif nullable:
            self._add("if s:", f"    {self._out} += s")
        else:
            self._add(f"{self._out} += s")

    def _length(self, code: str) -> None:
        """Write the length or the count in `n`."""
        if self._flexible:
            self._flush()
            self._add(f"{self._out} += COMPACT[n + 1] if n < 127 else varint(n + 1)")
        else:
            self._run.append((code, "n"))
            self._flush()

    def _array(self, field: SchemaField, source: str, depth: int, *, nullable: bool) -> None:
        each = f"v_{depth + 1}"
        array = f"a_{depth + 1}"
        self._add(f"{array} = {source}")
        self._add(f"n = -1 if {array} is None else len({array})" if nullable else f"n = len({array})")
        self._length("i")
        items = f"{array} or ()" if nullable else array
        if field.type in _CODES:
            self._add(f'{self._out} += pack(f">{{max(n, 0)}}{_CODES[field.type]}", *({items}))')
            return
        self._add(f"for {each} in {items}:")
        self._indent += 1
        if field.fields:
            self._struct(each, field.fields, depth + 1)
        else:
            self._variable(field.type, each, nullable=False)
        self._flush()
        self._indent -= 1

    def _tags(self, fields: Sequence[SchemaField], value: str, depth: int) -> None:
        self._flush()
        out, count, tags = self._out, f"count_{depth}", f"tags_{depth}"
        self._add(f"{count} = 0", f"{tags} = bytearray()")
        for field in fields:
            source = f"{value}.{field.name}"
            is_set = f"{source} is not None" if field.default == "None" else f"{source} != {field.default}"
            if field.default == "()":
                is_set = source
            self._add(f"if {is_set}:")
            self._indent += 1
            self._out = f"t_{depth}"
            self._add(f"{count} += 1", f"{self._out} = bytearray()")
            self._field(field, value, depth)
            self._flush()
            self._add(f"{tags} += COMPACT[{field.tag}] + varint(len({self._out})) + {self._out}")
            self._indent -= 1
            self._out = out
        self._add(f"{out} += COMPACT[{count}] + {tags}")

    def _flush(self) -> None:
        if not self._run:
            return
        code, sources = "".join(code for code, _ in self._run), [source for _, source in self._run]
        if set(sources) == {"0"}:
            self._add(
                f"{self._out} += bytes({len(sources)})" if len(sources) > 1 else f"{self._out}.append(0)"
            )
        else:
            self._add(f"{self._out} += {self._packer('pack', code)}({', '.join(sources)})")
        self._run.clear()


def _has_records(fields: Sequence[SchemaField]) -> bool:
    return any(each.type == "records" or _has_records(each.fields) for each in fields)
