#!/usr/bin/env python3
"""Decodes the columns of a compressed file, from `docs/format.md` alone.

    decode.py FILE...

An independent reading of the specification: nothing of the Rust code is used, and nothing but the standard library. It
parses the container and checks every checksum in it, decodes every column of every member, and prints for each its
number, class, form, bytes and CRC-32C, one per line. `crates/walden-codec/examples/columns.rs` prints the same lines.

What the columns mean, the model of records, is not decoded here.
"""

import sys

import container
import parts


def lines_of(name, data):
    """What is printed of a file."""
    file = container.parse(data)
    decoder = None
    for member in file.members:
        yield f"member {member.number} {member.form} {member.name.decode()}"
        if member.keyframe:
            decoder = parts.Decoder()
        if member.form == "bytes":
            for number, (length, content) in enumerate(member.pieces):
                # Each piece is decoded by itself.
                piece = parts.Decoder().piece(content, length)
                yield f"piece {number} {len(piece)} {container.crc32c(piece):08X}"
                member.add_original(piece)
            member.check_original()
            continue
        ((length, content),) = member.pieces
        for column, bytes_ in decoder.chunk(content, container.most_in_columns(length)):
            label = f"column {column.number} class {column.klass} form {column.form}"
            yield f"{label} {len(bytes_)} {container.crc32c(bytes_):08X}"


def main():
    for name in sys.argv[1:]:
        with open(name, "rb") as file:
            data = file.read()
        try:
            for line in lines_of(name, data):
                print(line)
        except ValueError as error:
            sys.exit(f"{name}: {error}")


if __name__ == "__main__":
    main()
