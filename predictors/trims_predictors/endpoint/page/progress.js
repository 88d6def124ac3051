// How far an evaluation is.

import { AwayError, evaluationPath, get } from "./api.js";
import { make, setText, show, time } from "./dom.js";
import { pause } from "./routes.js";

const EVERY_MS = 1000;

/** Whether its process is there; one that was cancelled has to write what it has. */
export const isBusy = ({ state }) => state === "running" || state === "ending";

/**
 * Read an evaluation again and again until it has ended, or the view is left: then null. An endpoint that is away for a
 * while does not end this. `see` gets what was read while it runs; `fail` the trouble, and "" when that is over.
 */
export async function watch(id, signal, see, fail) {
  let isAway = false;
  for (let reads = 0; !signal.aborted;) {
    try {
      const found = await get(evaluationPath(id), 60000);
      if (signal.aborted) return null;
      if (isAway) fail("");
      [isAway, reads] = [false, reads + 1];
      if (!isBusy(found)) return found;
      see(found);
    } catch (error) {
      if (!(error instanceof AwayError) || reads === 0) throw error;
      if (signal.aborted) return null;
      isAway = true;
      fail(`${error.message} This page tries again every second.`);
    }
    await pause(EVERY_MS, signal);
  }
  return null;
}

export function progressBar() {
  const bar = make("progress", { max: 1, "aria-label": "Samples taken" });
  const told = make("p", { className: "figure", role: "status" });
  const last = make("p", { className: "quiet" });
  const update = ({ done, total, last: sample }) => {
    if (total) [bar.max, bar.value] = [total, done];
    setText(told, total ? `${done} of ${total} samples` : "It begins: models and tiers are being made ready.");
    const known = sample?.way !== undefined;
    show(last, known);
    if (known) setText(last, `Last: ${sampleText(sample)}`);
  };
  return { element: make("div", { className: "progress" }, bar, told, last), update };
}

function sampleText(sample) {
  const name = `${sample.tier} ${sample.way}${sample.batch > 1 ? ` x${sample.batch}` : ""}`;
  return sample.why_not ? `${name}: does not count, ${sample.why_not}` : `${name}: ${time(sample.seconds)}`;
}
