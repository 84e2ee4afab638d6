"""The page in a browser, as somebody uses it."""

import json
import os
import shutil
import subprocess
import sys
import urllib.parse

import numpy as np
import pytest
from browsed import train

import spoolax

pytestmark = pytest.mark.once


def panel(page, key):
    found = page.locator(f'.panel[data-key="{key}"]')
    found.scroll_into_view_if_needed()
    page.wait_for_function(
        'key => { const p = document.querySelector(`.panel[data-key="${key}"]`);'
        " return p && !p.classList.contains('loading') && p.panel.drawnAt > 0 }",
        arg=key,
    )
    return found


def curves(page, key, what="y"):
    """The points that a panel draws, of each curve that has a name."""
    panel(page, key)
    return page.evaluate(
        """([key, what]) => document.querySelector(`.panel[data-key="${key}"]`).panel.plot.data
            .filter(t => t.name).map(t => Array.from(t[what]))""",
        [key, what],
    )


def until(page, key, test):
    page.wait_for_function(
        f"""key => {{ const p = document.querySelector(`.panel[data-key="${{key}}"]`)?.panel;
            return p?.plot.data && ({test})(p.plot.data.filter(t => t.name)) }}""",
        arg=key,
    )


def forgive_missing(page):
    """A browser says when something was not there any more."""
    page.wrong[:] = [one for one in page.wrong if "404 (Not Found)" not in one]


def test_curves_of_all_runs_are_drawn(look, runs):
    page = look(runs)
    assert page.locator("#runs tbody tr").count() == 4
    drawn = curves(page, "train/loss")
    assert len(drawn) == 3
    want = sorted(np.exp(-rate * np.arange(50)).tolist() for rate in (0.1, 0.2, 0.4))
    assert np.allclose(sorted(drawn), want)
    assert page.locator("#live").inner_text() == "live"


def test_runs_are_chosen_filtered_and_sorted(look, runs):
    page = look(runs)
    page.locator("#runs tbody tr", has_text="rate=0.4").locator("input").uncheck()
    until(page, "train/loss", "t => t.length === 2")
    page.get_by_role("button", name="none", exact=True).click()
    assert "No run is chosen" in page.locator("#panels").inner_text()
    page.get_by_role("button", name="latest").click()
    page.locator("#filter").fill("rate>0.15 moons")
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 2")
    until(page, "train/loss", "t => t.length === 2")
    page.locator("#filter").fill("no such run")
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 0")
    page.locator("#filter").fill("")
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 4")
    page.locator("#wide").click()
    page.get_by_role("button", name="rate", exact=True).click()
    rates = page.locator("#runs td.setting.number").all_inner_texts()
    assert rates[:3] == ["0.1", "0.2", "0.4"]
    page.get_by_role("button", name="rate ↑").click()
    assert page.locator("#runs td.setting.number").all_inner_texts()[:3] == ["0.4", "0.2", "0.1"]
    page.locator("#runs td.setting", has_text="0.2").first.click()
    assert page.locator("#filter").input_value() == "rate=0.2"
    assert page.locator("#runs tbody tr").count() == 1
    page.get_by_role("button", name="Hide status").click()
    assert page.locator("#runs th").filter(has_text="status").count() == 0


def test_axes_smoothing_and_means(look, runs):
    page = look(runs)
    panel(page, "train/loss")
    page.keyboard.press("l")
    until(page, "train/loss", "t => t.length")
    kind = "document.querySelector('.panel[data-key=\"train/loss\"]').panel.plot.layout.yaxis.type"
    page.wait_for_function(f"() => {kind} === 'log'")
    page.locator("#smooth").fill("0.9")
    until(page, "train/loss", "t => t.length === 6")
    page.locator("#smooth").fill("0")
    page.locator("#group").select_option("*")
    until(page, "train/loss", "t => t.length === 1")
    (mean,) = curves(page, "train/loss")
    want = np.mean([np.exp(-rate * np.arange(50)) for rate in (0.1, 0.2, 0.4)], axis=0)
    assert np.allclose(mean, want)
    page.locator("#group").select_option("rate")
    until(page, "train/loss", "t => t.length === 3")
    page.locator("#axis").select_option("time")
    until(page, "train/loss", "t => t[0].x[49] < 40")


