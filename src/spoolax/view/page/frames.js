// Images and 2-D fields of one run, one at a time.

import { ask, numbers } from "./api.js";
import { shade } from "./palette.js";
import { save } from "./plot.js";
import { element, number, toast } from "./words.js";

const A_SECOND = 12; // Frames.

function controls(panel) {
  const box = element("div", { class: "frames" });
  const canvas = element("canvas", { role: "img" });
  const slider = element("input", { type: "range", min: 0, value: 0, "aria-label": `Frame of ${panel.key}` });
  const output = element("output");
  const play = element("button", { type: "button", title: "Play" }, "▶");
  slider.addEventListener("input", () => { panel.row = Number(slider.value); panel.followsEnd = panel.row === Number(slider.max); panel.spoil(true); });
  play.addEventListener("click", () => {
    if (panel.playing) { stop(panel); return; }
    play.textContent = "❚❚";
    panel.playing = setInterval(() => {
      if (panel.asking) return; // The last one is not there yet.
      panel.followsEnd = false;
      panel.row = (panel.row + 1) % (Number(slider.max) + 1);
      panel.spoil(true);
    }, 1000 / A_SECOND);
  });
  box.append(canvas, element("div", { class: "controls" }, play, slider, output));
  panel.plot.replaceChildren(box);
  panel.frames = { canvas, slider, output, play };
  panel.followsEnd = true;
}

function stop(panel) {
  clearInterval(panel.playing);
  panel.playing = 0;
  if (panel.frames) panel.frames.play.textContent = "▶";
}

async function draw(panel, run, signal) {
  if (!panel.frames) controls(panel);
  const row = panel.followsEnd ? panel.about.count + 1e9 : panel.row ?? 0;
  const found = await ask("field", { runs: run.id, key: panel.key, kind: "frames", row }, signal);
  const { canvas, slider, output } = panel.frames;
  slider.max = found.count - 1;
  slider.value = panel.row = found.row;
  output.textContent = `step ${number(found.step)} · ${found.row + 1} of ${found.count}`;
  canvas.setAttribute("aria-label", `${panel.key} of ${run.name} at step ${found.step}`);
  paint(canvas, found);
  panel.remark = `${number(found.range[0])} to ${number(found.range[1])}`;
}

function paint(canvas, found) {
  const [height, width, channels = 0] = found.values.shape, values = numbers(found.values);
  const [low, high] = found.range, wide = high - low || 1;
  canvas.width = width;
  canvas.height = height;
  const image = new ImageData(width, height);
  const isColour = channels >= 3;
  const level = (x) => (x - low) / wide;
  for (let i = 0; i < width * height; i++) {
    let colour = [128, 128, 128], opacity = 255;
    if (isColour) {
      colour = [0, 1, 2].map((c) => 255 * level(values[i * channels + c]));
      if (channels === 4) opacity = 255 * level(values[i * channels + 3]);
    } else if (Number.isFinite(values[i])) colour = shade(level(values[i]));
    image.data.set([...colour, opacity], 4 * i);
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function download(panel, run, format) {
  const name = panel.key.replaceAll(/[^\w.-]+/g, "-");
  if (format === "csv") save(`api/csv?${new URLSearchParams({ runs: run.id, key: panel.key })}`, "");
  else if (format === "png") panel.frames.canvas.toBlob((blob) => save(URL.createObjectURL(blob), `${name}-${panel.row}.png`));
  else toast("Frames are pictures: download a png.");
}

function clear(panel) {
  stop(panel);
  panel.frames = undefined;
  panel.plot.replaceChildren();
  panel.remark = "";
}

export const frames = { title: "frames", ofOneRun: true, draw, download, clear };
