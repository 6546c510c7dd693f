"""BLAKE3 without a key, 32 bytes of output, and CRC-32C: the checksums of `docs/format.md`."""

_START = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
_PERMUTED = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
_MASK = 0xFFFFFFFF
_CHUNK_START, _CHUNK_END, _PARENT, _ROOT = 1, 2, 4, 8
_QUARTERS = (
    (0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
    (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14),
)  # fmt: skip


def _compress(chain, words, counter, length, flags):
    s = [*chain, *_START[:4], counter & _MASK, counter >> 32, length, flags]
    for _ in range(7):
        for number, (a, b, c, d) in enumerate(_QUARTERS):
            for word, first, second in ((words[2 * number], 16, 12), (words[2 * number + 1], 8, 7)):
                s[a] = s[a] + s[b] + word & _MASK
                x = s[d] ^ s[a]
                s[d] = (x >> first | x << 32 - first) & _MASK
                s[c] = s[c] + s[d] & _MASK
                x = s[b] ^ s[c]
                s[b] = (x >> second | x << 32 - second) & _MASK
        words = [words[at] for at in _PERMUTED]
    return [s[at] ^ s[at + 8] for at in range(8)]


def _words(block):
    block = block.ljust(64, b"\0")
    return [int.from_bytes(block[at : at + 4], "little") for at in range(0, 64, 4)]


def _chunk(data, counter, flags):
    chain = _START
    blocks = [data[at : at + 64] for at in range(0, len(data), 64)] or [b""]
    for number, block in enumerate(blocks):
        first = _CHUNK_START if number == 0 else 0
        last = _CHUNK_END | flags if number + 1 == len(blocks) else 0
        chain = _compress(chain, _words(block), counter, len(block), first | last)
    return chain


def _tree(data, counter, flags):
    if len(data) <= 1024:
        return _chunk(data, counter, flags)
    # The left side has the largest power of two of chunks that leaves something for the right one.
    left = 1024 << ((len(data) - 1) // 1024).bit_length() - 1
    children = _tree(data[:left], counter, 0) + _tree(data[left:], counter + left // 1024, 0)
    return _compress(_START, children, 0, 64, _PARENT | flags)


def blake3(data):
    """The hash, 32 bytes."""
    return b"".join(word.to_bytes(4, "little") for word in _tree(bytes(data), 0, _ROOT))


def _crc_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


_CRC = _crc_table()


def crc32c(data):
    """Castagnoli's CRC, as PostgreSQL has it."""
    crc, table = _MASK, _CRC
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ _MASK
