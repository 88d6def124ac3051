// An answer: cold or warm, from where, its stages as bars, its outputs.

import { count, make, milliseconds, show } from "./dom.js";
import { shapeText, summary, tensorText, valueText } from "./tensors.js";

/** Stage -> what it is, and which part of the work it belongs to. In the order in which they happen. */
const STAGES = [
  ["wait", "wait for a predictor", "start"],
  ["process", "start its process", "start"],
  ["connect", "connect to the daemon", "start"],
  ["open", "open the weights", "start"],
  ["import", "import the predictor", "start"],
  ["load", "make the model ready", "start"],
  ["input", "take the inputs", "run"],
  ["preprocess", "steps before", "run"],
  ["predict", "compute", "compute"],
  ["postprocess", "steps after", "run"],
  ["output", "give the outputs", "run"],
  ["between", "between the processes", "run"],
];

/** What a predictor does with one request. */
const RUN = ["input", "preprocess", "predict", "postprocess", "output"];

const HOW = {
  running: "a predictor was running", spare: "a spare predictor took it",
  hot: "a spare predictor that had loaded the model took it", forked: "a predictor was forked for it",
  spawned: "a new process was started for it",
};

export function showAnswer(parent, answer, total) {
  const told = answer.parameters ?? {};
  const bars = stages(told);
  const spent = bars.reduce((all, each) => all + each.seconds, 0);
  parent.replaceChildren(
    headline(told, spent, total),
    chart(bars, spent),
    ...answer.outputs.map(output),
  );
  show(parent, true);
}

function headline(told, spent, total) {
  const cold = make("strong", { className: told.cold ? "badge cold" : "badge warm", textContent: told.cold ? "Cold" : "Warm" });
  const how = HOW[told.predictor] ?? "a predictor answered";
  const where = `weights at ${told.place}${told.cold ? (told.resident ? ", resident before" : ", loaded for it") : ""}`;
  const text = `${milliseconds(spent)} in the endpoint, ${milliseconds(total)} as this page sees it · ${how} · ${where}`;
  const shared = told.batch > 1 ? ` · in one run with ${count(told.batch - 1, "other request")}` : "";
  return make("p", { className: "headline" }, cold, ` ${text}${shared}`);
}

/** Seconds of each stage. For a cold answer `queue_s` holds the stages of its predictor's start. */
function stages(told) {
  const starts = ["process", "connect", "open", "import", "load"];
  const known = (name) => Math.max(0, told[`${name}_s`] ?? 0);
  const found = Object.fromEntries([...starts, ...RUN].map((name) => [name, known(name)]));
  found.wait = Math.max(0, known("queue") - starts.reduce((all, name) => all + found[name], 0));
  found.between = Math.max(0, known("run") - RUN.reduce((all, name) => all + found[name], 0));
  let from = 0;
  const always = ["wait", "input", "predict", "output", "between"];
  return STAGES.filter(([name]) => always.includes(name) || told[`${name}_s`] !== undefined).map(([name, text, kind]) => {
    const made = { text, kind, from, seconds: found[name] };
    from += found[name];
    return made;
  });
}

function chart(bars, whole) {
  const rows = bars.map(({ text, kind, from, seconds }) => {
    const bar = make("span", { className: `bar ${kind}` });
    bar.style.marginInlineStart = `min(${whole ? (100 * from) / whole : 0}%, 100% - 2px)`;
    bar.style.width = `${whole ? (100 * seconds) / whole : 0}%`;
    const track = make("td", { className: "track", "aria-hidden": "true" }, make("div", {}, bar));
    const name = make("th", { scope: "row", textContent: text });
    return make("tr", {}, name, track, make("td", { className: "figure", textContent: milliseconds(seconds) }));
  });
  const caption = make("caption", { textContent: "Where the time went" });
  return make("table", { className: "stages" }, caption, make("tbody", {}, ...rows));
}

function output(tensor) {
  const about = make("span", { className: "quiet", textContent: ` ${tensor.datatype} ${shapeText(tensor.shape)}` });
  const title = make("h3", {}, tensor.name, about);
  const text = make("pre", { tabIndex: 0, textContent: tensorText(tensor), "aria-label": `Output ${tensor.name}`, role: "region" });
  const facts = summary(tensor);
  return make("div", { className: "output" }, title, text, ...(facts ? [make("p", { className: "quiet", textContent: told(tensor, facts) })] : []));
}

function told(tensor, facts) {
  const odd = facts.odd ? `, ${facts.odd} not finite` : "";
  if (facts.least === undefined) return `${tensor.size} elements${odd}`;
  const say = (value) => valueText({ datatype: "FP32" }, value);
  const range = `least ${say(facts.least)}, largest ${say(facts.most)} (element ${facts.at}), mean ${say(facts.mean)}`;
  return `${tensor.size} elements, shown by their ends: ${range}${odd}`;
}
