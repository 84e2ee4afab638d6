// Colours that people with any kind of colour vision can tell apart (Okabe and Ito).

const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5B5B5B"];
const DARK = ["#56B4E9", "#E98A3F", "#2BC49A", "#E09CC4", "#F0C244", "#7FA8FF", "#C9CDD1"];
const DASHES = ["solid", "dash", "dot", "dashdot"];
const families = new Map();

export function isDark() { return document.documentElement.dataset.theme === "dark"; }

// A run, or a group, keeps its colour as long as the page is open. Further ones are told apart by
// their dashes. Those that are drawn together are a family.
export function style(name, family = "") {
  if (!families.has(family)) families.set(family, new Map());
  const numbers = families.get(family);
  if (!numbers.has(name)) numbers.set(name, numbers.size);
  const number = numbers.get(name);
  const colours = isDark() ? DARK : LIGHT;
  return {
    color: colours[number % colours.length],
    dash: DASHES[Math.floor(number / colours.length) % DASHES.length],
  };
}

export function faded(colour, opacity) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  return `rgba(${r}, ${g}, ${b}, ${opacity})`;
}

// From dark to bright, evenly for the eye, also in grey.
const STOPS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"];
const RGB = STOPS.map((c) => [1, 3, 5].map((at) => parseInt(c.slice(at, at + 2), 16)));
export const SCALE = STOPS.map((colour, i) => [i / (STOPS.length - 1), colour]);

export function shade(fraction) {
  const at = Math.min(1, Math.max(0, fraction)) * (RGB.length - 1);
  const low = Math.floor(at), high = Math.min(RGB.length - 1, low + 1), part = at - low;
  return RGB[low].map((value, i) => value + part * (RGB[high][i] - value));
}
