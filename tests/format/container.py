"""Files, frames, members and packs: "A file" to "A pack" of `docs/format.md`.

Every checksum is checked, also of frames that a reader may leave out. What the text leaves to later versions is left out in a file
of such a version, and must be zero or missing in one of this version.
"""

from checksums import blake3, crc32c
from parts import Cursor, Damage

MAGIC = b"\x8aWLDN\r\n\x1a"
FRAME_MAGIC = b"\xf7Wlz"
VERSION = 1
# The latest version whose files are decoded. Version 2 adds nothing to the container or to parts.
READER = 2
HEAD, PIECE, END, INDEX, FOOTER = 1, 2, 3, 4, 5
# The first kind of those that a reader may leave out, and the only one of them in this version.
SUMMARY = 128
MIB = 1 << 20
KEYFRAME = 1
# BLAKE3 in Python takes about a second for 100 kB.
MAX_HASHED = 200_000


def most_in_columns(length):
    """What all columns of a member of so many bytes may weigh together."""
    return 4 * length + 65536


def bind(before, head, end):
    """The binding of a member with that head and the first 40 bytes of that end."""
    return blake3(before + len(head).to_bytes(8, "little") + head + end[:40])


def expect(what, expected, found):
    if expected != found:
        raise Damage(f"{what}: expected {expected!r}, found {found!r}")


class Frame:
    def __init__(self, cursor, file, number):
        self.offset = cursor.at
        header = cursor.take(40)
        expect(f"the checksum of the frame at {self.offset}", crc32c(header[:36]), int.from_bytes(header[36:], "little"))
        fields = Cursor(header)
        expect("a frame's magic", FRAME_MAGIC, fields.take(4))
        self.kind = fields.number(1)
        file.leave_out("a frame's reserved bytes", fields.take(3))
        expect("a frame's file number", file.file_number, fields.number(8))
        self.number = fields.number(8)
        expect("a frame's number", number, self.number)
        length, checksum = fields.number(8), fields.number(4)
        self.content = cursor.take(length)
        expect(f"the checksum of the content of the frame at {self.offset}", crc32c(self.content), checksum)


class Member:
    def __init__(self, file, frame):
        self.file, self.frame, self.head = file, frame, frame.content
        fields = Cursor(frame.content)
        self.number = fields.number(8)
        form = fields.number(1)
        if form > 1:
            raise Damage(f"a member's form: expected 0 or 1, found {form}")
        self.form = ("bytes", "records")[form]
        flags = fields.number(1)
        expect("flag 8 of a member", 0, flags & 8)
        file.leave_out("the upper flags of a member", [flags & 0xF0])
        self.keyframe = bool(flags & KEYFRAME)
        if form == 0:
            expect("the keyframe flag of form bytes", True, self.keyframe)
        file.leave_out("a member's reserved bytes", fields.take(2))
        self.timeline, self.lsn, self.segment_size = fields.number(4), fields.number(8), fields.number(4)
        fields.take(16)
        self.name = fields.take(fields.number(2))
        file.leave_out("bytes after a member's name", [fields.left()])
        self.pieces = []
        self.original = bytearray()

    def add_piece(self, frame):
        fields = Cursor(frame.content)
        length = fields.number(8)
        if self.form == "records":
            expect("pieces of form records before", 0, len(self.pieces))
            expect("the length of a piece of form records", self.segment_size, length)
        elif length == 0 or self.pieces and self.pieces[-1][0] < 1 << 16:
            raise Damage("a member: expected pieces of 1 byte or more, and of 64 KiB or more before the last")
        self.pieces.append((length, fields.rest()))

    def finish(self, frame, end_offset):
        self.end, self.stored = frame.content[:72], end_offset - self.frame.offset
        fields = Cursor(frame.content)
        self.length, self.hash, self.binding = fields.number(8), fields.take(32), fields.take(32)
        self.file.leave_out("bytes after a member's binding", [fields.left()])
        expect("the length of a member", self.length, sum(length for length, _ in self.pieces))

    def add_original(self, piece):
        self.original += piece

    def check_original(self):
        """Compares what was decoded with the member's hash."""
        expect("the length of an original", self.length, len(self.original))
        if len(self.original) <= MAX_HASHED:
            expect(f"the BLAKE3 of {self.name.decode()}", self.hash.hex(), blake3(self.original).hex())


