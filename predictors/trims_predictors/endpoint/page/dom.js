// Elements, and figures as text. Data becomes text nodes only, never markup.

/** An element with properties (or attributes, if their names have a dash) and children. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** An element of SVG; properties are attributes, because a policy of the page forbids style in markup. */
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/**
 * A table that scrolls by itself where the window is too narrow. Columns are [title, kind]: "figure" for numbers, "text"
 * for texts that may wrap. A row is a list of texts or elements; its first one is its head.
 */
export function table(caption, columns, rows) {
  const head = make("tr", {}, ...columns.map(([text, kind]) => make("th", { scope: "col", className: kind ?? "", textContent: text })));
  const cell = (value, i) => {
    const made = make(i === 0 ? "th" : "td", { className: columns[i]?.[1] ?? "" }, value ?? "");
    if (i === 0) made.scope = "row";
    return made;
  };
  const body = rows.map((row) => make("tr", {}, ...row.map(cell)));
  const made = make("table", { className: "data" }, make("caption", { textContent: caption }), make("thead", {}, head), make("tbody", {}, ...body));
  return make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": caption }, made);
}

export const byId = (id) => document.getElementById(id);

/** Set a text only if it differs, so that selections and screen readers are left alone. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function show(element, visible) {
  if (element.hidden === visible) element.hidden = !visible;
}

/**
 * Have a list show these items. Elements of items that stay are updated in place, so the focus stays where it is.
 * `create(item)` returns {element, update(item)}.
 */
export function keep(parent, items, keyOf, create) {
  const before = (parent.parts ??= new Map());
  const now = new Map();
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    const part = before.get(key) ?? create(item);
    part.update(item);
    now.set(key, part);
    if (part.element === next) next = next.nextElementSibling;
    else parent.insertBefore(part.element, next);
  }
  for (const [key, part] of before) if (!now.has(key)) part.element.remove();
  parent.parts = now;
}

/** `1536` -> `1.5 KiB`, as the command line has it. */
export function bytes(count) {
  let size = count;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (size < 1024) return unit === "B" ? `${size} B` : `${size.toFixed(1)} ${unit}`;
    size /= 1024;
  }
  return `${size.toFixed(1)} TiB`;
}

export function count(number, one, many = `${one}s`) {
  return `${number} ${number === 1 ? one : many}`;
}

/** Seconds that may be long: `42 s`, `5 min`, `3 h`. */
export function span(seconds) {
  if (seconds < 100) return `${Math.max(0, Math.round(seconds))} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;
}

/** Seconds in the unit that suits them, as the command line has it. */
export function time(seconds) {
  if (seconds >= 10) return `${seconds.toFixed(2)} s`;
  return seconds >= 1e-3 ? `${(seconds * 1e3).toFixed(1)} ms` : `${(seconds * 1e6).toFixed(0)} µs`;
}

export const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)} %`;
export const moment = (unixS) => new Date(unixS * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });

/** Seconds that are short, in milliseconds. */
export function milliseconds(seconds) {
  const ms = seconds * 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 1 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}
