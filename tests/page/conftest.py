"""A real browser, a server for each test, and runs to look at.

`make test-browser` installs what this needs. Without it, nothing is collected.
"""

import contextlib
import importlib.util
import shutil
import threading

import numpy as np
import pytest
from browsed import train

import spoolax
from spoolax.view.server import View

IS_THERE = importlib.util.find_spec("playwright") is not None
collect_ignore_glob = ["conftest.py"] if IS_THERE else ["*"]

PATIENCE = 90_000  # Milliseconds. The machine may be busy, and a hundred million numbers are drawn.


@pytest.fixture(scope="session")
def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "There is no Chromium: `make test-browser` installs it, if it can."
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        with contextlib.closing(
            playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        ) as browser:
            yield browser


@pytest.fixture
def page(chromium, serve):
    """A new tab, in which nothing may go wrong."""
    del serve  # It ends after this.
    context = chromium.new_context(viewport={"width": 1280, "height": 800}, accept_downloads=True)
    context.set_default_timeout(PATIENCE)
    page, wrong = context.new_page(), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda one: wrong.append(one.text) if one.type == "error" else None)
    page.wrong = wrong
    yield page
    context.close()
    assert not wrong


@pytest.fixture
def serve():
    """Start a server for some places, and return its address."""
    with contextlib.ExitStack() as stack:

        def start(*places):
            view = View(places)
            thread = threading.Thread(target=view.serve)
            thread.start()
            stack.callback(thread.join)
            stack.callback(view.stop)
            return view

        yield start


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of several kinds: nobody may change them."""
    directory = tmp_path_factory.mktemp("browser") / "runs"
    for rate in (0.1, 0.2, 0.4):
        train(directory, rate)
    with spoolax.run("field", {"size": 16}, directory=directory, show=False) as run:
        grid = np.linspace(0, 6, 16)
        for i in range(20):
            image = np.full((8, 8, 3), 12 * i, np.uint8)
            run.log({"field": np.sin(grid[:, None] + i) * np.cos(grid), "image": image}, i)
    return directory


@pytest.fixture
def look(page, serve):
    """Open the page for some places."""

    def opened(*places, more=""):
        view = serve(*places)
        page.goto(view.url + more)
        page.wait_for_selector("html[data-ready]")
        return page

    return opened
