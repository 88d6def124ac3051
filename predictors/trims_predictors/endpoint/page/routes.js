// Views of the page by the part of the address after #, so that a link and a reload keep the view.

import { byId, show } from "./dom.js";

const VIEWS = { models: "Models", evaluations: "Evaluations", traces: "Traces" };
const views = new Map();
let visit = null;
let wasFirst = true;

/** `#/evaluations/A%2FB` -> ["evaluations", "A/B"]. What cannot be read is the first view. */
function parts(hash) {
  try {
    const found = hash.replace(/^#\/?/, "").split("/").filter(Boolean).map(decodeURIComponent);
    return found[0] in VIEWS ? found : ["models"];
  } catch {
    return ["models"];
  }
}

export const link = (...names) => `#/${names.map(encodeURIComponent).join("/")}`;

export function go(...names) {
  if (location.hash === link(...names)) enter();
  else location.hash = link(...names);
}

/** Name of the view that is shown. */
export const current = () => parts(location.hash)[0];

/** Have `open(rest, signal)` fill a view when it is entered; the signal aborts when it is left. */
export function addView(name, open) {
  views.set(name, open);
}

/** Show what the address names, now and whenever it changes. */
export function begin() {
  addEventListener("hashchange", enter);
  byId("skip").onclick = (event) => {
    event.preventDefault(); // the address names the view
    byId(`${current()}-title`).focus();
  };
  for (const name of Object.keys(VIEWS)) {
    byId(`to-${name}`).onclick = (event) => {
      if (location.hash === event.currentTarget.hash) enter(); // once more: nothing else says so
    };
  }
  enter();
}

function enter() {
  if (location.hash !== "" && !location.hash.startsWith("#/")) return; // a place within the page
  visit?.abort();
  visit = new AbortController();
  const [name, ...rest] = parts(location.hash);
  for (const each of Object.keys(VIEWS)) {
    show(byId(`view-${each}`), each === name);
    const item = byId(`to-${each}`);
    if (each === name) item.setAttribute("aria-current", "page");
    else item.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[name]} · trims`;
  views.get(name)?.(rest, visit.signal);
  if (!wasFirst) {
    scrollTo(0, 0);
    byId(`${name}-title`).focus({ preventScroll: true });
  }
  wasFirst = false;
}

/** Wait, or return at once when the view is left. */
export function pause(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
  });
}
