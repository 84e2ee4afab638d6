// What all plots have in common: axes, colours, zooming, and files.

import { of, set, state } from "./state.js";
import { isDark } from "./palette.js";

export function layout(key, types = {}, more = {}) {
  const ink = isDark() ? "#c3c8cd" : "#4a5057", line = isDark() ? "#30363c" : "#e6e8ea";
  const axis = { gridcolor: line, linecolor: line, zeroline: false, automargin: true, tickfont: { color: ink, size: 11 }, ticklen: 3, tickcolor: line };
  const zoom = of(state.zoom, key), isLog = types.x === "log";
  return {
    margin: { l: 46, r: 12, t: 6, b: 30 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, sans-serif", size: 11, color: ink },
    showlegend: false, hovermode: "closest", dragmode: "zoom",
    hoverlabel: { font: { size: 11 }, namelength: 40 },
    xaxis: { ...axis, nticks: 6, title: { text: state.x === "time" ? "seconds" : state.x, font: { size: 11 }, standoff: 4 }, type: types.x ?? "linear", ...(zoom ? { range: isLog ? logged(zoom) : zoom, autorange: false } : { autorange: true }) },
    yaxis: { ...axis, nticks: 6, exponentformat: "power", type: types.y ?? "linear" },
    uirevision: `${key} ${state.x} ${state.logx} ${state.logy}`,
    ...more,
  };
}

// A window that begins below zero begins somewhere on a logarithmic axis.
function logged([low, high]) {
  const top = high > 0 ? high : 1;
  return [Math.log10(low > 0 ? low : top / 1000), Math.log10(top)];
}

export const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };

// Zooming asks for the window anew, at its own resolution.
export function zoomable(panel) {
  if (panel.isZoomable) return;
  panel.isZoomable = true;
  panel.plot.on("plotly_relayout", (change) => {
    if (change["xaxis.range[0]"] !== undefined) {
      let window = [Number(change["xaxis.range[0]"]), Number(change["xaxis.range[1]"])];
      if (panel.plot.layout.xaxis.type === "log") window = window.map((x) => 10 ** x);
      set({ zoom: { ...state.zoom, [panel.key]: window } });
      panel.spoil(true);
    } else if (change["xaxis.autorange"]) {
      unzoom(panel);
    }
  });
  panel.plot.on("plotly_doubleclick", () => unzoom(panel));
}

function unzoom(panel) {
  if (!of(state.zoom, panel.key)) return;
  const { [panel.key]: _, ...rest } = state.zoom;
  set({ zoom: rest });
  panel.spoil(true);
}

export function clear(panel) {
  if (panel.plot.data) Plotly.purge(panel.plot);
  panel.plot.replaceChildren();
  panel.isZoomable = false;
  panel.remark = "";
}

export function picture(panel, format) {
  const name = panel.key.replaceAll(/[^\w.-]+/g, "-");
  const { width, height } = panel.plot.getBoundingClientRect();
  Plotly.downloadImage(panel.plot, { format, filename: name, width, height, scale: format === "png" ? 2 : 1 });
}

export function save(address, name) {
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
}

export function windowOf(panel) {
  const zoom = of(state.zoom, panel.key);
  return zoom ? { from: zoom[0], to: zoom[1] } : {};
}