class File:
    def __init__(self, data):
        cursor = Cursor(data)
        header = cursor.take(40)
        expect("the file's magic", MAGIC, header[:8])
        expect("the checksum of the file's header", crc32c(header[:36]), int.from_bytes(header[36:], "little"))
        fields = Cursor(header[8:])
        self.version, least_reader = fields.number(2), fields.number(2)
        if least_reader > READER:
            raise Damage(f"least reader: expected at most {READER}, found {least_reader}")
        form, _ = fields.number(1), fields.number(1)
        if form not in (1, 2):
            raise Damage(f"the file's form: expected 1 or 2, found {form}")
        self.is_pack = form == 2
        self.leave_out("the header's reserved bytes", fields.take(2))
        self.file_number = fields.number(8)
        self.memory, self.blocks = fields.number(4) * MIB, fields.number(4)
        self.leave_out("the header's reserved bytes", fields.take(4))
        self.members, self.frames = [], 0
        self.binding = blake3(header)
        self._read(cursor)

    def leave_out(self, what, numbers):
        """Leaves out what a later version may have put there; in this version, there are zeros or nothing."""
        if self.version <= VERSION:
            expect(what, [0] * len(numbers), list(numbers))

    def _frame(self, cursor):
        frame = Frame(cursor, self, self.frames)
        self.frames += 1
        if frame.kind > SUMMARY:
            self.leave_out("a frame's kind", [frame.kind])
        return frame

    def _next(self, cursor):
        """The next frame that is not of a kind to be left out."""
        while (frame := self._frame(cursor)).kind >= SUMMARY:
            pass
        return frame

    def _read(self, cursor):
        while self.is_pack or not self.members:
            frame = self._next(cursor)
            if frame.kind == INDEX and self.is_pack:
                return self._finish_pack(frame, cursor)
            expect("a frame's kind", HEAD, frame.kind)
            member = Member(self, frame)
            expect("a member's number", len(self.members), member.number)
            while (frame := self._next(cursor)).kind == PIECE:
                member.add_piece(frame)
            expect("a frame's kind", END, frame.kind)
            member.finish(frame, cursor.at)
            self.binding = bind(self.binding, member.head, member.end)
            expect(f"the binding of {member.name.decode()}", self.binding.hex(), member.binding.hex())
            self.members.append(member)
        while cursor.left():
            expect("a frame after the member", True, self._frame(cursor).kind >= SUMMARY)

    def _finish_pack(self, frame, cursor):
        index = Cursor(frame.content)
        expect("the index's number of members", len(self.members), index.number(8))
        for member in self.members:
            found = [index.number(8) for _ in range(3)]
            expect("an entry of the index", [member.frame.offset, member.frame.number, member.stored], found)
            expect("an end in the index", member.end, index.take(72))
            expect("a head in the index", member.head, index.take(index.number(4)))
        index.end("the index")
        footer = self._next(cursor)
        expect("a frame's kind", FOOTER, footer.kind)
        fields = Cursor(footer.content)
        expect("the footer", [frame.offset, len(self.members)], [fields.number(8), fields.number(8)])
        expect("the footer's binding", self.binding.hex(), fields.take(32).hex())
        expect("the footer's hash of the index", blake3(frame.content).hex(), fields.take(32).hex())
        fields.end("the footer")
        cursor.end("the file")


def parse(data):
    """The file, of which everything but the content of pieces is checked."""
    return File(data)
