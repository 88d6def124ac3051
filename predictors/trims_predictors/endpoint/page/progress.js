// How far an evaluation is.

import { make, setText, show, time } from "./dom.js";

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
