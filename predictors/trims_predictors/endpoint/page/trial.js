// Try a model: a form made of its inputs, one request, and its answer.

import { get, modelPath, send } from "./api.js";
import { showAnswer } from "./answer.js";
import { byId, make, setText, show } from "./dom.js";
import { go } from "./routes.js";
import { expectTrace, newTrace } from "./traces.js";
import { elements, numbers, outputs, sample, shapeOfTexts, shapeText, textsOf } from "./tensors.js";

const IMAGE = /image|img|picture|photo|jpe?g|png/i;
let model = null;
let fields = [];
let sending = null;

/** Show the form of a model, and go there. */
export async function openTrial(chosen) {
  sending?.abort();
  model = chosen.name;
  setText(byId("trial-title"), `Try ${model}`);
  show(byId("trial-empty"), false);
  show(byId("answer"), false);
  fail("");
  setText(byId("progress"), "");
  await describe();
  byId("trial").scrollIntoView({ block: "nearest" });
  (byId("inputs").querySelector("textarea, input") ?? byId("trial-title")).focus();
}

async function describe() {
  const wanted = model;
  try {
    const found = await get(modelPath(wanted));
    if (wanted !== model) return;
    fields = found.inputs.length ? found.inputs.map(field) : [unknownInputs()];
    byId("inputs").replaceChildren(...fields.map((each) => each.element));
    show(byId("trial-form"), true);
  } catch (error) {
    fail(error.message);
  }
}

/** Tell when the model that is being tried is gone. */
export function showTrialState(models) {
  if (model === null) return;
  const there = models.some((each) => each.name === model);
  for (const name of ["send", "send-traced"]) byId(name).disabled = !there;
}

function field(input, index) {
  const id = `input-${index}`;
  const about = make("span", { className: "quiet", textContent: `${input.datatype} ${shapeText(input.shape)}` });
  const label = make("label", { htmlFor: id }, make("b", { textContent: input.name }), " ", about);
  const made = input.datatype === "BYTES" ? textField(input, id) : numberField(input, id);
  return { element: make("div", { className: "field" }, label, ...made.elements), read: made.read };
}

function area(id, rows, hint) {
  const text = make("textarea", { id, rows, spellcheck: false, "aria-describedby": `${id}-hint` });
  return [text, make("p", { id: `${id}-hint`, className: "hint", textContent: hint })];
}

function numberField(input, id) {
  const [text, hint] = area(id, 3, "JSON, such as [[1, 2], [3, 4]], or zeros(2, 2).");
  const button = make("button", { type: "button", className: "small", textContent: "Sample" });
  button.setAttribute("aria-label", `Fill a sample for ${input.name}`);
  button.onclick = () => { text.value = sample(input); text.focus(); };
  const read = async () => {
    if (!text.value.trim()) throw new Error(`${input.name} is empty; press Sample for a small valid input`);
    const { shape, data } = numbers(text.value, input);
    return { json: `${described(input, shape)},"data":${data}}`, blob: null };
  };
  return { elements: [text, make("div", { className: "under" }, hint, button)], read };
}

function textField(input, id) {
  const many = textsOf(input);
  const image = IMAGE.test(input.name);
  const [text, hint] = area(id, image ? 1 : 3, many > 1 ? `${many} lines, one text each.` : "One text; its lines stay together.");
  const file = make("input", { type: "file", id: `${id}-file`, accept: image ? "image/*" : "" });
  const name = make("span", { textContent: image ? "An image file" : "or a file" });
  const preview = make("img", { className: "preview", alt: "", hidden: true });
  file.onchange = () => showPreview(preview, file.files[0]);
  const read = async () => {
    const parts = file.files.length ? [await file.files[0].arrayBuffer()] : texts(text.value, many);
    if (many !== null && parts.length !== many) throw new Error(`${input.name} takes ${many} texts, not ${parts.length}`);
    const blob = elements(parts);
    const size = `"parameters":{"binary_data_size":${blob.size}}`;
    return { json: `${described(input, shapeOfTexts(input, parts.length))},${size}}`, blob };
  };
  const chooser = make("label", { className: "file", htmlFor: file.id }, name, file);
  if (!image) return { elements: [text, make("div", { className: "under" }, hint, chooser), preview], read };
  setText(hint, "An image file is sent as its bytes; a text is sent if no file is chosen.");
  return { elements: [make("div", { className: "over" }, chooser), preview, text, hint], read };
}

function showPreview(preview, file) {
  if (preview.src) URL.revokeObjectURL(preview.src);
  const isImage = file?.type.startsWith("image/") ?? false;
  preview.src = isImage ? URL.createObjectURL(file) : "";
  show(preview, isImage);
}

