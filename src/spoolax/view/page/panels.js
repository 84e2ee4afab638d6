// The panels: one for each key, drawn when it comes into sight, and anew when its runs change.

import { ask } from "./api.js";
import { KINDS } from "./kinds.js";
import { byId, drawn } from "./runs.js";
import { of, set, state, toggled } from "./state.js";
import { choose, element } from "./words.js";

const AGAIN = 1000; // Milliseconds between two drawings of a panel while its runs are written.
let keys = new Map(), asked = 0;
const panels = new Map();
let laid = "";

// What keys there are, and how they can be drawn.
export async function refreshKeys() {
  const runs = drawn().map((run) => run.id), number = ++asked;
  const found = runs.length ? await ask("keys", { runs: runs.join(",") }) : {};
  if (number !== asked) return; // Somebody has chosen other runs since.
  keys = new Map(Object.entries(found));
  const steps = new Set([...keys.values()].flatMap((key) => key.steps));
  const axis = document.getElementById("axis");
  const names = ["step", "time", ...[...steps].filter((name) => name !== "step").sort()];
  if (keys.size && !names.includes(state.x)) set({ x: "step", zoom: {} });
  choose(axis, names.map((name) => [name, name === "time" ? "seconds" : name]), state.x);
  lay();
  for (const panel of panels.values()) panel.spoilIfOthers();
}

function fitting() {
  const patterns = state.keys.split(/[\s,]+/).filter(Boolean).map(pattern);
  return [...keys.keys()].filter((key) => keys.get(key).kinds.length && (!patterns.length || patterns.some((one) => one.test(key))))
    .sort((a, b) => isCurve(b) - isCurve(a) || naturally(a, b));
}

// Curves come first: they are what most people look for.
function isCurve(key) { return keys.get(key).kinds[0] === "lines"; }

function pattern(text) {
  const escaped = text.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".");
  return new RegExp(text.includes("*") ? `^${escaped}$` : escaped, "i");
}

function naturally(a, b) { return a.localeCompare(b, undefined, { numeric: true }); }

// Put the panels in place: those that are there already stay as they are.
export function lay() {
  const main = document.getElementById("panels"), found = fitting();
  for (const [key, panel] of panels) {
    if (!found.includes(key)) { panel.remove(); panels.delete(key); }
  }
  if (!found.length) { main.replaceChildren(emptiness()); return; }
  const sections = new Map();
  for (const key of found) {
    const at = key.lastIndexOf("/"), name = at < 0 ? "" : key.slice(0, at);
    if (!sections.has(name)) sections.set(name, []);
    sections.get(name).push(key);
  }
  // Nothing is moved that is where it belongs: somebody may be dragging or reading it.
  const plan = JSON.stringify([[...sections], state.closed, state.large]);
  if (plan === laid && main.contains(panels.values().next().value?.box ?? null)) return;
  laid = plan;
  const hasCurves = (some) => some.some(isCurve);
  const inOrder = [...sections].sort(([a, some], [b, others]) =>
    hasCurves(others) - hasCurves(some) || naturally(a, b));
  main.replaceChildren(...inOrder.map(([name, some]) => section(name, some)));
  for (const panel of panels.values()) panel.watch();
}

function section(name, some) {
  const isClosed = state.closed.includes(name);
  const title = name ? [element("h2", {}, element("button", {
    type: "button", "aria-expanded": String(!isClosed),
    onclick: () => { set({ closed: toggled(state.closed, name) }); },
  }, `${isClosed ? "▸" : "▾"} ${name} (${some.length})`))] : [];
  const grid = element("div", { class: "grid" });
  if (!isClosed) {
    grid.append(...some.map((key) => {
      if (!panels.has(key)) panels.set(key, new Panel(key));
      return panels.get(key).box;
    }));
  }
  return element("section", {}, ...title, grid);
}

function emptiness() {
  const runs = drawn();
  const why = !runs.length ? "No run is chosen. Choose some in the list, or press “latest”."
    : keys.size ? `No key fits “${state.keys}”.`
    : "Nothing has been logged yet. It appears here as soon as it is.";
  return element("div", { class: "empty" }, element("p", {}, why));
}

export function redraw(ids) {
  for (const panel of panels.values()) {
    if (!ids || panel.runs().some((run) => ids.includes(run.id))) panel.spoil();
  }
}

