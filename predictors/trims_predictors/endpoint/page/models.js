// What is resident where: places with their capacity, models with their replicas and predictors, and orders to them.

import { orderPath, post } from "./api.js";
import { confirm } from "./dialogs.js";
import { byId, bytes, count, keep, make, setText, show, span } from "./dom.js";

const FILTER_FROM = 9; // models
const PLACES = { cpu: "shared memory", disk: "on disk", file: "read in place", cloud: "in buckets" };
// Places that nobody orders anything to: what lies there is a user's, or another machine's.
const NOT_OURS = ["file", "cloud"];
const TRANSFERS = { look: "Looking at", fetch: "Fetching", image: "Fetching", push: "Pushing to", read: "Reading" };
const STATES = {
  queued: "waits for room", filling: "is being loaded", sealed: "", draining: "goes when its leases end",
  freeing: "is being freed",
};
let shown = null;

/** `spares` are processes that wait on devices: {place, bytes} and more. */
export function showPlaces(places, spares) {
  const waiting = (place) => spares.filter((each) => each.place === place);
  const shown = places.map((each) => ({ ...each, spares: waiting(each.place) }));
  keep(byId("places"), shown, (each) => each.place, createPlace);
}

export function showTransfers(transfers) {
  keep(byId("transfers"), transfers, (each) => `${each.what} ${each.address}`, createTransfer);
  show(byId("transfers-section"), transfers.length > 0);
}

function createTransfer(first) {
  const used = make("div", { className: "used" });
  const meter = make("div", { className: "meter", "aria-hidden": "true" }, used);
  const text = make("span", { className: "figure" });
  const left = make("span", { className: "quiet" });
  const name = make("b", { className: "address", textContent: `${TRANSFERS[first.what] ?? first.what} ${first.address}` });
  const update = (now) => {
    const part = now.total_bytes ? now.done_bytes / now.total_bytes : 0;
    setText(text, now.total_bytes ? `${bytes(now.done_bytes)} of ${bytes(now.total_bytes)}` : "");
    const rate = now.bytes_per_s ? `${bytes(Math.round(now.bytes_per_s))}/s` : "";
    setText(left, [rate, now.left_s === null ? "" : `${span(now.left_s)} left`].filter(Boolean).join(" · "));
    used.style.width = `${100 * part}%`;
    show(meter, now.total_bytes > 0);
  };
  return { element: make("li", { className: "place" }, make("div", { className: "place-head" }, name, text), meter, left), update };
}

function sum(spares) {
  return spares.reduce((all, each) => all + each.bytes, 0);
}

function createPlace(place) {
  const used = make("div", { className: "used" });
  const text = make("span", { className: "figure" });
  const about = make("span", { className: "quiet" });
  const trouble = make("p", { className: "error", hidden: true });
  const meter = make("div", { className: "meter", "aria-hidden": "true" }, used);
  const head = make("div", { className: "place-head" }, make("b", { textContent: place.place }), text);
  const update = (now) => {
    const limit = now.capacity_bytes;
    const spares = now.spares.length ? `${count(now.spares.length, "spare")} with ${bytes(sum(now.spares))}` : "";
    const facts = [now.device || PLACES[now.place] || "", count(now.replicas, "image"), spares];
    setText(about, facts.filter(Boolean).join(" · "));
    setText(text, limit === null ? bytes(now.used_bytes) : `${bytes(now.used_bytes)} of ${bytes(limit)}`);
    used.style.width = limit ? `${Math.min(100, (100 * now.used_bytes) / limit)}%` : "0";
    used.classList.toggle("nothing", !now.used_bytes);
    meter.classList.toggle("full", Boolean(limit) && now.used_bytes > 0.9 * limit);
    show(meter, limit !== null);
    setText(trouble, now.trouble);
    show(trouble, now.trouble !== "");
  };
  return { element: make("li", { className: "place" }, head, meter, about, trouble), update };
}

/** `page` has what models need of the rest: tryModel, refresh, banner; empty: whether no models means none are there. */
export function showModels(state, page) {
  shown = { state, page };
  show(byId("filter-label"), state.models.length >= FILTER_FROM);
  const wanted = byId("filter").value.trim().toLowerCase();
  const models = state.models.filter((each) => each.name.toLowerCase().includes(wanted));
  keep(byId("models"), models, (each) => each.name, (each) => createModel(each, page));
  show(byId("no-models"), page.empty && state.models.length === 0);
  show(byId("none-match"), state.models.length > 0 && models.length === 0);
}

byId("filter").addEventListener("input", () => { if (shown !== null) showModels(shown.state, shown.page); });

