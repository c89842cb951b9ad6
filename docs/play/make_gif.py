"""Records a drive in a headless browser: it holds keys, and the page's two pictures become a gif.

python docs/play/make_gif.py [--model desk] [--out docs/play/drive.gif]
"""

import argparse
import base64
import io
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.chromium import chromium
from tests.support.service import running
from worldmodel.serving.play.run import play_app

# Keys to hold, and for how many blocks of four frames. The first bring both hands into the picture.
LEAD_IN = [("sk", 2)]
SCRIPT = [
    ("dj", 2),
    ("qu", 1),
    ("fh", 1),
    ("eo", 1),
    ("s", 1),
    ("i", 1),
    ("w", 1),
    ("k", 1),
    ("al", 1),
    ("ry", 1),
]
SIDE, TOP, GAP = 224, 22, 6  # pixels of a picture, of the line above it, between pictures
COLORS = 160  # one palette for all frames, so that nothing flickers
REEL = """
const [side, gap] = arguments, was = draw;
window.reel = [];
draw = () => {
  was();
  const made = document.createElement("canvas"), context = made.getContext("2d");
  made.width = 2 * side + gap; made.height = side;
  context.imageSmoothingQuality = "high";
  context.drawImage($("dream"), 0, 0, side, side);
  context.drawImage($("beside"), side + gap, 0, side, side);
  const keys = [...play.held[0], ...play.held[1]].map(code => code.slice(3)).join(" ");
  reel.push([made.toDataURL("image/png").slice(22), keys]);
};"""


def play_keys(browser: Any, script: list[tuple[str, int]]) -> None:
    """Hold the keys of each line for its number of blocks."""
    from selenium.webdriver import ActionChains

    for keys, blocks in script:
        until = browser.execute_script("return play.made") + 4 * blocks
        pressed, released = ActionChains(browser, duration=0), ActionChains(browser, duration=0)
        for key in keys:
            pressed.key_down(key)
            released.key_up(key)
        pressed.perform()
        while browser.execute_script("return play.made") < until:
            time.sleep(0.02)
        released.perform()


def record(browser: Any, seed: int) -> list[tuple[str, str]]:
    """Pictures (PNG as base64) and held keys of every displayed frame."""
    scenes = browser.execute_script(
        f"const scenes = play.scenes; play.touched = true; play.follow = false; reset({seed}); return scenes"
    )
    while browser.execute_script("return play.scenes") == scenes:
        time.sleep(0.05)
    play_keys(browser, LEAD_IN)
    browser.execute_script(REEL, SIDE, GAP)
    play_keys(browser, SCRIPT)
    return browser.execute_script("return reel")


def frame(data: str, keys: str) -> Image.Image:
    """Both pictures under their names, with the keys that were held."""
    pictures = Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")
    whole = Image.new("RGB", (pictures.width, pictures.height + TOP), "white")
    whole.paste(pictures, (0, TOP))
    draw, font = ImageDraw.Draw(whole), ImageFont.load_default(14)
    draw.text((2, 2), "Dream", "black", font)
    draw.text((SIDE + GAP + 2, 2), "Simulator", "black", font)
    draw.text((SIDE - 2, 2), keys, "#3f51b5", font, anchor="ra")
    return whole


def save(frames: list[Image.Image], out: Path, fps: float) -> None:
    """Save a gif with one palette for all frames."""
    sheet = Image.new("RGB", (frames[0].width, frames[0].height * len(frames)))
    for number, one in enumerate(frames):
        sheet.paste(one, (0, number * one.height))
    palette = sheet.quantize(COLORS, dither=Image.Dither.NONE)
    reduced = [one.quantize(palette=palette, dither=Image.Dither.NONE) for one in frames]
    out.parent.mkdir(parents=True, exist_ok=True)
    reduced[0].save(out, save_all=True, append_images=reduced[1:], duration=round(1000 / fps), loop=0)
    sys.stdout.write(f"{out}: {len(frames)} frames, {out.stat().st_size // 1024} kB\n")


def main() -> None:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="desk")
    parser.add_argument("--embodiment")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/play/drive.gif"))
    arguments = parser.parse_args()
    app = play_app(arguments.model, embodiment=arguments.embodiment, out="outputs/play")
    with running(app) as url, chromium() as browser:
        browser.get(url)
        while not browser.execute_script("return window.play && play.made > 0"):
            time.sleep(0.1)
        reel = record(browser, arguments.seed)
        fps = browser.execute_script("return play.info.fps")
    save([frame(*shown) for shown in reel], arguments.out, fps)


if __name__ == "__main__":
    main()
