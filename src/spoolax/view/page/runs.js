// The list of runs: which are drawn, and a table of all their settings and last values.

import { ask } from "./api.js";
import { comparison, matches, valueOf } from "./filter.js";
import { style } from "./palette.js";
import { of, set, state, toggled } from "./state.js";
import { counted, duration, element, moment, number, show, size } from "./words.js";

const AT_FIRST = 8; // Runs that are drawn before anybody has chosen.
const MOST_COLUMNS = 200;
const STAMPED = /^(.*?)(-\d{4}-\d\d-\d\d-\d{6}(?:-\d+)?)?$/s; // What `spoolax.run` calls runs.
let differences = new Map(); // By name of runs, the settings that tell them apart.
let listed = { runs: [], places: [], skipped: {} };

export async function refresh() {
  listed = await ask("runs");
  draw();
}

export function all() { return listed.runs; }
export function places() { return listed.places; }
export function byId(id) { return listed.runs.find((run) => run.id === id); }
export function shown() { return sorted(listed.runs.filter((run) => matches(run, state.filter))); }

// The runs whose curves are drawn, in the order in which they were chosen.
export function drawn() {
  if (state.runs === null) {
    const found = listed.runs.filter((run) => matches(run, state.filter));
    return found.slice(0, AT_FIRST);
  }
  return state.runs.map(byId).filter((run) => run && matches(run, state.filter));
}

// Runs in a group are drawn as their mean: those of the same name, or with the same setting.
export function groupOf(run) {
  const setting = () => `${state.group}=${valueOf(run, state.group) ?? "none"}`;
  const name = state.group === "*" ? "mean" : state.group === "name" ? baseOf(run) : setting();
  return name.replaceAll(",", ";");
}

function colourOf(run) {
  return (state.group ? style(groupOf(run), state.group) : style(run.id)).color;
}

export function settings() {
  const names = new Set(listed.runs.flatMap((run) => Object.keys(run.config)));
  return [...names].sort();
}

// Settings that are not the same in all runs of one name.
function different(base) {
  const alike = listed.runs.filter((run) => baseOf(run) === base);
  const names = new Set(alike.flatMap((run) => Object.keys(run.config)));
  return [...names].filter((name) => new Set(alike.map((run) => of(run.config, name))).size > 1);
}

function baseOf(run) { return STAMPED.exec(run.name)[1]; }

export function draw() {
  const bases = new Set(listed.runs.map(baseOf));
  differences = new Map([...bases].map((base) => [base, different(base)]));
  const found = shown(), chosen = new Set(drawn().map((run) => run.id));
  for (const run of drawn()) colourOf(run); // In this order, so that neighbours differ.
  const columns = state.wide ? wideColumns() : NARROW;
  const focused = document.activeElement?.dataset?.focus;
  const table = element("table", {},
    element("thead", {}, element("tr", {},
      element("th", {}, element("span", { class: "hidden" }, "drawn")),
      ...columns.map(heading))),
    element("tbody", {}, ...found.map((run) => row(run, columns, chosen))));
  const box = document.getElementById("runs"), at = [box.scrollTop, box.scrollLeft];
  box.replaceChildren(table);
  [box.scrollTop, box.scrollLeft] = at;
  if (focused) box.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus();
  drawChosen(found, chosen);
  drawSkipped();
}

function drawChosen(found, chosen) {
  const text = `${counted(found.length, "run")}${found.length < listed.runs.length ? ` of ${listed.runs.length}` : ""}, ${chosen.size} drawn`;
  const button = (label, act) => element("button", { type: "button", onclick: act }, label);
  const hidden = state.wide && state.hidden.length
    ? [button(`${counted(state.hidden.length, "hidden column")}`, () => set({ hidden: [] }))] : [];
  document.getElementById("chosen").replaceChildren(
    element("span", {}, text),
    button("all", () => set({ runs: found.map((run) => run.id) })),
    button("none", () => set({ runs: [] })),
    button("latest", () => set({ runs: null })),
    ...hidden);
}

function drawSkipped() {
  const lines = Object.entries(listed.skipped).map(([name, why]) =>
    element("div", { title: why }, `${name}: ${why}`));
  document.getElementById("skipped").replaceChildren(...lines);
}

const COLUMNS = {
  name: { title: "run", cell: (run) => named(run), class: "name" },
  status: { title: "status", cell: (run) => element("span", { class: `status ${run.status}`, title: run.reason }, run.status || "file") },
  step: { title: "step", cell: (run) => number(run.step), class: "number" },
  start: { title: "began", cell: (run) => moment(run.start) },
  duration: { title: "took", cell: (run) => duration(run.duration), class: "number" },
  size: { title: "size", cell: (run) => size(run.size), class: "number" },
};
const NARROW = ["name", "status", "step"];

