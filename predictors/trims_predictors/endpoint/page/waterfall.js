// A trace as a waterfall: a row for each span, of which only those in sight are elements.

import { make, percent, setText, show, table, time } from "./dom.js";

const UNATTRIBUTED = "unattributed";
const COLOURS = 8;
const BEYOND = 10; // rows above and below those in sight
const MOST_GAPS = 200; // pieces of one bar
const TICKS = [0, 0.25, 0.5, 0.75, 1];
let made = 0;

export function waterfall(trace) {
  const roots = grow(trace.lines);
  const state = { roots, zoomed: null, chosen: roots[0] ?? null, least: 0, rows: [], colours: colours(trace.lines), id: `wf-${made += 1}` };
  const parts = { ...controls(state), ...frame(state) };
  const draw = () => redraw(state, parts);
  listen(state, parts, draw);
  draw();
  const element = make("div", { className: "waterfall" }, parts.bar, legend(state.colours), parts.body, parts.details);
  new ResizeObserver(() => paint(state, parts)).observe(parts.body);
  return element;
}

/** Lines with their depths -> trees. `end` is in seconds like `begin_s`; a span without an end goes to the last end. */
function grow(lines) {
  const last = lines.reduce((most, line) => Math.max(most, line.begin_s + (line.seconds ?? 0)), 0);
  const roots = [];
  const above = [];
  for (const line of lines) {
    const parent = above[line.depth - 1] ?? null;
    const node = { ...line, parent, parts: [], closed: false, end: line.seconds === null ? last : line.begin_s + line.seconds };
    (parent === null ? roots : parent.parts).push(node);
    above[line.depth] = node;
    above.length = line.depth + 1;
  }
  return roots;
}

const isGap = (node) => node.name === UNATTRIBUTED && node.role === "";

/** A number for each role, in the order in which roles appear. */
function colours(lines) {
  const roles = [...new Set(lines.map((line) => line.role).filter(Boolean))];
  return new Map(roles.map((role, i) => [role, i % COLOURS]));
}

function legend(found) {
  const items = [...found].map(([role, number]) => make("li", {}, make("span", { className: `swatch role-${number}` }), role));
  items.push(make("li", {}, make("span", { className: "swatch gap" }), UNATTRIBUTED));
  return make("ul", { className: "plain legend", "aria-label": "Processes" }, ...items);
}

function controls(state) {
  const button = (textContent) => make("button", { type: "button", className: "small", textContent });
  const out = button("Zoom out");
  const open = button("Open all");
  const close = button("Close all");
  const least = make("input", { type: "number", min: "0", step: "any", value: "0", id: `${state.id}-least` });
  const label = make("label", { htmlFor: least.id }, "Hide what is shorter than ", least, " ms");
  const shown = make("span", { className: "quiet", role: "status" });
  return { out, open, close, least, shown, bar: make("div", { className: "wf-controls" }, out, open, close, label, shown) };
}

function frame(state) {
  const axis = make("div", { className: "wf-axis" });
  const head = make("div", { className: "wf-head", "aria-hidden": "true" }, axis);
  const space = make("div", { className: "wf-space", role: "presentation" });
  const about = "Spans: arrow keys move, open and close; Enter zooms to a span, Escape out";
  const body = make("div", { className: "wf-body", tabIndex: 0, role: "treegrid", "aria-label": about }, head, space);
  return { axis, head, space, body, details: make("section", { className: "wf-details", "aria-label": "The chosen span" }) };
}

/** Rows that are shown, parents before their parts. */
function visible(state) {
  const found = [];
  const waiting = (state.zoomed ? [state.zoomed] : [...state.roots]).reverse();
  const top = state.zoomed?.depth ?? 0;
  while (waiting.length) {
    const node = waiting.pop();
    if (node !== state.zoomed && node.seconds !== null && node.seconds * 1000 < state.least) continue;
    found.push(node);
    node.indent = node.depth - top;
    if (!node.closed) for (let i = node.parts.length - 1; i >= 0; i -= 1) waiting.push(node.parts[i]);
  }
  return found;
}

