"""docs/run.gif: a training run as its user sees it in a terminal.

    pip install pyte && python docs/record.py

Needs pyte (a terminal in memory) and pillow, which matplotlib brings along.
"""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyte
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont

COMMAND = ["train", "--env-id", "CartPole-v1", "--output-dir", "runs/cartpole", "--track", "none"]
COLUMNS, ROWS, FONT_SIZE, FRAME_SECONDS = 120, 14, 15, 0.25
COLORS = {"default": "#d8dee9", "green": "#a3be8c", "cyan": "#88c0d0", "magenta": "#b48ead"}
COLORS |= {"red": "#bf616a", "blue": "#81a1c1", "brown": "#ebcb8b", "yellow": "#ebcb8b"}
BACKGROUND = "#2e3440"


def drawn(screen: pyte.Screen, font: ImageFont.FreeTypeFont) -> Image.Image:
    width, height = int(font.getlength("M")), int(FONT_SIZE * 1.35)
    image = Image.new("RGB", (width * (COLUMNS + 2), height * (ROWS + 1)), BACKGROUND)
    draw = ImageDraw.Draw(image)
    for row in range(ROWS):
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            if cell.data.strip():
                color = COLORS.get(cell.fg) or (f"#{cell.fg}" if len(cell.fg) == 6 else "#d8dee9")
                place = width * (column + 1), height * (row + 0.5)
                draw.text(place, cell.data, color, font)
    return image


def record(folder: str) -> list[Image.Image]:
    """A frame every quarter of a second while the command runs."""
    font_file = Path(get_data_path(), "fonts", "ttf", "DejaVuSansMono.ttf")
    font = ImageFont.truetype(str(font_file), FONT_SIZE)
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm-256color"}
    stream.feed(f"$ paceline {' '.join(COMMAND[:3])}\r\n".encode())
    frames = [drawn(screen, font)]
    command = [sys.executable, "-m", "paceline", *COMMAND]
    with subprocess.Popen(
        command, cwd=folder, env=os.environ | size, stdin=theirs, stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        due = time.monotonic()
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.02)[0]:
                try:
                    stream.feed(os.read(ours, 65536))
                except OSError:  # the other end is closed
                    break
            if time.monotonic() > due:
                due += FRAME_SECONDS
                frames.append(drawn(screen, font))
    frames.append(drawn(screen, font))
    return frames


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        frames = record(folder)
    palette = [frame.quantize(32, dither=Image.Dither.NONE) for frame in frames]
    lengths = [int(1000 * FRAME_SECONDS)] * (len(frames) - 1) + [4000]
    palette[0].save(
        Path(__file__).with_name("run.gif"),
        save_all=True,
        append_images=palette[1:],
        duration=lengths,
        loop=0,
        optimize=True,
    )
    print(f"docs/run.gif: {len(frames)} frames")


if __name__ == "__main__":
    main()
