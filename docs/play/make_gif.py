"""Records a drive in a headless browser: keys are pressed, the page's two pictures become a gif.

python docs/play/make_gif.py [--model desk] [--out docs/play/drive.gif]
"""

import argparse
import base64
import io
import sys
import time
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.support.chromium import chromium
from tests.support.service import running
from worldmodel.serving.play.run import play_app

# Both arms come down over the table, move, close and open.
SCRIPT = [("sk", 2), ("dj", 2), ("qu", 1), ("eo", 1), ("fh", 1), ("al", 2), ("ry", 1), ("wi", 1)]
FRAME = """
const side = 192, made = document.createElement("canvas");
made.width = 2 * side + 8; made.height = side;
const draw = made.getContext("2d");
draw.imageSmoothingQuality = "high";
draw.drawImage(document.getElementById("dream"), 0, 0, side, side);
draw.drawImage(document.getElementById("beside"), side + 8, 0, side, side);
return made.toDataURL("image/png").slice(22);"""


def record(browser: Any) -> list[Image.Image]:
    """The pictures of the page while the script is played."""
    from selenium.webdriver import ActionChains

    pictures = []
    for keys, blocks in SCRIPT:
        press = ActionChains(browser)
        for key in keys:
            press.key_down(key)
        press.perform()
        until = browser.execute_script("return play.made") + 4 * blocks
        last = -1
        while (made := browser.execute_script("return play.made - play.queue.length")) < until:
            if made != last:
                data = base64.b64decode(browser.execute_script(FRAME))
                pictures.append(Image.open(io.BytesIO(data)).convert("RGB"))
                last = made
            time.sleep(0.02)
        release = ActionChains(browser)
        for key in keys:
            release.key_up(key)
        release.perform()
    return pictures


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="desk")
    parser.add_argument("--embodiment")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("docs/play/drive.gif"))
    arguments = parser.parse_args()
    app = play_app(arguments.model, embodiment=arguments.embodiment, out="outputs/play")
    with running(app) as url, chromium() as browser:
        browser.get(url)
        while not browser.execute_script("return play.made > 0"):
            time.sleep(0.1)
        browser.execute_script(f"reset({arguments.seed})")
        time.sleep(1.0)
        pictures = record(browser)
    reduced = [picture.quantize(64, dither=Image.Dither.NONE) for picture in pictures]
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    reduced[0].save(
        arguments.out, save_all=True, append_images=reduced[1:], duration=120, loop=0, optimize=True
    )
    sys.stdout.write(f"{arguments.out}: {len(pictures)} frames, {arguments.out.stat().st_size // 1024} kB\n")


if __name__ == "__main__":
    main()
