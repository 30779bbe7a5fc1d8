# SPDX-License-Identifier: Apache-2.0
"""Take the picture of /depcache/ui: depcache-tiny answers questions of the demo's graph meanwhile.

    make screenshot                          docs/ui.png
    python scripts/screenshot.py --out FOLDER    wide, narrow and dark, to look at

Needs the server extra, Debian's `chromium` and `chromium-driver`, and for the letters that the
picture has `fonts-inter`. The device has little room, so that something is in main memory.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from depcache.client import Client  # noqa: E402
from depcache.demo.sample import load_questions, load_triples  # noqa: E402
from depcache.graph.retrieval import Retriever  # noqa: E402
from depcache.graph.stores import open_store  # noqa: E402
from tests.helpers.browser import open_browser, set_scheme, set_size  # noqa: E402
from tests.helpers.server import start_serve  # noqa: E402

FLAGS = ("--max-total-tokens", "4096")
SETTINGS = {"DEPCACHE_HOST_GB": "0.05", "DEPCACHE_LOAD_POLICY": "always"}
NUM_QUESTIONS, NUM_BEFORE = 40, 12
WIDE, NARROW = (1280, 1246), (360, 780)

# The prompt of the newest whose context came from the most different places.
CHOOSE_MIXED = """
  const options = [...document.querySelectorAll('[role=option]')];
  const places = (option) => option.querySelectorAll('.stripe').length;
  options.slice(0, 6).reduce((a, b) => (places(b) > places(a) ? b : a)).click();
  document.activeElement.blur();
  scrollTo(0, 0);
"""


def ask_questions(client: Client, questions: list[str]) -> None:
    """Ask, one after the other, with the facts that the graph has for each."""
    with open_store("networkx:") as store:
        store.upsert(load_triples())
        retriever = Retriever(store, pruner="words", max_hops=3, max_paths=30)
        for question in questions:
            client.ask(retriever.retrieve(question, by_relevance=True), question, max_tokens=8)


def take(driver: Any, colors: int = 160) -> bytes:
    """A PNG of what is seen, with few colours: it is flat, and README pays for every byte."""
    from PIL import Image

    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    packed = io.BytesIO()
    picture.quantize(colors, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def wait_for_prompts(driver: Any, num: int) -> None:
    """Wait until the page lists at least so many."""
    while True:
        found = driver.execute_script("return document.querySelectorAll('[role=option]').length")
        if found >= num:
            return
        time.sleep(0.2)


def main() -> None:
    """Start a server, ask, look, and write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="a folder for all pictures; else docs/ui.png")
    out = parser.parse_args().out
    os.environ.update(SETTINGS)
    asked = [question.text for question in load_questions()][:NUM_QUESTIONS]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with (
            start_serve("depcache-tiny", *FLAGS, log=log) as url,
            open_browser(*WIDE, scale=1.5) as driver,
            Client(url) as client,
        ):
            ask_questions(client, asked[:NUM_BEFORE])
            driver.get(f"{url}/depcache/ui")
            while "Watching" not in driver.find_element("id", "watch-state").text:
                time.sleep(0.2)
            ask_questions(client, asked)
            wait_for_prompts(driver, 20)
            driver.execute_script(CHOOSE_MIXED)
            time.sleep(2)
            pictures = {"ui.png": take(driver)}
            if out is not None:
                set_scheme(driver, "dark")
                pictures["dark.png"] = take(driver)
                set_scheme(driver, "light")
                height = driver.execute_script("return document.body.scrollHeight")
                set_size(driver, WIDE[0], height)
                driver.find_element("id", "example").click()
                driver.find_element("css selector", "#try-form .main").click()
                time.sleep(2)
                height = driver.execute_script("return document.body.scrollHeight")
                set_size(driver, WIDE[0], height)
                pictures["whole.png"] = take(driver)
                set_size(driver, *NARROW)
                time.sleep(1)
                height = driver.execute_script("return document.body.scrollHeight")
                set_size(driver, NARROW[0], height)
                pictures["narrow.png"] = take(driver)
    target = out or ROOT / "docs"
    target.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        (target / name).write_bytes(picture)
        print(f"{target / name}: {len(picture):,} bytes")


if __name__ == "__main__":
    main()