function redraw(state, parts) {
  state.rows = visible(state);
  if (!state.rows.includes(state.chosen)) state.chosen = state.rows[0] ?? null;
  const ends = state.rows.map((node) => node.end);
  state.from = state.zoomed?.begin_s ?? 0;
  state.span = Math.max(1e-9, (state.zoomed?.end ?? ends.reduce((most, end) => Math.max(most, end), 0)) - state.from);
  parts.axis.replaceChildren(...TICKS.map((part) => tick(part, state.span)));
  parts.body.setAttribute("aria-rowcount", String(state.rows.length));
  show(parts.out, state.zoomed !== null);
  setText(parts.shown, `${state.rows.length.toLocaleString()} rows${state.zoomed ? ` · zoomed to ${state.zoomed.name}` : ""}`);
  details(state, parts.details);
  paint(state, parts);
}

function tick(part, span) {
  const mark = make("span", { textContent: part === 0 ? "0" : time(part * span) });
  mark.style.insetInlineStart = `${part * 100}%`;
  mark.className = part === 1 ? "last" : part === 0 ? "first" : "";
  return mark;
}

/** Make the elements of the rows in sight. */
function paint(state, { body, space }) {
  const height = parseFloat(getComputedStyle(body).getPropertyValue("--row")) || 28;
  space.style.height = `${state.rows.length * height}px`;
  const first = Math.max(0, Math.floor(body.scrollTop / height) - BEYOND);
  const last = Math.min(state.rows.length, Math.ceil((body.scrollTop + (body.clientHeight || 600)) / height) + BEYOND);
  const rows = [];
  for (let i = first; i < last; i += 1) rows.push(row(state, i, height));
  space.replaceChildren(...rows);
  const at = state.rows.indexOf(state.chosen);
  if (at >= first && at < last) body.setAttribute("aria-activedescendant", `${state.id}-${at}`);
  else body.removeAttribute("aria-activedescendant");
}

function row(state, i, height) {
  const node = state.rows[i];
  const cell = (className, ...children) => make("div", { className, role: "gridcell" }, ...children);
  const sign = make("span", { className: "twisty", "aria-hidden": "true", textContent: node.parts.length ? (node.closed ? "▸" : "▾") : "" });
  const name = cell("wf-name", sign, make("span", { className: "wf-text", textContent: node.name, title: node.name }));
  name.style.paddingInlineStart = `calc(var(--step) * ${Math.min(node.indent, 24)})`;
  const took = node.seconds === null ? "unfinished" : time(node.seconds);
  const element = make(
    "div", { className: `wf-row${node === state.chosen ? " chosen" : ""}`, id: `${state.id}-${i}`, role: "row", "aria-level": String(node.indent + 1), "aria-rowindex": String(i + 1) },
    name, cell("wf-role", node.role), cell("wf-track", ...bars(state, node)), cell("wf-time figure", took),
    cell("wf-share figure", node.share === null ? "" : percent(node.share, 1)),
  );
  if (node.parts.length) element.setAttribute("aria-expanded", String(!node.closed));
  element.setAttribute("aria-selected", String(node === state.chosen));
  element.style.insetBlockStart = `${i * height}px`;
  element.style.height = `${height}px`;
  element.node = node;
  return element;
}

function bars(state, node) {
  const kind = isGap(node) ? "gap" : `role-${state.colours.get(node.role) ?? 0}${node.seconds === null ? " unfinished" : ""}`;
  return (isGap(node) ? gaps(node) : [[node.begin_s, node.end]]).map(([begin, end]) => {
    const from = Math.min(1, Math.max(0, (begin - state.from) / state.span));
    const to = Math.min(1, Math.max(from, (end - state.from) / state.span));
    const bar = make("span", { className: `wf-bar ${kind}` });
    bar.style.insetInlineStart = `min(${100 * from}%, 100% - 2px)`;
    bar.style.width = `${100 * (to - from)}%`;
    return bar;
  });
}

/** When none of a span's parts ran. */
function gaps(node) {
  const whole = node.parent;
  if (whole === null) return [[node.begin_s, node.end]];
  const found = [];
  let until = whole.begin_s;
  const parts = whole.parts.filter((part) => !isGap(part)).sort((one, other) => one.begin_s - other.begin_s);
  for (const part of parts) {
    if (part.begin_s - until > 1e-9) found.push([until, Math.min(part.begin_s, whole.end)]);
    until = Math.max(until, part.end);
  }
  if (whole.end - until > 1e-9) found.push([until, whole.end]);
  return found.sort((one, other) => other[1] - other[0] - (one[1] - one[0])).slice(0, MOST_GAPS);
}