def test_zooming_reads_at_the_resolution_of_the_window(look, tmp_path):
    count = 300_000
    values = np.zeros(count, np.float32)
    values[123_456] = 7.0  # A spike of one point.
    logs = spoolax.LogDict({"x": values}, steps={"step": {"x": np.arange(count)}}, stacked=("x",))
    spoolax.save(tmp_path / "long.h5", logs)
    page = look(tmp_path)
    (drawn,) = curves(page, "x")
    assert len(drawn) < 5000
    assert max(drawn) == 7.0
    panel(page, "x")
    zoom = "document.querySelector('.panel[data-key=\"x\"]').panel.plot"
    page.evaluate(
        f"Plotly.relayout({zoom}, {{'xaxis.range[0]': 123400, 'xaxis.range[1]': 123500}})"
    )
    until(page, "x", "t => t[0].x.length < 110 && t[0].x.length > 90")
    (steps,) = curves(page, "x", "x")
    assert steps == list(map(float, range(123_399, 123_502)))
    assert "zoom" in urllib.parse.unquote(page.url)
    page.evaluate(f"Plotly.relayout({zoom}, {{'xaxis.autorange': true}})")
    until(page, "x", "t => t[0].x.length > 300")


def test_arrays_have_heat_maps_histograms_and_frames(look, runs):
    page = look(runs)
    one = panel(page, "weights")
    shape = """() => { const t = document.querySelector('.panel[data-key="weights"]').panel
        .plot.data?.[0]; return t?.type === 'heatmap' ? [t.z.length, t.x.length] : null }"""
    assert page.evaluate(shape) == [12, 50]
    one.get_by_label("How weights is drawn").select_option("histogram")
    page.wait_for_function(f"() => JSON.stringify(({shape})()) === '[48,50]'")
    one.get_by_label("How weights is drawn").select_option("lines")
    until(page, "weights", "t => t.length === 3")
    frames = panel(page, "field")
    assert "step 19 · 20 of 20" in frames.locator("output").inner_text()
    frames.get_by_label("Frame of field").fill("3")
    page.wait_for_function(
        "() => document.querySelector('[data-key=field] output').textContent.startsWith('step 3 ')"
    )
    assert page.evaluate("document.querySelector('[data-key=field] canvas').width") == 16
    panel(page, "image").get_by_label("Frame of image").fill("10")
    page.wait_for_function(
        """() => { const c = document.querySelector('[data-key=image] canvas');
        return c.getContext('2d').getImageData(0, 0, 1, 1).data[0] === 120 }"""
    )


def test_what_is_written_meanwhile_appears(look, tmp_path):
    page = look(tmp_path)
    assert "No runs here yet" in page.locator("#panels").inner_text()
    code = """if True:
        import sys, spoolax
        with spoolax.run("live", directory=sys.argv[1], show=False) as run:
            for i in range(10**6):
                run.log({"x": i}, i)
                if i % 10 == 9:
                    run.loggers[0].commit()
                    if not sys.stdin.readline():
                        break
    """
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
        until(page, "x", "t => t.length === 1 && t[0].y.length === 10")
        assert page.locator("#runs .status").inner_text() == "running"
        for count in (20, 30):
            writer.stdin.write("\n")
            writer.stdin.flush()
            until(page, "x", f"t => t[0].y.length === {count}")
        writer.stdin.close()
        page.wait_for_function(
            "() => document.querySelector('#runs .status').textContent === 'finished'"
        )
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as writer:
        page.wait_for_function("() => document.querySelectorAll('#runs .running').length === 1")
        writer.kill()
        page.wait_for_function("() => document.querySelectorAll('#runs .crashed').length === 1")
    train(tmp_path)
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 3")
    until(page, "train/loss", "t => t[0].y.length === 50")


def test_a_link_shows_the_same_in_another_tab(look, runs):
    page = look(runs)
    page.locator("#keys").fill("loss")
    page.wait_for_function("() => document.querySelectorAll('.panel').length === 1")
    page.locator("#logy").click()
    page.locator("#runs tbody tr", has_text="rate=0.4").locator("input").uncheck()
    until(page, "train/loss", "t => t.length === 2")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector("html[data-ready]")
    until(other, "train/loss", "t => t.length === 2")
    assert other.locator(".panel").count() == 1
    assert other.locator("#logy").get_attribute("aria-pressed") == "true"
    assert page.locator(".panel").count() == 1  # It is still there.


def test_downloads(look, runs):
    page = look(runs)
    one = panel(page, "train/loss")
    saved = {}
    for kind in ("csv", "png", "svg"):
        with page.expect_download() as download:
            one.locator("button", has_text=kind).click()
        saved[kind] = download.value.path().read_bytes()
    rows = saved["csv"].decode().splitlines()
    assert rows[0] == "run,step,value"
    assert len(rows) == 151
    assert saved["png"].startswith(b"\x89PNG")
    assert b"<svg" in saved["svg"][:200]


def test_the_keyboard_is_enough(look, runs):
    page = look(runs)
    panel(page, "train/loss")
    page.keyboard.press("?")
    assert "logarithmic y axis" in page.locator("dialog").inner_text()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Space")
    until(page, "train/loss", "t => t.length === 2")
    page.keyboard.press("/")
    page.keyboard.type("accuracy")
    page.wait_for_function("() => document.querySelectorAll('.panel').length === 1")
    page.keyboard.press("Escape")
    page.keyboard.press("]")
    assert page.locator("#smoothness").inner_text() == "0.05"
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    page.keyboard.press("w")
    assert page.locator("body.wide").count() == 1
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "open":
            break
    page.keyboard.press("Enter")
    assert "settings" in page.locator("dialog").inner_text()


