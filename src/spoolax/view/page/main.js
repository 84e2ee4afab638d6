// The page: what its controls do, what is drawn when something changes, and the keyboard.

import { Refused, ask, follow } from "./api.js";
import * as panels from "./panels.js";
import * as runs from "./runs.js";
import { address, onChange, set, state } from "./state.js";
import { choose, element, show, toast } from "./words.js";

const TYPING = 250; // Milliseconds of silence after which what was typed is meant.
const LIST_AGAIN = 2000;
const by = (id) => document.getElementById(id);

function drawControls() {
  for (const id of ["keys", "filter"]) if (document.activeElement !== by(id)) by(id).value = state[id];
  by("smooth").value = state.smooth;
  by("smoothness").textContent = state.smooth;
  for (const id of ["logx", "logy", "wide"]) by(id).setAttribute("aria-pressed", state[id]);
  document.body.classList.toggle("wide", state.wide);
  const groups = [["", "each"], ["name", "mean by name"], ["*", "mean of all"], ...runs.settings().map((name) => [name, `mean by ${name}`])];
  choose(by("group"), groups, state.group);
  by("axis").value = state.x;
}

function isEmpty() {
  if (runs.all().length) return false;
  const where = runs.places().join(", ");
  by("panels").replaceChildren(element("div", { class: "empty" },
    element("h2", {}, "No runs here yet"),
    element("p", {}, "This page looks into ", element("code", {}, where), " and shows runs as soon as there are any. To make one:"),
    element("pre", {}, "spoolax demo"),
    element("p", {}, "or, around your own code:"),
    element("pre", {}, 'with spoolax.run("name", config):\n    ...  # every spoolax.log in here arrives')));
  return true;
}

async function refreshAll() {
  try {
    await runs.refresh();
    drawControls();
    if (!isEmpty()) await panels.refreshKeys();
  } catch (error) {
    if (error instanceof Refused) showEnd(error);
    else toast(error.message);
  }
}

// Another server answers, which has another token.
function showEnd(error) {
  by("panels").replaceChildren(element("div", { class: "empty" }, element("h2", {}, "This page has ended"), element("p", {}, error.message)));
}

function refreshPanels() {
  panels.refreshKeys().then(() => panels.redraw()).catch((error) => toast(error.message));
}

const REDRAWS = ["x", "group", "smooth", "logx", "logy"];
onChange((changes) => {
  drawControls();
  const changed = Object.keys(changes);
  if (changed.some((name) => ["runs", "filter", "sort", "wide", "hidden", "group"].includes(name))) runs.draw();
  if (changed.some((name) => ["runs", "filter"].includes(name))) refreshPanels();
  else if (changed.some((name) => ["keys", "closed", "large", "wide"].includes(name))) panels.lay();
  if (changed.includes("kinds") || changed.some((name) => REDRAWS.includes(name))) panels.redraw();
});

function delayed(act) {
  let waiting = 0;
  return (event) => { clearTimeout(waiting); waiting = setTimeout(() => act(event.target.value), TYPING); };
}

by("keys").addEventListener("input", delayed((keys) => set({ keys })));
by("filter").addEventListener("input", delayed((filter) => set({ filter })));
by("axis").addEventListener("change", (event) => set({ x: event.target.value, zoom: {} }));
by("group").addEventListener("change", (event) => set({ group: event.target.value }));
by("smooth").addEventListener("input", (event) => set({ smooth: Number(event.target.value) }));
for (const id of ["logx", "logy", "wide"]) by(id).addEventListener("click", () => set({ [id]: !state[id] }));
by("link").addEventListener("click", async () => {
  const link = location.origin + address();
  try {
    await navigator.clipboard.writeText(link);
    toast("The link to this view was copied.");
  } catch {
    show(element("h2", {}, "A link to this view"), element("p", {}, element("a", { href: link }, link)));
  }
});
by("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  localStorage.setItem("spoolax-theme", theme);
  runs.draw();
  panels.redraw();
});
by("help").addEventListener("click", showKeys);

const KEYS = {
  "/": ["search keys", () => by("keys").focus()],
  f: ["filter runs", () => by("filter").focus()],
  j: ["next run (Space draws it, or not)", () => move(1)],
  k: ["previous run", () => move(-1)],
  l: ["logarithmic y axis", () => by("logy").click()],
  "[": ["smooth less", () => smoothBy(-0.05)],
  "]": ["smooth more", () => smoothBy(0.05)],
  w: ["table of all settings", () => by("wide").click()],
  d: ["light or dark", () => by("theme").click()],
  "?": ["this list", showKeys],
};

function showKeys() {
  const rows = Object.entries(KEYS).map(([key, [what]]) => element("tr", {}, element("td", {}, element("kbd", {}, key)), element("td", {}, what)));
  rows.push(element("tr", {}, element("td", {}, "drag, double click"), element("td", {}, "zoom into a panel, and out")));
  show(element("h2", {}, "Keyboard"), element("table", {}, ...rows));
}

function move(by_) {
  const boxes = [...document.querySelectorAll("#runs input[type=checkbox]")];
  const at = boxes.indexOf(document.activeElement);
  boxes[Math.min(boxes.length - 1, Math.max(0, at + by_))]?.focus();
}

function smoothBy(amount) {
  set({ smooth: Math.min(0.99, Math.max(0, Math.round(100 * (state.smooth + amount)) / 100)) });
}

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input[type=search], select");
  if (event.key === "Escape" && isTyping) event.target.blur();
  if (isTyping || event.ctrlKey || event.metaKey || event.altKey || by("dialog").open) return;
  const found = KEYS[event.key];
  if (found) { event.preventDefault(); found[1](); }
});

let listing = 0, wasLost = false;
follow(
  (changed, isListed) => {
    panels.redraw(changed);
    const knowsKeys = changed.length && !isListed;
    if (!listing) listing = setTimeout(async () => { listing = 0; await refreshAll(); }, isListed ? 0 : knowsKeys ? LIST_AGAIN : 0);
  },
  (isConnected) => {
    by("live").className = isConnected ? "on" : "off";
    by("live").textContent = isConnected ? "live" : "not connected";
    if (isConnected && wasLost) refreshAll().then(() => panels.redraw());
    wasLost = !isConnected;
    if (wasLost) ask("runs").catch((error) => { if (error instanceof Refused) showEnd(error); });
  },
);
await refreshAll();
document.documentElement.dataset.ready = "yes";