function details(state, place) {
  const node = state.chosen;
  if (node === null) return place.replaceChildren();
  const zoom = make("button", { type: "button", className: "small", textContent: "Zoom to it", "aria-label": `Zoom to ${node.name}` });
  zoom.onclick = () => place.dispatchEvent(new CustomEvent("zoom"));
  show(zoom, node.parts.length > 0);
  const facts = [
    ["began", time(node.begin_s)], ["took", node.seconds === null ? "unfinished" : time(node.seconds)],
    ...(node.role ? [["process", `${node.role} ${node.pid ?? ""}`], ["level", node.level ?? ""], ["span", node.span_id ?? ""]] : []),
    ...Object.entries(node.attributes ?? {}).map(([name, value]) => [name, typeof value === "string" ? value : JSON.stringify(value)]),
  ];
  const title = make("div", { className: "title-row" }, make("h3", { textContent: node.name }), zoom);
  return place.replaceChildren(title, table(`Attributes of ${node.name}`, [["Name"], ["Value", "text"]], facts));
}

function listen(state, parts, draw) {
  const choose = (node) => { state.chosen = node; details(state, parts.details); reveal(state, parts); };
  const zoom = (node) => {
    state.zoomed = node;
    if (node !== null) state.chosen = node;
    parts.body.scrollTop = 0;
    draw();
  };
  const turn = (node, closed) => { if (node?.parts.length) { node.closed = closed; draw(); } };
  const all = (closed) => { every(state.roots, (node) => { node.closed = closed && node.parent !== null && node.parts.length > 0; }); draw(); };
  parts.out.onclick = () => { zoom(null); parts.body.focus(); };
  parts.open.onclick = () => all(false);
  parts.close.onclick = () => all(true);
  parts.least.oninput = () => { state.least = Number(parts.least.value) || 0; draw(); };
  parts.body.onscroll = () => paint(state, parts);
  parts.details.addEventListener("zoom", () => { zoom(state.chosen); parts.body.focus(); });
  parts.body.onclick = (event) => {
    const node = event.target.closest(".wf-row")?.node;
    if (node === undefined) return;
    if (event.target.closest(".twisty")) turn(node, !node.closed);
    else if (event.target.closest(".wf-bar") && !isGap(node)) zoom(node);
    else choose(node);
  };
  parts.body.onkeydown = (event) => {
    if (event.target !== parts.body || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = keys(state, { choose, zoom, turn })[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  };
}

/** What each key does. */
function keys(state, { choose, zoom, turn }) {
  const { rows, chosen } = state;
  const at = rows.indexOf(chosen);
  const to = (i) => choose(rows[Math.min(rows.length - 1, Math.max(0, i))] ?? null);
  return {
    ArrowDown: () => to(at + 1), ArrowUp: () => to(at - 1), Home: () => to(0), End: () => to(rows.length - 1),
    PageDown: () => to(at + 15), PageUp: () => to(at - 15),
    ArrowRight: () => (chosen?.closed ? turn(chosen, false) : to(at + (chosen?.parts.length ? 1 : 0))),
    ArrowLeft: () => (chosen?.parts.length && !chosen.closed ? turn(chosen, true) : rows.includes(chosen?.parent) && choose(chosen.parent)),
    Enter: () => { if (chosen?.parts.length) zoom(chosen); },
    Escape: () => zoom(null),
  };
}

function every(nodes, work) {
  const waiting = [...nodes];
  while (waiting.length) {
    const node = waiting.pop();
    work(node);
    waiting.push(...node.parts);
  }
}

/** Scroll so that the chosen row is in sight. */
function reveal(state, parts) {
  const height = parseFloat(getComputedStyle(parts.body).getPropertyValue("--row")) || 28;
  const at = state.rows.indexOf(state.chosen) * height;
  const { scrollTop, clientHeight } = parts.body;
  const head = parts.head.offsetHeight;
  if (at < scrollTop) parts.body.scrollTop = at;
  else if (at + height + head > scrollTop + clientHeight) parts.body.scrollTop = at + height + head - clientHeight;
  paint(state, parts);
}
