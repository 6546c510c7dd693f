"""A decoder of zstd frames (RFC 8878), for content that `docs/format.md` says is one.

Written for being read, with nothing but the standard library. `decompress` takes a prefix: bytes that count as written
just before the frame.
"""

MAGIC = b"\x28\xb5\x2f\xfd"


class Invalid(ValueError):
    """The frame is not as RFC 8878 says."""


def decompress(frame, prefix=b"", most=1 << 30):
    """The content of one frame, which must be all of `frame` and have at most `most` bytes."""
    if frame[:4] != MAGIC:
        raise Invalid(f"zstd frame: expected magic {MAGIC.hex()}, found {frame[:4].hex()}")
    descriptor = frame[4]
    single_segment = descriptor >> 5 & 1
    if descriptor & 8:
        raise Invalid("zstd frame: expected the reserved bit to be 0, found 1")
    at = 5 + (1 - single_segment)
    at += (0, 1, 2, 4)[descriptor & 3]
    size_bytes = (single_segment, 2, 4, 8)[descriptor >> 6]
    size = int.from_bytes(frame[at : at + size_bytes], "little") + (256 if size_bytes == 2 else 0)
    at += size_bytes
    out = bytearray(prefix)
    state = _Blocks()
    last = False
    while not last:
        header = int.from_bytes(_take(frame, at, 3), "little")
        at += 3
        last, kind, length = header & 1, header >> 1 & 3, header >> 3
        if kind == 0:
            out += _take(frame, at, length)
            at += length
        elif kind == 1:
            out += _take(frame, at, 1) * length
            at += 1
        elif kind == 2:
            state.block(_take(frame, at, length), out)
            at += length
        else:
            raise Invalid("zstd block: expected type 0 to 2, found 3")
        if len(out) - len(prefix) > most:
            raise Invalid(f"zstd frame: expected at most {most} bytes of content, found more")
    content = bytes(out[len(prefix) :])
    if descriptor & 4:
        at += 4  # of XXH64; the part has a checksum of its own
    if at != len(frame):
        raise Invalid(f"zstd frame: expected its end at {at}, found {len(frame)} bytes")
    if size_bytes and size != len(content):
        raise Invalid(f"zstd frame: expected {size} bytes of content, found {len(content)}")
    return content


def _take(data, at, length):
    taken = data[at : at + length]
    if len(taken) != length:
        raise Invalid(f"zstd frame: expected {length} bytes at {at}, found {len(taken)}")
    return taken


class _Backward:
    """A stream of bits that is read from its last byte to its first; the highest set bit of the last byte is not in it."""

    def __init__(self, data):
        if not data or not data[-1]:
            raise Invalid("zstd bit stream: expected a set bit in its last byte, found none")
        self.data = data
        self.left = 8 * len(data) - 9 + data[-1].bit_length()

    def read(self, bits):
        """So many bits; before the first byte come zeros, and `left` is below 0 then."""
        self.left -= bits
        return self.peek(bits)

    def peek(self, bits):
        """The bits from `left` on upwards."""
        at, shift = self.left, 0
        if at < 0:
            at, shift = 0, -at
            if shift >= bits:
                return 0
        byte = at >> 3
        value = int.from_bytes(self.data[byte : byte + 9], "little") >> (at & 7)
        return (value << shift) & ((1 << bits) - 1)


