"""Make the pictures of the page that the docs show: `make screenshots`."""

import json
import shutil
import tempfile
import threading
import urllib.parse
from pathlib import Path

import numpy as np
from playwright.sync_api import sync_playwright

import spoolax
from spoolax.view.server import View

IMAGES = Path(__file__).parents[2] / "docs" / "images"
SIZE = {"width": 1280, "height": 760}


def make_runs(directory):
    """Nine runs: three rates, three seeds each."""
    grid = np.linspace(0, 6, 48)
    for rate in (0.03, 0.1, 0.3):
        for seed in range(3):
            random = np.random.default_rng(seed)
            config = {"rate": rate, "seed": seed, "optimizer": {"name": "adam", "decay": 0.01}}
            with spoolax.run("moons", config, directory=directory, show=False) as run:
                for i in range(400):
                    decay, noise = np.exp(-rate * i / 12), random.normal(size=2)
                    wave = np.sin(grid[:, None] + i / 20) * np.cos(grid + i / 40)
                    run.log(
                        {
                            "train/loss": decay * (1 + 0.1 * seed) + 0.02 * abs(noise[0]),
                            "train/accuracy": 1 - 0.5 * decay + 0.01 * noise[1],
                            "test/loss": decay * (1 + 0.1 * seed) + 0.06,
                            "weights": np.sin(np.arange(24) / 4 + i / 80),
                            "field": wave,
                        },
                        i,
                    )


def main():
    directory = Path(tempfile.mkdtemp()) / "runs"
    make_runs(directory)
    view = View([directory])
    serving = threading.Thread(target=view.serve)
    serving.start()
    with sync_playwright() as playwright:
        found = shutil.which("chromium") or shutil.which("chromium-browser")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, scheme, state in (
            ("view", "light", {"group": "rate"}),
            ("view-table", "dark", {"wide": True, "sort": "test/loss"}),
        ):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)
            page.goto(view.url)
            page.wait_for_selector("html[data-ready]")
            listed = page.evaluate("fetch('api/runs').then(answer => answer.json())")
            state["runs"] = [run["id"] for run in listed["runs"]]
            page.goto(f"{view.url}#{urllib.parse.quote(json.dumps(state))}")
            page.reload()
            page.wait_for_selector("html[data-ready]")
            page.wait_for_timeout(2000)
            page.screenshot(path=IMAGES / f"{name}.png")
            page.close()
        browser.close()
    view.stop()
    serving.join()


if __name__ == "__main__":
    main()
