// The ways in which a key is drawn. Each has `draw(panel, run, signal)`, `download` and `clear`.

import { frames } from "./frames.js";
import { fields } from "./fields.js";
import { lines } from "./lines.js";

export const KINDS = {
  lines,
  heat: fields("heat", "heat map"),
  histogram: fields("histogram", "histograms"),
  frames,
};
