// Recorded traces: the last ones as a list, and one as a waterfall.

import { RefusedError, get, tracePath } from "./api.js";
import { byId, count, make, moment, setText, show, table, time } from "./dom.js";
import { link, pause } from "./routes.js";
import { waterfall } from "./waterfall.js";

const LISTED = 50;
const MOST_LISTED = 500;
const EVERY_MS = 700;
const PATIENCE_MS = 20000; // until the spans of a request that was answered are written by all processes
const expected = new Map();

/** A trace that a request asks for: its id, and the headers that ask. */
export function newTrace() {
  const digits = (bytes) => Array.from(crypto.getRandomValues(new Uint8Array(bytes)), (each) => each.toString(16).padStart(2, "0")).join("");
  const id = digits(16);
  return { id, headers: { traceparent: `00-${id}-${digits(8)}-01`, tracestate: "trims=1" } };
}

/** Have a trace be waited for: its processes are about to write it. */
export function expectTrace(id) {
  expected.clear(); // only the last request's
  expected.set(id, performance.now() + PATIENCE_MS);
}

/** The view: a list, or one trace. */
export function openTraces([id], signal) {
  fail("");
  setText(byId("traces-progress"), "");
  setText(byId("traces-title"), id === undefined ? "Traces" : "Trace");
  byId("traces").replaceChildren();
  (id === undefined ? list(LISTED, signal) : open(id, signal)).catch((error) => {
    if (!signal.aborted) fail(error.message);
  });
}

function fail(text) {
  setText(byId("traces-error"), text);
  show(byId("traces-error"), text !== "");
}

async function list(most, signal) {
  setText(byId("traces-progress"), "Looking for recorded traces…");
  const { traces } = await get(`v1/traces?limit=${most}`, 60000);
  if (signal.aborted) return;
  const again = make("button", { type: "button", className: "small", textContent: "Look again" });
  again.onclick = () => openTraces([], signal);
  setText(byId("traces-progress"), traces.length ? `The last ${count(traces.length, "trace")}` : "");
  const more = make("button", { type: "button", className: "small", textContent: `Show up to ${MOST_LISTED}` });
  more.onclick = () => list(MOST_LISTED, signal).catch((error) => fail(error.message));
  const buttons = make("div", { className: "buttons" }, again, ...(traces.length === most && most < MOST_LISTED ? [more] : []));
  byId("traces").replaceChildren(buttons, traces.length ? listed(traces) : nothing());
}

function listed(traces) {
  const rows = traces.map((each) => [
    make("a", { href: link("traces", each.trace_id), textContent: each.name }),
    moment(each.began_unix_ns / 1e9), time(each.seconds), String(each.spans), String(each.processes), make("code", { textContent: each.trace_id.slice(0, 8) }),
  ]);
  const columns = [["What", "text"], ["Began"], ["Took", "figure"], ["Spans", "figure"], ["Processes", "figure"], ["Id"]];
  return table("Recorded traces", columns, rows);
}

function nothing() {
  return make("div", { className: "empty" },
    make("p", {}, make("strong", { textContent: "No traces are recorded." })),
    make("p", { textContent: "Try a model and press “Trace this request”, evaluate a model, or on this machine:" }),
    make("pre", { textContent: "trims trace MODEL\ntrims serve --trace yes" }));
}

async function open(id, signal) {
  const about = make("p", { className: "quiet" });
  const place = make("div", {});
  byId("traces").replaceChildren(make("p", {}, make("a", { href: link("traces"), textContent: "‹ All traces" })), about, place);
  const until = expected.get(id) ?? 0;
  let before = null;
  for (;;) {
    const found = await look(id, until, signal);
    if (signal.aborted) return;
    if (found !== null && found.lines.length !== before?.lines.length) {
      setText(about, `${found.name} · ${time(found.seconds)} · ${count(found.spans, "span")} of ${count(found.processes, "process", "processes")} · ${id}`);
      place.replaceChildren(waterfall(found));
    }
    const whole = found !== null && (found.lines.length === before?.lines.length || performance.now() > until)
      && (found.lines.every((line) => line.seconds !== null) || performance.now() > until);
    setText(byId("traces-progress"), whole ? "" : found === null ? "Waiting until its spans are written…" : "More spans may come…");
    if (whole) return;
    before = found;
    await pause(EVERY_MS, signal);
    if (signal.aborted) return;
  }
}

/** The trace; null while it may still be written. */
async function look(id, until, signal) {
  if (until === 0) setText(byId("traces-progress"), "Reading the trace…");
  try {
    return await get(tracePath(id), 60000);
  } catch (error) {
    if (error instanceof RefusedError && error.status === 400 && performance.now() < until) return null;
    if (!signal.aborted) setText(byId("traces-progress"), "");
    throw error;
  }
}