# RFC 8878, 3.1.1.3.2.1.1: (baseline, bits) by code.
_LITERAL_LENGTHS = [(n, 0) for n in range(16)] + list(
    zip(
        (16, 18, 20, 22, 24, 28, 32, 40, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
        (1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
    )
)
_MATCH_LENGTHS = [(n + 3, 0) for n in range(32)] + list(
    zip(
        (35, 37, 39, 41, 43, 47, 51, 59, 67, 83, 99, 131, 259, 515, 1027, 2051, 4099, 8195, 16387, 32771, 65539),
        (1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16),
    )
)


def _table(counts, log):
    """3.1.1.3.2.1: for each state the symbol, the bits to read, and what to add to them for the next state."""
    size = 1 << log
    symbols, following, high = [0] * size, {}, size - 1
    for symbol, count in enumerate(counts):
        if count == -1:
            symbols[high] = symbol
            high -= 1
        following[symbol] = abs(count)
    at, step = 0, (size >> 1) + (size >> 3) + 3
    for symbol, count in enumerate(counts):
        for _ in range(max(count, 0)):
            symbols[at] = symbol
            at = (at + step) & (size - 1)
            while at > high:
                at = (at + step) & (size - 1)
    table = []
    for symbol in symbols:
        number = following[symbol]
        following[symbol] = number + 1
        bits = log + 1 - number.bit_length()
        table.append((symbol, bits, (number << bits) - size))
    return table, log


def _read_table(data, most_log):
    """A table as 4.1.1 describes it, and how many bytes that takes."""
    bits = int.from_bytes(data[:256], "little")
    log = (bits & 15) + 5
    if log > most_log:
        raise Invalid(f"zstd table: expected an accuracy of at most {most_log}, found {log}")
    at, left, counts = 4, 1 << log, []
    while left > 0:
        # A value from 0 to left + 1; the lower ones take a bit less.
        width = (left + 1).bit_length()
        short = (1 << width) - 1 - (left + 1)
        value = bits >> at & ((1 << width) - 1)
        low = value & ((1 << width - 1) - 1)
        if low < short:
            value = low
            at += width - 1
        else:
            at += width
            if value >= 1 << width - 1:
                value -= short
        counts.append(value - 1)
        left -= abs(value - 1)
        if value == 1:
            while True:
                zeros = bits >> at & 3
                at += 2
                counts += [0] * zeros
                if zeros < 3:
                    break
        if len(counts) > 256 or at > 8 * len(data):
            raise Invalid("zstd table: expected its end, found more")
    return _table(counts, log), (at + 7) // 8


def _huffman(weights):
    """4.2.1: symbol and bits by the next `log` bits."""
    total = sum(1 << weight - 1 for weight in weights if weight)
    if not total:
        raise Invalid("zstd Huffman tree: expected a weight, found none")
    log = total.bit_length()
    left = (1 << log) - total
    if left & (left - 1) or log > 11:
        raise Invalid("zstd Huffman tree: expected weights that add up, found others")
    weights = weights + [left.bit_length()]
    table = []
    for weight in range(1, log + 1):
        for symbol, own in enumerate(weights):
            if own == weight:
                table += [(symbol, log + 1 - weight)] * (1 << weight - 1)
    return table, log


def _read_huffman(data):
    """A tree, and how many bytes it takes."""
    if data[0] >= 128:
        count = data[0] - 127
        packed = _take(data, 1, (count + 1) // 2)
        weights = [byte >> shift & 15 for byte in packed for shift in (4, 0)][:count]
        return _huffman(weights), 1 + len(packed)
    packed = _take(data, 1, data[0])
    (table, log), used = _read_table(packed, 6)
    stream = _Backward(packed[used:])
    states = [stream.read(log), stream.read(log)]
    weights, turn = [], 0
    while True:
        symbol, bits, base = table[states[turn]]
        weights.append(symbol)
        states[turn] = base + stream.read(bits)
        turn ^= 1
        if stream.left < 0:
            weights.append(table[states[turn]][0])
            break
        if len(weights) > 255:
            raise Invalid("zstd Huffman tree: expected at most 255 weights, found more")
    return _huffman(weights), 1 + len(packed)


def _literals_of(data, count, tree):
    table, log = tree
    stream, out = _Backward(data), bytearray()
    left = stream.left
    for _ in range(count):
        stream.left = left - log
        symbol, bits = table[stream.peek(log)]
        left -= bits
        out.append(symbol)
    if left != 0:
        raise Invalid(f"zstd literals: expected the stream's end, found {left} bits")
    return out


class _Blocks:
    """What one block leaves behind for the next."""

    def __init__(self):
        self.tree = None
        self.recent = [1, 4, 8]
        self.tables = [None] * 3

    def block(self, data, out):
        literals, used = self._literals(data)
        self._sequences(data[used:], literals, out)

    def _literals(self, data):
        kind, form = data[0] & 3, data[0] >> 2 & 3
        if kind < 2:
            header, shift = {0: (1, 3), 2: (1, 3), 1: (2, 4), 3: (3, 4)}[form]
            size = int.from_bytes(_take(data, 0, header), "little") >> shift
            if kind == 0:
                return _take(data, header, size), header + size
            return _take(data, header, 1) * size, header + 1
        header, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]
        value = int.from_bytes(_take(data, 0, header), "little") >> 4
        size, stored = value & ((1 << bits) - 1), value >> bits
        content = _take(data, header, stored)
        if kind == 2:
            self.tree, used = _read_huffman(content)
            content = content[used:]
        if self.tree is None:
            raise Invalid("zstd literals: expected a tree, found none before")
        if form == 0:
            return _literals_of(content, size, self.tree), header + stored
        each = (size + 3) // 4
        ends = [int.from_bytes(content[at : at + 2], "little") for at in (0, 2, 4)]
        out, at = bytearray(), 6
        for number in range(4):
            end = at + ends[number] if number < 3 else len(content)
            out += _literals_of(content[at:end], each if number < 3 else size - 3 * each, self.tree)
            at = end
        return out, header + stored

    def _sequences(self, data, literals, out):
        first = data[0]
        if first < 128:
            count, at = first, 1
        elif first < 255:
            count, at = (first - 128 << 8) + data[1], 2
        else:
            count, at = data[1] + (data[2] << 8) + 0x7F00, 3
        if not count:
            if at != len(data):
                raise Invalid("zstd sequences: expected the block's end, found more")
            out += literals
            return
        modes = data[at]
        at += 1
        for number, (shift, most_log) in enumerate(((6, 9), (4, 8), (2, 9))):
            mode = modes >> shift & 3
            if mode == 0:
                self.tables[number] = _PREDEFINED[number]
            elif mode == 1:
                self.tables[number] = [(data[at], 0, 0)], 0
                at += 1
            elif mode == 2:
                self.tables[number], used = _read_table(data[at:], most_log)
                at += used
            elif self.tables[number] is None:
                raise Invalid("zstd sequences: expected a table, found none before")
        self._copy(_Backward(data[at:]), count, literals, out)

    def _copy(self, stream, count, literals, out):
        (lengths, lengths_log), (offsets, offsets_log), (matches, matches_log) = self.tables
        length_state = stream.read(lengths_log)
        offset_state = stream.read(offsets_log)
        match_state = stream.read(matches_log)
        taken = 0
        for number in range(count):
            offset_code = offsets[offset_state][0]
            value = (1 << offset_code) + stream.read(offset_code)
            base, bits = _MATCH_LENGTHS[matches[match_state][0]]
            match = base + stream.read(bits)
            base, bits = _LITERAL_LENGTHS[lengths[length_state][0]]
            length = base + stream.read(bits)
            if number + 1 < count:
                _, bits, base = lengths[length_state]
                length_state = base + stream.read(bits)
                _, bits, base = matches[match_state]
                match_state = base + stream.read(bits)
                _, bits, base = offsets[offset_state]
                offset_state = base + stream.read(bits)
            offset = self._offset(value, length)
            out += literals[taken : taken + length]
            taken += length
            if taken > len(literals) or offset > len(out) or offset <= 0:
                raise Invalid("zstd sequence: expected literals and an offset that are there, found others")
            start = len(out) - offset
            while match > 0:
                piece = out[start : start + min(match, offset)]
                out += piece
                match -= len(piece)
        if stream.left != 0:
            raise Invalid(f"zstd sequences: expected the stream's end, found {stream.left} bits")
        out += literals[taken:]

    def _offset(self, value, length):
        recent = self.recent
        if value > 3:
            offset = value - 3
            self.recent = [offset, recent[0], recent[1]]
            return offset
        which = value - 1 + (length == 0)
        offset = recent[0] - 1 if which == 3 else recent[which]
        if which:
            self.recent = [offset, recent[0], recent[2] if which == 1 else recent[1]]
        return offset


# 3.1.1.3.2.2
_PREDEFINED = [
    _table([4, 3] + [2] * 11 + [1, 1, 1] + [2] * 9 + [3, 2, 1, 1, 1, 1, 1] + [-1] * 4, 6),
    _table([1] * 6 + [2] * 3 + [1] * 15 + [-1] * 5, 5),
    _table([1, 4, 3] + [2] * 6 + [1] * 37 + [-1] * 7, 6),
]
