// What the server is asked, and its answers. Numbers come as bytes.

export class Refused extends Error {}

export async function ask(what, parameters = {}, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(name, value);
  }
  const answer = await fetch(`api/${what}?${query}`, { signal });
  if (answer.status === 401) throw new Refused(await answer.text());
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error || answer.statusText);
  return found;
}

export function numbers(packed) {
  const bytes = Uint8Array.from(atob(packed.data), (c) => c.charCodeAt(0));
  return new Float64Array(bytes.buffer);
}

export function rows(packed) {
  const [count, width] = packed.shape;
  const all = numbers(packed);
  return Array.from({ length: count }, (_, i) => all.subarray(i * width, (i + 1) * width));
}

const AGAIN = 2000; // Milliseconds until the next attempt to connect.

// Calls `changed(ids, listed)` whenever files do, and `connected(is)` when the server comes or goes.
// Only while somebody can see the page: browsers allow few connections for all tabs together.
export function follow(changed, connected) {
  let events = null;

  function open() {
    if (events || document.hidden) return;
    events = new EventSource("api/changes");
    events.onopen = () => connected(true);
    events.onmessage = (event) => {
      const found = JSON.parse(event.data);
      changed(found.changed, found.listed);
    };
    events.onerror = () => {
      connected(false);
      if (events?.readyState === EventSource.CLOSED) { // It does not try again by itself.
        close();
        setTimeout(open, AGAIN);
      }
    };
  }

  function close() {
    events?.close();
    events = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close();
    else open();
  });
  open();
}