const sight = new IntersectionObserver((entries) => {
  for (const entry of entries) entry.target.panel.seen(entry.isIntersecting);
}, { rootMargin: "200px" });

class Panel {
  constructor(key) {
    this.key = key;
    this.isSpoilt = true;
    this.isSeen = false;
    this.drawnAt = 0;
    this.title = element("h3", { title: key }, key.slice(key.lastIndexOf("/") + 1));
    this.kind = element("select", { "aria-label": `How ${key} is drawn`, onchange: () => this.become(this.kind.value) });
    this.run = element("select", { "aria-label": `Run of ${key}`, onchange: () => this.spoil(true) });
    this.plot = element("div", { class: "plot" });
    this.note = element("div", { class: "note" });
    const button = (label, title, act) => element("button", { type: "button", title, "aria-label": `${title}: ${key}`, onclick: act }, label);
    this.box = element("article", { class: "panel", "data-key": key },
      element("header", {}, this.title, this.run, this.kind,
        button("csv", "Download the numbers", () => this.download("csv")),
        button("png", "Download a picture", () => this.download("png")),
        button("svg", "Download a drawing", () => this.download("svg")),
        button("⤢", "Larger", () => set({ large: toggled(state.large, key) }))),
      this.plot, this.note);
    this.box.panel = this;
  }

  get about() { return keys.get(this.key); }
  runs() { return drawn().filter((run) => this.about?.runs.includes(run.id)); }
  kindName() {
    const wanted = of(state.kinds, this.key);
    return this.about.kinds.includes(wanted) ? wanted : this.about.kinds[0];
  }

  watch() {
    this.box.classList.toggle("large", state.large.includes(this.key));
    sight.observe(this.box);
  }

  remove() {
    sight.unobserve(this.box);
    this.asking?.abort();
    KINDS[this.drawnKind]?.clear(this);
    this.box.remove();
  }

  become(kind) {
    set({ kinds: { ...state.kinds, [this.key]: kind } });
  }

  seen(isSeen) {
    this.isSeen = isSeen;
    if (isSeen && this.isSpoilt) this.draw();
  }

  // Something that it shows has changed. Of many changes in a short time, the last one is drawn.
  spoil(atOnce = false) {
    this.isSpoilt = true;
    if (!this.isSeen || this.waiting) return;
    if (this.asking && !atOnce) return; // It is drawn again as soon as this has been.
    const wait = atOnce ? 0 : Math.max(0, this.drawnAt + AGAIN - performance.now());
    this.waiting = setTimeout(() => { this.waiting = 0; if (this.isSeen) this.draw(); }, wait);
  }

  // Runs that have its key came or went.
  spoilIfOthers() {
    const now = this.runs().map((run) => run.id).join();
    if (this.drawnRuns !== undefined && this.drawnRuns !== now) this.spoil(true);
  }

  choices() {
    const kinds = this.about.kinds, name = this.kindName();
    this.kind.hidden = kinds.length < 2;
    choose(this.kind, kinds.map((one) => [one, KINDS[one].title]), name);
    const runs = this.runs(), chosen = runs.find((run) => run.id === this.run.value)?.id ?? runs[0]?.id;
    this.run.hidden = !KINDS[name].ofOneRun || runs.length < 2;
    choose(this.run, runs.map((run) => [run.id, run.name]), chosen);
    return { kind: KINDS[name], one: byId(chosen) };
  }

  async draw() {
    if (!this.about) return;
    this.isSpoilt = false;
    this.asking?.abort();
    const asking = this.asking = new AbortController();
    const { kind, one } = this.choices();
    if (this.drawnKind && KINDS[this.drawnKind] !== kind) KINDS[this.drawnKind].clear(this);
    this.drawnKind = this.kindName();
    this.drawnRuns = this.runs().map((run) => run.id).join();
    this.box.classList.add("loading");
    try {
      await kind.draw(this, one, asking.signal);
      this.say(this.remark ?? "");
    } catch (error) {
      if (error.name === "AbortError") return; // Something else is asked by now.
      this.say(error.message, true);
    }
    this.drawnAt = performance.now();
    if (this.asking !== asking) return;
    this.asking = null;
    this.box.classList.remove("loading");
    if (this.isSpoilt) this.spoil();
  }

  say(text, isBad = false) {
    this.note.textContent = text;
    this.note.classList.toggle("bad", isBad);
  }

  download(format) {
    const { kind, one } = this.choices();
    kind.download(this, one, format);
  }
}
