// The form that adds a model: the folder of a Hugging Face model, or a file of weights.

import { post } from "./api.js";
import { byId, setText, show } from "./dom.js";

/** `added()` is called once a model is there, `sentence` makes one of an error's text. */
export function openAddition(added, sentence) {
  const form = byId("add-form");
  const fields = ["path", "name", "task"];
  form.onsubmit = async (event) => {
    event.preventDefault();
    const given = fields.map((each) => [each, byId(`add-${each}`).value.trim()]).filter(([, text]) => text);
    begin();
    try {
      const model = await post("ui/models", Object.fromEntries(given));
      form.reset();
      setText(byId("add-progress"), model.note ? `${model.name} is added. ${model.note}.` : `${model.name} is added.`);
      added();
    } catch (error) {
      setText(byId("add-progress"), "");
      fail(sentence(error.message));
    } finally {
      byId("add-yes").disabled = false;
    }
  };
}

function begin() {
  byId("add-yes").disabled = true;
  setText(byId("add-progress"), "Looking into its files");
  fail("");
}

function fail(text) {
  setText(byId("add-error"), text);
  show(byId("add-error"), text !== "");
}