function createModel(first, page) {
  const name = first.name;
  let model = first;
  const about = make("p", { className: "quiet" });
  const trouble = make("p", { className: "error" });
  const replicas = make("ul", { className: "plain replicas" });
  const nowhere = make("p", { className: "quiet", textContent: "Not resident. The first request loads it." });
  const predictors = make("p", { className: "predictors" });
  const tryIt = make("button", { type: "button", textContent: "Try", className: "primary", "aria-label": `Try ${name}` });
  const load = make("button", { type: "button", textContent: "Load…", "aria-label": `Load ${name}` });
  tryIt.onclick = () => page.tryModel(model);
  load.onclick = () => order(page, load, model, "load");
  const head = make(
    "div", { className: "model-head" },
    make("div", { className: "names" }, make("h3", { textContent: name }), about),
    make("div", { className: "buttons" }, tryIt, load),
  );
  const update = (now) => {
    model = now;
    const size = now.image_bytes ? bytes(now.image_bytes) : "not converted yet";
    setText(about, [now.framework || now.format, `version ${now.version}`, size, now.description].filter(Boolean).join(" · "));
    setText(trouble, now.trouble || (now.failure && `It could not be loaded: ${now.failure}`));
    show(trouble, (now.trouble || now.failure) !== "");
    tryIt.disabled = now.trouble !== "";
    keep(replicas, now.replicas, (each) => each.place, (each) => createReplica(each, page, () => model));
    show(nowhere, now.replicas.length === 0 && now.trouble === "");
    show(predictors, now.trouble === "");
    setText(predictors, aboutPredictors(now.predictors));
  };
  return { element: make("li", { className: "model" }, head, trouble, replicas, nowhere, predictors), update };
}

function aboutPredictors(line) {
  const parts = [`${line.busy} running`, `${line.idle} idle`, ...(line.starting ? [`${line.starting} starting`] : []),
    ...(line.hot ? [count(line.hot, "hot spare")] : [])];
  const none = !line.busy && !line.idle && !line.starting && !line.hot;
  return `${none ? "No predictors" : `Predictors: ${parts.join(", ")}`} · ${count(line.queued, "request")} waiting`;
}

function createReplica(first, page, modelOf) {
  let replica = first;
  const size = make("span", { className: "figure" });
  const leases = make("span", { className: "figure" });
  const stay = make("span", { className: "stay" });
  const pin = make("button", { type: "button", className: "small" });
  const evict = make("button", { type: "button", className: "small", textContent: "Evict…" });
  evict.setAttribute("aria-label", `Evict ${modelOf().name} from ${first.place}`);
  pin.onclick = () => order(page, pin, modelOf(), replica.pinned ? "unpin" : "pin", replica);
  evict.onclick = () => order(page, evict, modelOf(), "evict", replica);
  const update = (now) => {
    replica = now;
    setText(size, bytes(now.bytes));
    setText(leases, count(now.leases, "lease"));
    setText(stay, aboutStay(now));
    stay.classList.toggle("pinned", now.pinned);
    setText(pin, now.pinned ? "Unpin…" : "Pin…");
    pin.setAttribute("aria-label", `${now.pinned ? "Unpin" : "Pin"} ${modelOf().name} at ${now.place}`);
    evict.disabled = now.state !== "sealed" || now.pinned;
    evict.title = now.pinned ? "Unpin it first" : "";
    for (const button of [pin, evict]) show(button, !NOT_OURS.includes(now.place));
  };
  const buttons = make("span", { className: "buttons" }, pin, evict);
  return { element: make("li", {}, make("b", { textContent: first.place }), size, leases, stay, buttons), update };
}

function aboutStay(replica) {
  const state = STATES[replica.state] ?? replica.state;
  if (state) return state;
  if (replica.pinned) return "pinned";
  return replica.keep_left_s === null ? "until room is needed" : `kept ${span(replica.keep_left_s)} more`;
}

/** What each order asks and does. */
const ORDERS = {
  load: (model, _, places) => ({
    title: `Load ${model.name}?`, verb: "Load",
    text: "Its weights come to the place and stay until their room is needed. This can take a while for a large model.",
    places: [["", "as its manifest says"], ...places.map((place) => [place, place])],
  }),
  pin: (model, replica) => ({
    title: `Pin ${model.name} at ${replica.place}?`, verb: "Pin",
    text: `Its ${bytes(replica.bytes)} stay there, whatever else needs the room, until it is unpinned.`,
  }),
  unpin: (model, replica) => ({
    title: `Unpin ${model.name} at ${replica.place}?`, verb: "Unpin",
    text: `Its ${bytes(replica.bytes)} may be evicted again when their room is needed.`,
  }),
  evict: (model, replica) => ({
    title: `Evict ${model.name} from ${replica.place}?`, verb: "Evict", danger: true,
    text: `This frees ${bytes(replica.bytes)} and ends the model's idle predictors. `
      + (replica.leases ? `${count(replica.leases, "lease")} on it may run out first. ` : "")
      + "The model stays registered, and the next request loads it again.",
  }),
};

async function order(page, button, model, verb, replica = null) {
  const places = shown.state.places.map((each) => each.place).filter((place) => !NOT_OURS.includes(place));
  const wanted = await confirm(ORDERS[verb](model, replica, places));
  if (wanted === null) return;
  button.setAttribute("aria-busy", "true");
  button.disabled = true;
  try {
    await post(orderPath(model.name, verb), { place: replica === null ? wanted.place || null : replica.place });
    page.banner("");
  } catch (error) {
    page.banner(`${ORDERS[verb](model, replica, places).verb} ${model.name}: ${error.message}`);
  } finally {
    button.disabled = false;
    button.removeAttribute("aria-busy");
    await page.refresh();
    if (document.activeElement === document.body && button.isConnected) button.focus();
  }
}
