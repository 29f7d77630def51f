"""Writes small pictures beside large ones, in the PPM form that needs no library; `tasks.py cat.ppm` adds some."""

import re
import sys
from pathlib import Path

from queue_core import App, Backoff, Dead, Retry, Timeout

app = App("towline.yaml")


@app.function(queue="thumbs", timeout="30s", retry=Backoff("1s", "5m", attempts=5), on={Timeout: Retry("1m")})
def resize(path: Path, width: int = 200) -> None:
    data = path.read_bytes()
    if not (head := re.match(rb"P6\s+(\d+)\s+(\d+)\s+255\s", data)):
        raise Dead(f"not a PPM picture: {path}")  # no retry can help
    columns, rows = int(head[1]), int(head[2])
    height = max(1, rows * width // columns)
    starts = [head.end() + 3 * columns * (y * rows // height) for y in range(height)]
    offsets = [3 * (x * columns // width) for x in range(width)]
    pixels = b"".join(data[start + x : start + x + 3] for start in starts for x in offsets)
    path.with_suffix(f".{width}.ppm").write_bytes(b"P6 %d %d 255\n" % (width, height) + pixels)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        resize.add(Path(name), width=100)
