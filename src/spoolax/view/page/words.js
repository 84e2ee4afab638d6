// Numbers, times and sizes in as few characters as they need, and elements made of them.

export function number(x) {
  if (x === null || x === undefined) return "";
  if (typeof x !== "number") return String(x);
  if (Number.isSafeInteger(x)) return String(x);
  const size = Math.abs(x);
  return size >= 1e6 || size < 1e-4 ? x.toExponential(3) : String(Number(x.toPrecision(5)));
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  const whole = Math.round(seconds), two = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours}:${two(minutes)}:${two(whole % 60)} h` : `${minutes}:${two(whole % 60)} min`;
}

export function moment(seconds, isShort = false) {
  if (!seconds) return "";
  const date = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
  if (isShort) {
    const isToday = date.toDateString() === new Date().toDateString();
    const time = `${two(date.getHours())}:${two(date.getMinutes())}`;
    return isToday ? `${time}:${two(date.getSeconds())}` : `${two(date.getMonth() + 1)}-${two(date.getDate())} ${time}`;
  }
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function size(bytes) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (bytes < 1000) return `${unit === "B" || bytes >= 10 ? Math.round(bytes) : bytes.toFixed(1)} ${unit}`;
    bytes /= 1000;
  }
  return `${bytes.toFixed(1)} TB`;
}

export function counted(count, what) { return `${count} ${what}${count === 1 ? "" : "s"}`; }

// An element. Text is only ever text: what a run is called cannot become markup.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value !== undefined && value !== null) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

// The options of a select, [value, text] each. Nothing happens if they are there already.
export function choose(select, options, chosen) {
  const now = JSON.stringify(options);
  if (select.dataset.options !== now) {
    select.dataset.options = now;
    select.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  }
  select.value = chosen;
}

let hiding = 0;
export function toast(text) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.classList.add("on");
  clearTimeout(hiding);
  hiding = setTimeout(() => box.classList.remove("on"), 1800);
}

export function show(...children) {
  const dialog = document.getElementById("dialog");
  dialog.querySelector("div").replaceChildren(...children);
  if (!dialog.open) dialog.showModal();
}
