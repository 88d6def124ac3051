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

/** Seconds that are short, in milliseconds. */
export function milliseconds(seconds) {
  const ms = seconds * 1000;
  return `${ms >= 100 ? ms.toFixed(0) : ms >= 1 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}
