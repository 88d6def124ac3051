// One evaluation: how far it is while it runs, and then its report, with what can be done with it.

import { evaluationPath, post, remove, send } from "./api.js";
import { confirm } from "./dialogs.js";
import { make, show } from "./dom.js";
import { progressBar, watch } from "./progress.js";
import { report } from "./report.js";
import { go } from "./routes.js";

/** Show it, and go on while it runs. `fail` shows an error; with "" none. */
export async function showEvaluation(place, id, signal, fail) {
  place.replaceChildren(make("p", { className: "quiet", role: "status", textContent: "Reading the evaluation…" }));
  let bar = null;
  let state = "";
  const found = await watch(id, signal, (now) => {
    if (state !== now.state) {
      [bar, state] = [progressBar(), now.state];
      place.replaceChildren(head(place, now, signal, fail), bar.element);
    }
    bar.update(now);
  }, fail);
  if (found === null) return;
  place.replaceChildren(head(place, found, signal, fail), ...(found.rows === undefined ? [] : report(found)));
  if (found.error) fail(`It failed: ${found.error}`);
}

function head(place, found, signal, fail) {
  const order = (text, className, work) => {
    const button = make("button", { type: "button", className, textContent: text });
    button.onclick = async () => {
      button.disabled = true;
      try {
        fail("");
        await work();
      } catch (error) {
        fail(error.message);
      } finally {
        button.disabled = false;
      }
    };
    return button;
  };
  const showAgain = () => showEvaluation(place, found.id, signal, fail).catch((error) => { if (!signal.aborted) fail(error.message); });
  const isKept = found.rows !== undefined;
  const cancel = order("Cancel", "", async () => { await remove(evaluationPath(found.id)); });
  const resume = order("Resume", "primary", async () => { await post("v1/evaluations", { resume: found.id }); await showAgain(); });
  const save = order("Save HTML report", "", () => saveReport(found.id));
  const gone = order("Remove…", "", () => forget(found));
  show(cancel, found.state === "running");
  show(resume, isKept && !found.ended);
  show(save, isKept);
  show(gone, isKept);
  const state = make("span", { className: `badge${found.state === "ended" ? " warm" : ""}`, textContent: found.state });
  const title = make("h3", {}, found.model, " ", state);
  return make("div", { className: "model-head" }, make("div", { className: "names" }, title, make("p", { className: "quiet", textContent: found.id })),
    make("div", { className: "buttons" }, cancel, resume, save, gone));
}

/** A link cannot carry the token, and a page of this one's would have this one's policy: so it is saved as a file. */
async function saveReport(id) {
  const content = await (await send(evaluationPath(id, "report"), { patience: 60000 })).blob();
  const url = URL.createObjectURL(content);
  make("a", { href: url, download: `evaluation-${id}.html` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

async function forget(found) {
  const text = `Its samples, traces and tables are removed from the database. ${found.model} stays as it is.`;
  if ((await confirm({ title: `Remove ${found.id}?`, text, verb: "Remove", danger: true })) === null) return;
  await remove(evaluationPath(found.id));
  go("evaluations");
}
