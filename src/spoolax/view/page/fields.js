// Arrays of one run over time, as colours: the numbers of a vector, or how numbers are distributed.

import { ask, numbers, rows } from "./api.js";
import { SCALE, isDark } from "./palette.js";
import { CONFIG, clear, layout, picture, save, windowOf, zoomable } from "./plot.js";
import { state } from "./state.js";

export function fields(kind, title) {
  function asked(panel, run) {
    return { runs: run.id, key: panel.key, x: state.x, kind, ...windowOf(panel) };
  }

  async function draw(panel, run, signal) {
    const found = await ask("field", asked(panel, run), signal);
    const trace = {
      type: "heatmap", x: numbers(found.x), y: numbers(found.y), z: rows(found.z), name: run.name,
      colorscale: kind === "heat" ? SCALE : [[0, "rgba(0,114,178,0)"], [1, isDark() ? "#56b4e9" : "#0072b2"]],
      colorbar: { thickness: 9, outlinewidth: 0, tickfont: { size: 10 }, nticks: 5 },
      hovertemplate: kind === "heat" ? "at %{x}: number %{y} is %{z:.5g}<extra></extra>" : "at %{x}: %{z} around %{y:.4g}<extra></extra>",
    };
    await Plotly.react(panel.plot, [trace], layout(panel.key), CONFIG);
    zoomable(panel);
    panel.remark = trace.x.length < found.count ? `${trace.x.length} of ${found.count} moments` : "";
  }

  function download(panel, run, format) {
    if (format === "csv") save(`api/csv?${new URLSearchParams({ runs: run.id, key: panel.key, x: state.x })}`, "");
    else picture(panel, format);
  }

  return { title, ofOneRun: true, draw, download, clear };
}
