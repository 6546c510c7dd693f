"""Chunks, columns and parts: "Content of form records" and "Parts" of `docs/format.md`."""

from dataclasses import dataclass

import entropy
import zstd
from checksums import crc32c

CLASSES = 17
DIRECTORY = 17
FORM_BYTES = 18

SYMBOLS, BYTES = 0, 1
MAX_REMEMBERED = 4 << 20
MAX_WORDS = 12288


class Damage(ValueError):
    """The file is not as the specification says."""


class Cursor:
    """Bytes that are read from the first to the last."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def left(self):
        return len(self.data) - self.at

    def take(self, count):
        taken = self.data[self.at : self.at + count]
        if len(taken) != count:
            raise Damage(f"expected {count} bytes, found {len(taken)}")
        self.at += count
        return taken

    def rest(self):
        return self.take(self.left())

    def number(self, width):
        return int.from_bytes(self.take(width), "little")

    def leb128(self):
        value = 0
        for shift in range(0, 70, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if value >> 64:
                    break
                return value
        raise Damage("LEB128: expected at most 64 bits, found more")

    def end(self, what):
        if self.left():
            raise Damage(f"{what}: expected its end, found {self.left()} bytes")


@dataclass(frozen=True)
class Column:
    """A column: `form` is 0 for symbols, 1 for bytes, and 1 more than their width for rows."""

    number: int
    klass: int
    form: int

    @property
    def width(self):
        return self.form - 1 if self.form > BYTES else None


class Decoder:
    """What lasts from a keyframe to the next."""

    def __init__(self):
        self.columns = []
        self.remembered = {}
        self.model = None

    def piece(self, content, length):
        """The original of a piece of form bytes."""
        cursor = Cursor(content)
        original = self._whole(FORM_BYTES, cursor, length)
        cursor.end("a piece")
        if len(original) != length:
            raise Damage(f"a piece: expected {length} bytes, found {len(original)}")
        return original

    def chunk(self, content, most):
        """All columns of a member that have bytes, in their order."""
        cursor = Cursor(content)
        directory = Cursor(self._whole(DIRECTORY, cursor, most))
        for _ in range(directory.leb128()):
            klass, form = directory.leb128(), directory.leb128()
            if klass >= CLASSES or form > 65536:
                raise Damage(f"directory: expected a class and a form, found {klass} and {form}")
            self.columns.append(Column(len(self.columns), klass, form))
        sizes = [directory.leb128() for _ in self.columns]
        directory.end("the directory")
        weight = sum(sizes) + 16 * len(sizes)
        if weight > most:
            raise Damage(f"directory: expected columns of weight {most} at most, found {weight}")
        found = {}
        for klass in range(CLASSES):
            used = [(column, size) for column, size in zip(self.columns, sizes) if column.klass == klass and size]
            if used:
                for (column, size), bytes_ in zip(used, self._class(klass, used, cursor)):
                    if len(bytes_) != size:
                        raise Damage(f"column {column.number}: expected {size} bytes, found {len(bytes_)}")
                    found[column] = bytes_
        cursor.end("the chunk")
        return [(column, found[column]) for column in self.columns if column in found]

    def _class(self, klass, used, cursor):
        """The columns of a class, which one part has."""
        # Laid out, a column of rows takes as many bytes, and those of its form.
        most = 10 + sum(size + 1 + (column.width or 0) for column, size in used)
        part = Part(cursor, None)
        if 8 <= part.coder <= 10:
            sizes = [(column.number, column.form, size) for column, size in used]
            return self._model(part.coder - 8).decode(part.stored, klass, sizes)
        if 4 <= part.coder <= 6:
            content, choices = part.with_choices()
            contents = laid_out(content, used)
            columns = [(column.number, column.form) for column, _ in used]
            self._model(part.coder - 4).learn(klass, columns, contents, choices)
            return contents
        return laid_out(self._content(klass, part, most), used)

    def _whole(self, klass, cursor, most):
        return self._content(klass, Part(cursor, most), most)

    def _content(self, klass, part, most):
        coder = part.coder
        if coder == 0:
            content = part.stored
        elif coder in (1, 2):
            prefix = self.remembered.get(klass, b"") if coder == 2 else b""
            content = zstd.decompress(part.stored, prefix, part.raw)
        elif coder == 3:
            return with_words(part.of_length(zstd.decompress(part.stored, most=part.raw)), most)
        elif 4 <= coder <= 6:
            content, choices = part.with_choices()
            self._model(coder - 4).learn(klass, [(0, BYTES)], [content], choices)
            return content
        elif 8 <= coder <= 10 or 16 <= coder <= 18 or 24 <= coder <= 26:
            (content,) = self._model(coder & 7).decode(part.stored, klass, [(0, BYTES, part.raw)])
            return with_words(content, most) if coder >= 24 else content
        else:
            raise Damage(f"a part: expected a coder that this version knows, found {coder}")
        part.of_length(content)
        self.remembered[klass] = (self.remembered.get(klass, b"") + content)[-MAX_REMEMBERED:]
        return content

    def _model(self, effort):
        if self.model is None:
            self.model = entropy.Model(effort)
        if self.model.effort != effort:
            raise Damage(f"a part: expected effort {self.model.effort}, found {effort}")
        return self.model


class Part:
    """A part as it is stored."""

    def __init__(self, cursor, most):
        self.coder = cursor.number(1)
        self.raw, stored = cursor.leb128(), cursor.leb128()
        checksum = cursor.number(4)
        self.stored = cursor.take(stored)
        if crc32c(self.stored) != checksum:
            raise Damage(f"a part: expected CRC-32C {checksum:08X}, found {crc32c(self.stored):08X}")
        if most is not None and self.raw > most and self.coder not in (3, 24, 25, 26):
            raise Damage(f"a part: expected at most {most} bytes, found {self.raw}")

        ratio = 1 if self.coder == 0 else 1 << 15 if self.coder <= 3 else 1024
        if self.raw > ratio * stored:
            raise Damage(f"a part: expected at most {ratio * stored} bytes, found {self.raw}")

    def of_length(self, content):
        if len(content) != self.raw:
            raise Damage(f"a part: expected {self.raw} bytes, found {len(content)}")
        return content

    def with_choices(self):
        """The content of a part that a model learns as well, and the choices."""
        cursor = Cursor(self.stored)
        count, stored = cursor.leb128(), cursor.leb128()
        choices = zstd.decompress(cursor.take(stored), most=count) if stored else b""
        if len(choices) != count:
            raise Damage(f"a part: expected {count} choices, found {len(choices)}")
        return self.of_length(zstd.decompress(cursor.rest(), most=self.raw)), choices


def laid_out(content, used):
    """Columns from how they are laid out in a part."""
    cursor = Cursor(content)
    forms = Cursor(cursor.take(cursor.leb128()))
    contents = []
    for column, size in used:
        planes = None
        if column.width:
            kind = forms.number(1)
            if kind == 1:
                planes = list(forms.take(column.width))
            elif kind != 0:
                raise Damage(f"the form of a column's rows: expected 0 or 1, found {kind}")
        if planes is None:
            contents.append(cursor.take(size))
            continue
        contents.append(rows_of(cursor, planes, size))
    forms.end("the forms of columns")
    cursor.end("the columns")
    return contents


def rows_of(cursor, planes, size):
    """Rows from planes: all first bytes of the rows, all second ones, and so on."""
    width = len(planes)
    rows, beyond = divmod(size, width)
    out = bytearray(size)
    for place, kind in enumerate(planes):
        count = rows + (place < beyond)
        if kind == 2:
            plane = cursor.take(1) * count
        elif kind in (0, 1):
            plane = bytearray(cursor.take(count))
            if kind == 1:
                for at in range(1, count):
                    plane[at] = plane[at] + plane[at - 1] & 0xFF
        else:
            raise Damage(f"the form of a plane: expected 0 to 2, found {kind}")
        out[place::width] = plane
    return bytes(out)


def with_words(content, most):
    """A text from its words as numbers."""
    cursor = Cursor(content)
    length, count = cursor.leb128(), cursor.leb128()
    if length > most or count > MAX_WORDS:
        raise Damage(f"a text of words: expected at most {most} bytes of {MAX_WORDS} words, found more")
    lengths = cursor.take(count)
    words = [cursor.take(length) for length in lengths]
    escape = cursor.number(1)
    leads = {lead: 256 * number for number, lead in enumerate(cursor.take((count + 255) // 256))}
    structure = Cursor(cursor.take(cursor.leb128()))
    out = bytearray()
    while structure.left():
        byte = structure.number(1)
        if byte == escape:
            out += structure.take(1)
        elif byte in leads:
            number = leads[byte] + cursor.number(1)
            if number >= count:
                raise Damage(f"a text of words: expected a word below {count}, found {number}")
            out += words[number]
        else:
            out.append(byte)
    cursor.end("the words of a text")
    if len(out) != length:
        raise Damage(f"a text of words: expected {length} bytes, found {len(out)}")
    return bytes(out)
