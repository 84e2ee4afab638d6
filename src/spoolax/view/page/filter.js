// Which runs a text means: words that are in the name or a setting, and comparisons such as rate=0.1.

const COMPARISON = /^(.+?)(!=|<=|>=|=|<|>)(.*)$/;

export function valueOf(run, column) {
  return [run.config, run.last, run].find((one) => Object.hasOwn(one, column))?.[column];
}

// Names and values are written without spaces, which separate words.
function written(text) { return String(text).replaceAll(/\s+/g, "_"); }

function named(run, name) {
  const known = [run.config, run.last, run].flatMap(Object.keys).find((one) => written(one) === name);
  return known === undefined ? undefined : valueOf(run, known);
}

export function matches(run, text) {
  return text.split(/\s+/).filter(Boolean).every((word) => {
    const found = COMPARISON.exec(word);
    return found ? compares(named(run, found[1]), found[2], found[3]) : contains(run, word);
  });
}

function contains(run, word) {
  const texts = [run.name, run.status, ...Object.entries(run.config).flat()];
  return texts.some((text) => String(text).toLowerCase().includes(word.toLowerCase()));
}

function compares(value, how, wanted) {
  if (value === undefined) return how === "!=";
  const isNumber = typeof value === "number" && wanted !== "" && !Number.isNaN(Number(wanted));
  const [a, b] = isNumber ? [value, Number(wanted)] : [written(value).toLowerCase(), wanted.toLowerCase()];
  if (how === "=") return a === b;
  if (how === "!=") return a !== b;
  if (!isNumber) return false;
  return { "<": a < b, ">": a > b, "<=": a <= b, ">=": a >= b }[how];
}

// A comparison that finds the runs which have this value.
export function comparison(column, value) { return `${written(column)}=${written(value)}`; }
