// Curves of all runs over each other, with a band where there are several numbers at a point.

import { ask, numbers } from "./api.js";
import { CONFIG, clear, layout, picture, save, windowOf, zoomable } from "./plot.js";
import { faded, style } from "./palette.js";
import { byId, groupOf } from "./runs.js";
import { state } from "./state.js";

const POINTS_PER_PIXEL = 2;

function asked(panel) {
  const runs = panel.runs();
  const groups = state.group ? runs.map(groupOf).join(",") : "";
  return {
    runs: runs.map((run) => run.id).join(","), key: panel.key, x: state.x, groups,
    points: Math.round(POINTS_PER_PIXEL * (panel.plot.clientWidth || 500)),
    smooth: state.smooth, logx: state.logx, ...windowOf(panel),
  };
}

async function draw(panel, _, signal) {
  const found = await ask("lines", asked(panel), signal);
  const traces = found.flatMap(tracesOf);
  const isFew = found.length <= 6;
  const types = { x: state.logx ? "log" : "linear", y: state.logy ? "log" : "linear" };
  const hovermode = isFew ? "x unified" : "closest";
  await Plotly.react(panel.plot, traces, layout(panel.key, types, { hovermode }), CONFIG);
  zoomable(panel);
  const isDrawn = (y) => Number.isFinite(y) && (y > 0 || !state.logy);
  const missing = traces.every((trace) => !trace.y.some(isDrawn));
  panel.remark = missing ? `No number is finite${state.logy ? " and positive" : ""}.` : "";
}

function tracesOf(one) {
  const known = one.runs.length === 1 ? byId(one.runs[0]) : undefined;
  const { color, dash } = state.group ? style(one.name, state.group) : style(known.id);
  const name = state.group ? `${one.name} (mean of ${one.runs.length})` : known.name;
  const x = numbers(one.x), made = [];
  if (one.low) {
    const band = { x, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
    made.push({ ...band, y: numbers(one.low) });
    made.push({ ...band, y: numbers(one.high), fill: "tonexty", fillcolor: faded(color, 0.18) });
  }
  const mode = x.length < 30 ? "lines+markers" : "lines";
  const line = { x, y: numbers(one.y), name, mode, marker: { size: 4 }, line: { color, dash, width: 1.5 }, hovertemplate: "%{y:.6g}" };
  if (!one.smooth) return [...made, line];
  const raw = { ...line, mode: "lines", line: { color: faded(color, 0.3), width: 1 }, hoverinfo: "skip", hovertemplate: undefined };
  return [...made, raw, { ...line, mode: "lines", x: numbers(one.smooth.x), y: numbers(one.smooth.y), line: { color, dash, width: 1.8 } }];
}

function download(panel, _, format) {
  if (format !== "csv") { picture(panel, format); return; }
  const { points, smooth, logx, from, to, ...rest } = asked(panel);
  save(`api/csv?${new URLSearchParams(rest)}`, "");
}

export const lines = { title: "curves", draw, download, clear };
