// Evaluations: the list of all, what starts one, and the way to one of them or to two compared.

import { get, post } from "./api.js";
import { showComparison } from "./comparison.js";
import { byId, count, keep, make, moment, setText, show } from "./dom.js";
import { showEvaluation } from "./evaluation.js";
import { makeForm } from "./order.js";
import { progressBar, watch } from "./progress.js";
import { go, link } from "./routes.js";

let models = [];
let form = null;

/** The models that can be evaluated, whenever the page learns them. */
export function showKnownModels(known) {
  models = known.filter((each) => each.trouble === "").map((each) => each.name);
  form?.offer(models);
}

/** The view: `[]` is the list, `[id]` one, `[id, "explained", other]` two. */
export function openEvaluations([id, verb, other], signal) {
  fail("");
  const place = byId("evaluations");
  place.replaceChildren();
  const work = id === undefined ? list(place, signal) : verb === "explained" && other ? two(place, id, other, signal) : one(place, id, signal);
  work.catch((error) => { if (!signal.aborted) fail(error.message); });
}

function fail(text) {
  setText(byId("evaluations-error"), text);
  show(byId("evaluations-error"), text !== "");
}

const back = () => make("p", {}, make("a", { href: link("evaluations"), textContent: "‹ All evaluations" }));

async function one(place, id, signal) {
  setText(byId("evaluations-title"), "Evaluation");
  const inner = make("div", { className: "flow" });
  place.append(back(), inner);
  await showEvaluation(inner, id, signal, fail);
}

async function two(place, id, other, signal) {
  setText(byId("evaluations-title"), "Two evaluations");
  const inner = make("div", { className: "flow" }, make("p", { className: "quiet", role: "status", textContent: "Comparing…" }));
  place.append(back(), inner);
  await showComparison(inner, id, other, signal);
}

async function list(place, signal) {
  setText(byId("evaluations-title"), "Evaluations");
  form = makeForm(models, fail);
  const running = make("div", { className: "sheet running", hidden: true });
  const told = make("p", { className: "quiet", role: "status", textContent: "Looking for evaluations…" });
  const chosen = new Set();
  const compare = make("button", { type: "button", className: "small", textContent: "Compare the two", disabled: true });
  const items = make("ul", { className: "plain sheet evaluation-list" });
  compare.onclick = () => go("evaluations", [...chosen].sort()[0], "explained", [...chosen].sort()[1]);
  const choose = () => {
    compare.disabled = chosen.size !== 2;
    for (const box of items.querySelectorAll("input")) box.disabled = chosen.size === 2 && !box.checked;
  };
  show(items, false);
  show(compare, false);
  place.append(form.element, running, make("div", { className: "title-row" }, told, compare), items);
  for (;;) {
    const found = await get("v1/evaluations", 60000);
    if (signal.aborted) return;
    const ids = new Set(found.evaluations.map((each) => each.id));
    for (const id of chosen) if (!ids.has(id)) chosen.delete(id);
    const newest = [...found.evaluations].sort((one, other) => other.began_unix_s - one.began_unix_s);
    keep(items, newest, (each) => each.id, (each) => createItem(each, chosen, choose));
    choose();
    show(items, newest.length > 0);
    show(compare, newest.length > 1);
    setText(told, newest.length ? count(newest.length, "evaluation") : "Nothing was evaluated yet.");
    if (found.running === null) return;
    await follow(running, found.running, signal);
    if (signal.aborted) return;
  }
}

/** Show how far the running evaluation is until it has ended. */
async function follow(place, first, signal) {
  const bar = progressBar();
  const name = make("a", { href: link("evaluations", first.id), textContent: `${first.model} is being evaluated` });
  bar.update(first);
  place.replaceChildren(make("h3", {}, name), bar.element);
  show(place, true);
  await watch(first.id, signal, bar.update, fail);
  show(place, false);
}

function createItem(first, chosen, choose) {
  const label = first.scenario || first.model;
  const box = make("input", { type: "checkbox", "aria-label": `Compare ${first.id}` });
  box.onchange = () => {
    if (box.checked) chosen.add(first.id);
    else chosen.delete(first.id);
    choose();
  };
  const open = make("a", { href: link("evaluations", first.id), textContent: label });
  const about = make("p", { className: "quiet" });
  const state = make("span", { className: "badge" });
  const resume = make("button", { type: "button", className: "small", textContent: "Resume", "aria-label": `Resume ${first.id}` });
  resume.onclick = () => again(first.id, resume);
  const names = make("div", { className: "names" }, make("h3", {}, open), about);
  const element = make("li", { className: "evaluation" }, box, names, state, resume);
  const update = (now) => {
    const model = now.scenario ? `${now.model} · ` : "";
    setText(about, `${model}${moment(now.began_unix_s)} · ${now.samples} of ${count(now.wanted, "sample")} · ${now.id}`);
    setText(state, now.ended ? "ended" : "not ended");
    state.classList.toggle("warm", now.ended);
    show(resume, !now.ended);
  };
  return { element, update };
}

/** Go on with an evaluation, and show it. */
export async function again(id, button) {
  button.disabled = true;
  try {
    await post("v1/evaluations", { resume: id });
    go("evaluations", id);
  } catch (error) {
    fail(error.message);
  } finally {
    button.disabled = false;
  }
}
