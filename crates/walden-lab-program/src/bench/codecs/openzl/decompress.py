import sys

import openzl.ext as zl

(content,) = zl.DCtx().decompress(sys.stdin.buffer.read())
sys.stdout.buffer.write(content.content.as_bytes())
