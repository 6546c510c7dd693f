import sys

import openzl.ext as zl

compressor = zl.Compressor()
compressor.set_parameter(zl.CParam.FormatVersion, zl.MAX_FORMAT_VERSION)
compressor.set_parameter(zl.CParam.CompressionLevel, int(sys.argv[1]))
compressor.select_starting_graph(zl.graphs.Compress()(compressor))
context = zl.CCtx()
context.ref_compressor(compressor)
# Input refers to the bytes and does not keep them.
content = bytearray(sys.stdin.buffer.read())
sys.stdout.buffer.write(context.compress([zl.Input(zl.Type.Serial, content)]))