function wideColumns() {
  const last = new Set(listed.runs.flatMap((run) => Object.keys(run.last)));
  const more = [...settings(), ...[...last].sort()].slice(0, MOST_COLUMNS);
  return [...Object.keys(COLUMNS), ...more].filter((name) => !state.hidden.includes(name));
}

function heading(name) {
  const title = of(COLUMNS, name)?.title ?? name;
  const isSorted = state.sort.replace("-", "") === name;
  const arrow = isSorted ? (state.sort.startsWith("-") ? " ↓" : " ↑") : "";
  const next = isSorted && !state.sort.startsWith("-") ? `-${name}` : name;
  const hide = state.wide && name !== "name"
    ? element("button", { type: "button", class: "hide", title: `Hide ${title}`, "aria-label": `Hide ${title}`, onclick: () => set({ hidden: toggled(state.hidden, name) }) }, "✕") : null;
  return element("th", { "aria-sort": isSorted ? (arrow === " ↑" ? "ascending" : "descending") : "none" },
    element("button", { type: "button", "data-focus": `sort ${name}`, onclick: () => set({ sort: next }) }, title + arrow), hide);
}

function row(run, columns, chosen) {
  const box = element("input", {
    type: "checkbox", "data-focus": run.id, "aria-label": `Draw ${run.name}`,
    onchange: () => set({ runs: toggled([...chosen], run.id) }),
  });
  box.checked = chosen.has(run.id);
  if (box.checked) box.style.setProperty("--colour", colourOf(run));
  const cells = columns.map((name) => {
    const known = of(COLUMNS, name);
    if (known) return element("td", { class: known.class }, known.cell(run));
    const value = valueOf(run, name), isSetting = Object.hasOwn(run.config, name);
    return element("td", {
      class: `${typeof value === "number" ? "number" : ""} ${isSetting ? "setting" : ""}`,
      title: isSetting ? `Only runs with ${name}=${value}` : undefined,
      onclick: isSetting ? () => set({ filter: `${state.filter} ${comparison(name, value)}`.trim() }) : undefined,
    }, number(value));
  });
  return element("tr", {}, element("td", {}, box), ...cells);
}

function named(run) {
  const seeds = run.seeds ? ` (${run.seeds} inside)` : "";
  const [, base, time = ""] = STAMPED.exec(run.name);
  const parts = state.wide ? [run.name + seeds] : [base + seeds, element("time", {}, time && moment(run.start, true))];
  const button = element("button", { type: "button", class: "open", "data-focus": `open ${run.id}`, title: run.name, onclick: () => showAbout(run) }, ...parts);
  if (state.wide) return button;
  // What tells it from the others, as there is no room for all settings.
  const about = differences.get(base).map((name) => `${name}=${number(of(run.config, name))}`).filter((text) => !text.endsWith("="));
  return element("div", {}, button, element("small", { title: about.join("  ") }, about.join("  ")));
}

function sorted(runs) {
  const name = state.sort.replace("-", ""), sign = state.sort.startsWith("-") ? -1 : 1;
  const key = (run) => valueOf(run, name) ?? null;
  return [...runs].sort((a, b) => {
    const [x, y] = [key(a), key(b)];
    if (x === y) return 0;
    if (x === null) return 1; // What a run does not have comes last.
    if (y === null) return -1;
    return sign * (typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), undefined, { numeric: true }));
  });
}

async function showAbout(run) {
  let about;
  try {
    about = await ask("about", { runs: run.id });
  } catch (error) {
    show(element("h2", {}, run.name), element("p", {}, error.message));
    return;
  }
  const lines = [
    ["status", about.status], ["because", about.reason], ["began", moment(about.start)],
    ["took", duration(about.duration)], ["step", number(about.step)], ["size", size(about.size)],
    ["command", about.meta.command?.join(" ")], ["host", about.meta.host], ["commit", about.meta.commit],
    ["python", about.meta.python], ["path", about.path],
    ...Object.entries(about.meta.versions ?? {}),
    ...Object.entries(about.skipped).map(([file, why]) => [`cannot read ${file}`, why]),
  ].filter(([, value]) => value);
  const table = (pairs) => element("table", {}, ...pairs.map(([name, value]) =>
    element("tr", {}, element("td", {}, name), element("td", {}, String(value)))));
  const config = Object.entries(run.config).map(([name, value]) => [name, number(value)]);
  show(element("h2", {}, run.name), table(lines),
    ...(config.length ? [element("h2", {}, "settings"), table(config)] : []));
}
