// Two evaluations side by side: what became slower or faster, in which stage, and what differs in their stacks.

import { evaluationPath, get } from "./api.js";
import { make, table, time } from "./dom.js";

const NAMED = 0.02; // of the whole: smaller changes of stages are not named

export async function showComparison(place, id, other, signal) {
  const found = await get(evaluationPath(id, "explained", other), 60000);
  if (signal.aborted) return;
  const rows = found.changes.map((each) => [
    each.title, time(each.before_s), time(each.after_s), `${each.ratio.toFixed(2)}x`,
    each.is_sure ? stages(each) : "within what these samples can show",
  ]);
  const columns = [["Start"], ["Before", "figure"], ["After", "figure"], ["Ratio", "figure"], ["Which stages", "text"]];
  const differences = found.differences.map((text) => make("li", { textContent: text }));
  place.replaceChildren(
    make("p", { className: "quiet", textContent: `${found.before} → ${found.after}` }),
    rows.length ? table("What changed", columns, rows) : make("p", { textContent: "They have no start in common." }),
    make("h3", { textContent: "What differs" }),
    differences.length ? make("ul", {}, ...differences) : make("p", { textContent: "The stacks are equal." }),
  );
}

function stages(change) {
  const large = Object.entries(change.stages).filter(([, grown]) => Math.abs(grown) >= NAMED * change.before_s);
  return large.map(([name, grown]) => `${name} ${grown > 0 ? "+" : "−"}${time(Math.abs(grown))}`).join(", ") || "none by much";
}
