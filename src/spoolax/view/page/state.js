// What is shown. It is kept in the address, so that a link, a reload or a bookmark shows the same.

const DEFAULTS = {
  runs: null, // The ids of those that are drawn; null: the latest ones.
  keys: "", x: "step", group: "", smooth: 0, logy: false, logx: false,
  filter: "", sort: "-start", wide: false,
  hidden: [], // Columns of the table.
  closed: [], // Sections.
  large: [], // Panels.
  zoom: {}, // The window of x, by key.
  kinds: {}, // How keys are drawn, if not in the best way.
};

export const state = { ...DEFAULTS, ...read() };
const listeners = [];

export function onChange(listener) { listeners.push(listener); }

export function set(changes) {
  Object.assign(state, changes);
  history.replaceState(null, "", address());
  for (const listener of listeners) listener(changes);
}

export function toggled(list, item) {
  return list.includes(item) ? list.filter((one) => one !== item) : [...list, item];
}

export function address() {
  const changed = Object.entries(state).filter(
    ([name, value]) => JSON.stringify(value) !== JSON.stringify(DEFAULTS[name]));
  const kept = JSON.stringify(Object.fromEntries(changed));
  return location.pathname + location.search + (kept === "{}" ? "" : `#${encodeURIComponent(kept)}`);
}

function read() {
  try {
    const found = JSON.parse(decodeURIComponent(location.hash.slice(1)) || "{}");
    return Object.fromEntries(Object.entries(found).filter(([name, value]) => isLike(name, value)));
  } catch {
    return {}; // A link that was cut off shows what it would without it.
  }
}

// A link that somebody wrote by hand may have anything in it.
function isLike(name, value) {
  if (!Object.hasOwn(DEFAULTS, name)) return false;
  const usual = DEFAULTS[name];
  const isText = (list) => list.every((one) => typeof one === "string");
  if (name === "runs") return value === null || (Array.isArray(value) && isText(value));
  if (Array.isArray(usual)) return Array.isArray(value) && isText(value);
  if (typeof usual !== "object") return typeof value === typeof usual;
  if (value === null || typeof value !== "object" || Array.isArray(value)) return false;
  const isWindow = (one) => Array.isArray(one) && one.length === 2 && one.every(Number.isFinite);
  return Object.values(value).every(name === "zoom" ? isWindow : (one) => typeof one === "string");
}

// What belongs to a key. Keys may be called as what every object has, such as "constructor".
export function of(mapping, key) { return Object.hasOwn(mapping, key) ? mapping[key] : undefined; }

window.addEventListener("hashchange", () => {
  const now = { ...DEFAULTS, ...read() };
  if (JSON.stringify(now) !== JSON.stringify(state)) set(now);
});