function texts(value, many) {
  const found = many === null || many === 1 ? [value] : value.split("\n");
  return found.map((each) => new TextEncoder().encode(each));
}

/** A model that states no inputs until it has answered once: its request is written by hand. */
function unknownInputs() {
  const id = "input-all";
  const [text, hint] = area(id, 6, "The manifest states no inputs, and no predictor has told any yet. Write those of a request.");
  text.placeholder = '[{"name": "x", "datatype": "FP32", "shape": [1], "data": [0]}]';
  const label = make("label", { htmlFor: id }, make("b", { textContent: "inputs" }));
  const read = async () => {
    let found;
    try {
      found = JSON.parse(text.value);
    } catch {
      found = null;
    }
    if (!Array.isArray(found)) throw new Error("inputs: write a JSON list of inputs, as the hint shows");
    const inner = text.value.trim().slice(1, -1);
    return { json: inner, blob: null };
  };
  return { element: make("div", { className: "field" }, label, text, hint), read };
}

function described(input, shape) {
  return `{"name":${JSON.stringify(input.name)},"datatype":"${input.datatype}","shape":${JSON.stringify(shape)}`;
}

/** The body of a v2 request: JSON, and binary tensors after it. The answer comes in the same form. */
async function body() {
  const parts = [];
  for (const each of fields) parts.push(await each.read());
  const inputs = parts.map((part) => part.json).join(",");
  const header = new TextEncoder().encode(`{"parameters":{"binary_data_output":true},"inputs":[${inputs}]}`);
  return { content: new Blob([header, ...parts.map((part) => part.blob).filter(Boolean)]), length: header.byteLength };
}

async function infer(path, { content, length }, signal, more) {
  const headers = { ...more, "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(length) };
  const response = await send(path, { method: "POST", headers, body: content, signal });
  const raw = await response.arrayBuffer();
  const end = Number(response.headers.get("Inference-Header-Content-Length") ?? raw.byteLength);
  const header = JSON.parse(new TextDecoder().decode(raw.slice(0, end)));
  return { parameters: header.parameters, outputs: outputs(header, raw.slice(end)) };
}

function submit(event) {
  event.preventDefault();
  ask(null);
}

/** Send the request; a trace that is asked for is shown afterwards. */
async function ask(trace) {
  if (sending !== null) return;
  const mine = new AbortController();
  const asked = model;
  begin(mine);
  let said = "";
  const began = performance.now();
  const clock = setInterval(() => setText(byId("seconds"), ` ${((performance.now() - began) / 1000).toFixed(1)} s`), 100);
  try {
    const answer = await infer(`${modelPath(asked)}/infer`, await body(), mine.signal, trace?.headers);
    if (asked !== model) return;
    showAnswer(byId("answer"), answer, (performance.now() - began) / 1000);
    said = answer.parameters?.cold ? "Answered, cold." : "Answered, warm.";
    if (trace !== null) {
      expectTrace(trace.id);
      go("traces", trace.id);
    }
    if (fields.length === 1 && byId("input-all") && (await hasInputs(asked))) await describe();
  } catch (error) {
    if (asked === model) fail(error.name === "AbortError" ? "Stopped." : error.message);
  } finally {
    clearInterval(clock);
    end(said);
  }
}

async function hasInputs(name) {
  return (await get(modelPath(name))).inputs.length > 0;
}

function begin(mine) {
  sending = mine;
  fail("");
  // A button that is disabled would lose the focus.
  for (const name of ["send", "send-traced"]) byId(name).setAttribute("aria-disabled", "true");
  show(byId("stop"), true);
  const seconds = make("span", { id: "seconds", "aria-hidden": "true" });
  byId("progress").replaceChildren("Waiting for the answer", seconds);
}

/** `said` is for screen readers: the line was there before, so its change is read. */
function end(said) {
  sending = null;
  for (const name of ["send", "send-traced"]) byId(name).removeAttribute("aria-disabled");
  if (document.activeElement === byId("stop")) byId("send").focus();
  show(byId("stop"), false);
  setText(byId("progress"), said);
}

function fail(message) {
  const line = byId("trial-error");
  setText(line, message);
  show(line, message !== "");
  if (message) show(byId("answer"), false);
}

byId("trial-form").addEventListener("submit", submit);
byId("trial-form").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("trial-form").requestSubmit();
});
byId("send-traced").onclick = () => ask(newTrace());
byId("stop").onclick = () => sending?.abort();