def test_files_that_are_no_runs_are_named(look, tmp_path):
    path = train(tmp_path, steps=5)
    (tmp_path / "text.h5").write_text("hello")
    (tmp_path / "<img src=x onerror=alert(1)>.jsonl").write_text("[1]")
    cut = train(tmp_path, steps=5, name="cut")
    os.truncate(cut / "log.h5", 3000)
    page = look(tmp_path)
    text = page.locator("#skipped").inner_text()
    assert "text.h5: " in text
    assert "is not an HDF5 file" in text
    assert "<img src=x" in text
    assert page.locator("#skipped img").count() == 0
    assert len(curves(page, "train/loss")) == 1
    shutil.rmtree(path)
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 0")
    forgive_missing(page)


def test_a_run_that_disappears_while_it_is_shown(look, tmp_path):
    train(tmp_path, steps=5, name="a")
    gone = train(tmp_path, steps=6, name="b")
    page = look(tmp_path)
    assert len(curves(page, "train/loss")) == 2
    (gone / "log.h5").unlink()
    page.wait_for_function("() => document.querySelectorAll('#runs tbody tr').length === 1")
    until(page, "train/loss", "t => t.length === 1")
    forgive_missing(page)


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_nothing_sticks_out(chromium, serve, runs, width, scheme):
    view = serve(runs)
    context = chromium.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    page.goto(view.url)
    page.wait_for_selector("html[data-ready]")
    panel(page, "train/loss")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    context.close()


def test_many_runs(look, tmp_path):
    """50 runs with 20 keys and 100000 points each."""
    count = 100_000
    steps, wave = np.arange(count), np.sin(np.arange(count) / 5000)
    keys = [f"group{i % 4}/key{i}" for i in range(20)]
    for number in range(50):
        logs = spoolax.LogDict(
            {key: (wave * number).astype(np.float32) for key in keys},
            steps={"step": dict.fromkeys(keys, steps)},
            stacked=tuple(keys),
        )
        spoolax.save(tmp_path / f"run-{number:02}.h5", logs)
    page = look(tmp_path)
    page.get_by_role("button", name="all", exact=True).click()
    until(page, "group0/key0", "t => t.length === 50")
    assert page.locator(".panel").count() == 20
    assert json.dumps(curves(page, "group0/key0", "x"))


@pytest.mark.parametrize(
    "state",
    [
        {"runs": 5, "filter": None, "sort": 5, "keys": 5},
        {"closed": 5, "hidden": 5, "wide": "yes", "large": None, "kinds": None, "zoom": None},
        {"zoom": {"train/loss": "a"}, "smooth": "<b>", "constructor": 1, "x": "nothing"},
    ],
)
def test_links_with_anything_in_them(look, runs, state):
    page = look(runs, more=f"#{urllib.parse.quote(json.dumps(state))}")
    assert page.locator("#runs tbody tr").count() == 4
    assert len(curves(page, "train/loss")) == 3


def test_hostile_names_are_names(look, tmp_path):
    names = ("constructor", "__proto__", "<b>bold</b>", "a b", "x=y")
    config = dict.fromkeys(names, 1) | {"none": None}
    with spoolax.run("<i>run</i>", config, directory=tmp_path, show=False) as run:
        for i in range(3):
            run.log({name: float(i) for name in names}, i)
    page = look(tmp_path)
    page.wait_for_function("() => document.querySelectorAll('.panel').length === 5")
    for name in ("constructor", "__proto__", "a b"):
        assert curves(page, name) == [[0, 1, 2]]
    page.locator("#wide").click()
    for value in ("constructor", "a b", "none"):
        heading = page.locator("#runs th").all_inner_texts()
        column = [text.strip(" ✕\n") for text in heading].index(value)
        page.locator("#runs tbody tr td").nth(column).click()
        assert page.locator("#runs tbody tr").count() == 1
        page.locator("#filter").fill("")
        page.wait_for_function("() => !document.querySelector('#filter').value")


def test_what_is_typed_stays_while_a_run_is_written(look, tmp_path):
    page = look(tmp_path)
    with spoolax.run("live", directory=tmp_path, show=False) as run:
        typed = "no such run at all"
        page.locator("#filter").focus()
        for i, letter in enumerate(typed):
            run.log({"x": i}, i)
            run.loggers[0].commit()
            page.keyboard.type(letter)
            page.wait_for_timeout(200)
        page.wait_for_timeout(2500)
        assert page.locator("#filter").input_value() == typed
