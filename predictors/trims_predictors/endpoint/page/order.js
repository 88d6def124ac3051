// The form that starts an evaluation. What it offers and what it begins with are those of `trims eval`.

import { post } from "./api.js";
import { make } from "./dom.js";
import { go } from "./routes.js";

const TIERS = ["file", "disk", "cpu", "gpu"];
const USUAL_TIERS = ["file", "disk", "cpu"];
const WAYS = [
  ["alone", "the framework alone"], ["fresh", "a program of its own"], ["template", "a fork of a template"],
  ["spare", "a fork that waited"],
  ["hot", "one that runs already"], ["settled", "the same after a rest"],
];
const LEVELS = ["model", "framework", "library", "system", "hardware"];

/** Returns {element, offer(models)}. */
export function makeForm(models, fail) {
  const fields = makeFields();
  const begin = make("button", { type: "submit", className: "primary", textContent: "Begin", id: "order-begin" });
  const form = make("form", { id: "order", noValidate: false }, ...fields.elements, make("div", { className: "buttons" }, begin));
  form.onsubmit = async (event) => {
    event.preventDefault();
    begin.disabled = true;
    try {
      fail("");
      go("evaluations", (await post("v1/evaluations", fields.read())).id);
    } catch (error) {
      fail(error.message);
    } finally {
      begin.disabled = false;
    }
  };
  const summary = make("summary", { textContent: "New evaluation", id: "order-open" });
  const element = make("details", { className: "sheet" }, summary, form);
  const offer = (known) => {
    const there = [...fields.model.options].map((each) => each.value);
    if (known.length === there.length && known.every((name, i) => name === there[i])) return;
    const before = fields.model.value;
    fields.model.replaceChildren(...known.map((name) => make("option", { value: name, textContent: name })));
    if (known.includes(before)) fields.model.value = before;
    begin.disabled = known.length === 0;
  };
  begin.disabled = true;
  offer(models);
  return { element, offer };
}

function makeFields() {
  const model = make("select", { id: "order-model", required: true });
  const tiers = boxes("From", "tier", TIERS.map((each) => [each, each]), USUAL_TIERS);
  const ways = boxes("How", "way", WAYS.map(([name, text]) => [name, `${name}: ${text}`]), WAYS.map(([name]) => name));
  const repeat = number("order-repeat", "10", "1", "10000", "1");
  const batch = make("input", { id: "order-batch", value: "1", autocomplete: "off", pattern: "[0-9, ]+", required: true });
  const idle = number("order-idle", "2", "0", "86400", "any");
  const level = make("select", { id: "order-level" }, ...LEVELS.map((each) => make("option", { value: each, textContent: each })));
  const request = make("textarea", { id: "order-request", rows: 2, spellcheck: false, "aria-describedby": "order-request-hint" });
  const hint = make("p", { id: "order-request-hint", className: "hint", textContent: "A request of the inference protocol, as JSON. Without one, inputs are made from those of the model, from a stated seed." });
  const row = make(
    "div", { className: "order-row" }, labelled(model, "Model"), labelled(repeat, "Samples of each"), labelled(batch, "Batches, as 1,2,4"),
    labelled(idle, "Seconds of rest"), labelled(level, "Down to the level"),
  );
  const elements = [row, tiers.element, ways.element, make("div", {}, labelled(request, "Request (optional)"), hint)];
  const read = () => ({
    model: model.value, from: tiers.read(), how: ways.read(), repeat: repeat.valueAsNumber, batch: numbers(batch.value),
    idle: idle.valueAsNumber, level: level.value, ...(request.value.trim() ? { request: parsed(request.value) } : {}),
  });
  return { model, elements, read };
}

function number(id, value, min, max, step) {
  return make("input", { id, type: "number", value, min, max, step, required: true });
}

function labelled(field, text) {
  return make("label", { htmlFor: field.id, className: "labelled" }, make("span", { textContent: text }), field);
}

function boxes(text, kind, names, usual) {
  const made = names.map(([name, about]) => [make("input", { type: "checkbox", value: name, checked: usual.includes(name), id: `order-${kind}-${name}` }), about]);
  const labels = made.map(([box, about]) => make("label", { htmlFor: box.id, className: "box" }, box, about));
  const element = make("fieldset", {}, make("legend", { textContent: text }), ...labels);
  return { element, read: () => made.filter(([box]) => box.checked).map(([box]) => box.value) };
}

function numbers(text) {
  return text.split(",").map((each) => each.trim()).filter(Boolean).map(Number);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("The request is no JSON.");
  }
}
