// The report of an evaluation: whole starts, their stages, batches, layers, load, and what it was measured on.

import { bytes, draw, make, moment, percent, table, time } from "./dom.js";
import { go, link } from "./routes.js";

const MOST_LAYERS = 30;
/** Stage, or the first word of one -> class of its colour. In the order of a start; an answer has them by name. */
const STAGES = [
  ["process", "process"], ["import framework", "import"], ["connect", "connect"], ["open", "open"], ["convert", "convert"], ["tier", "tier"],
  ["attach", "attach"], ["import code", "code"], ["build", "build"], ["run", "run"], ["unattributed", "gap"],
];
const WIDTH = 1000;
const times = (ratio) => (ratio === null || ratio === undefined ? "" : `${ratio.toFixed(1)}x`);
const titleOf = (row) => `${row.tier} ${row.way}${row.batch > 1 ? ` x${row.batch}` : ""}`;

export function report(found) {
  const layers = found.documents?.layers ?? [];
  const workloads = found.documents?.workload ?? [];
  return [
    asked(found), ...notes(found), ...(found.rows.length ? [starts(found.rows), stageBars(found.rows), stageTable(found.rows)] : []),
    ...(found.batch_sizes?.length ? [batches(found.batch_sizes)] : []), ...layers.flatMap(leveled), ...workloads.flatMap(workload), stack(found.stack ?? {}),
  ];
}

function asked(found) {
  const scenario = Object.entries(found.scenario ?? {}).map(([name, value]) => `${name} ${plain(value)}`);
  const ofStarts = [`from ${found.tiers.join(", ")}`, found.ways.join(", "), `${found.repeats} of each`, `batches ${found.batches.join(", ")}`, `level ${found.level}`, `${found.idle_s} s of rest`];
  return make("p", { className: "quiet", textContent: [moment(found.began_unix_s), ...scenario, ...(found.ways.length ? ofStarts : [])].join(" · ") });
}

function notes(found) {
  const lines = [
    ...(found.rows.length || found.documents?.workload?.length ? [] : ["No sample counts."]),
    ...(found.answers_differ ? ["The answers to the same inputs differ in some bits."] : []),
    ...Object.entries(found.discarded ?? {}).map(([reason, many]) => `${many} discarded, ${reason}`),
    ...Object.entries(found.unreachable ?? {}).map(([what, why]) => `Nothing was started from ${what}: ${why}`),
    ...(found.ended ? [] : ["It has not ended: Resume goes on where it stopped."]),
  ];
  return lines.length ? [make("ul", { className: "notes" }, ...lines.map((textContent) => make("li", { textContent })))] : [];
}

/** Median starts. The first cell leads to the trace of the sample nearest to the median. */
function starts(rows) {
  const cells = rows.map((row) => [
    row.trace_id ? make("a", { href: link("traces", row.trace_id), textContent: titleOf(row), "aria-label": `Trace of ${titleOf(row)}` }) : titleOf(row),
    time(row.seconds.value), `${time(row.seconds.low)} … ${time(row.seconds.high)}`, time(row.ideal_s), percent(row.share_of_ideal),
    times(row.over_alone), times(row.over_fresh), percent(row.accounted, 1), row.verdict ? `none: ${row.verdict}` : `${row.seconds.samples} samples`,
  ]);
  const columns = [
    ["Start"], ["First answer", "figure"], ["95 % interval", "figure"], ["Ideal", "figure"], ["Share", "figure"], ["vs alone", "figure"],
    ["vs fresh", "figure"], ["Accounted", "figure"], ["Verdict", "text wide"],
  ];
  const made = table("Starts, from nothing to the first answer; each leads to a trace", columns, cells);
  made.querySelectorAll("tbody tr").forEach((line, i) => {
    if (!rows[i].trace_id) return;
    line.classList.add("leads");
    line.addEventListener("click", (event) => { if (!event.target.closest("a")) go("traces", rows[i].trace_id); });
  });
  return made;
}

const rank = (name) => {
  const found = STAGES.findIndex(([stage]) => name === stage || name.startsWith(`${stage} `));
  return found < 0 ? STAGES.length - 1.5 : found; // an unknown one is before what is unattributed
};
const classOf = (name) => `stage-${STAGES[rank(name)]?.[1] ?? "other"}`;
const stagesOf = (rows) => [...new Set(rows.flatMap((row) => Object.keys(row.stages)))].sort((one, other) => rank(one) - rank(other) || one.localeCompare(other));

function stageBars(rows) {
  const longest = Math.max(...rows.map((row) => Object.values(row.stages).reduce((all, each) => all + each, 0)), 1e-9);
  const names = stagesOf(rows);
  const legend = names.map((name) => make("li", {}, draw("svg", { class: "swatch", viewBox: "0 0 12 12", "aria-hidden": "true" }, draw("rect", { class: classOf(name), width: 12, height: 12 })), name));
  const lines = rows.map((row) => make("tr", {}, make("th", { scope: "row", textContent: titleOf(row) }), make("td", { className: "bars" }, stacked(row, longest)), make("td", { className: "figure", textContent: time(row.seconds.value) })));
  const made = make("table", { className: "stages" }, make("caption", { textContent: "Where the time goes" }), make("tbody", {}, ...lines));
  return make("div", { className: "chart" }, made, make("ul", { className: "plain legend", "aria-label": "Stages" }, ...legend));
}

function stacked(row, longest) {
  let from = 0;
  const stages = stagesOf([row]).map((name) => [name, row.stages[name]]);
  const parts = stages.map(([name, seconds]) => {
    const width = (WIDTH * seconds) / longest;
    const part = draw("rect", { class: classOf(name), x: from.toFixed(2), y: 0, width: width.toFixed(2), height: 16 });
    const title = draw("title");
    title.textContent = `${name}: ${time(seconds)}`;
    part.append(title);
    from += width;
    return part;
  });
  const text = stages.map(([name, seconds]) => `${name} ${time(seconds)}`).join(", ");
  return draw("svg", { viewBox: `0 0 ${WIDTH} 16`, preserveAspectRatio: "none", class: "stack", role: "img", "aria-label": text }, ...parts);
}

function stageTable(rows) {
  const names = stagesOf(rows);
  const columns = [["Start"], ...names.map((name) => [name, "figure"])];
  return table("Stages of the sample nearest to the median", columns, rows.map((row) => [titleOf(row), ...names.map((name) => (row.stages[name] ? time(row.stages[name]) : "-"))]));
}

function batches(sizes) {
  const rows = sizes.map((each) => [
    `${each.way} x${each.batch}`, time(each.run.value), each.per_s.toFixed(1), each.gain === null ? "" : `${each.gain < 0 ? "−" : "+"}${percent(Math.abs(each.gain))}`,
    each.is_optimal ? (each.next_gain === null ? "the largest measured still gains" : "optimal: a larger one gains 5 % or less") : "",
  ]);
  return table("Batches", [["How"], ["Run", "figure"], ["Rows per second", "figure"], ["Gain", "figure"], ["", "text"]], rows);
}

function leveled(found) {
  const { layers } = found;
  const rows = layers.layers.slice(0, MOST_LAYERS).map((each) => [
    each.name, each.type, time(each.seconds), percent(each.share, 1), each.device_s ? time(each.device_s) : "", each.input_shapes.map((shape) => shape.join("x")).join(" "),
  ]);
  const left = layers.layers.slice(MOST_LAYERS);
  if (left.length) rows.push([`${left.length} more`, "", time(sum(left, "seconds")), percent(sum(left, "share"), 1), "", ""]);
  const kinds = new Map();
  for (const each of layers.layers) {
    const kind = kinds.get(each.type) ?? [0, 0];
    kinds.set(each.type, [kind[0] + 1, kind[1] + each.seconds]);
  }
  const types = [...kinds].sort(([, one], [, other]) => other[1] - one[1]).map(([type, [many, seconds]]) => [type, String(many), time(seconds), layers.run_s ? percent(seconds / layers.run_s, 1) : ""]);
  const levels = found.levels.map((each) => [
    each.level, time(each.seconds.value), `${time(each.seconds.low)} … ${time(each.seconds.high)}`,
    each.overhead_s === null ? "" : `${each.overhead_s < 0 ? "−" : "+"}${time(Math.abs(each.overhead_s))}`,
  ]);
  const said = [
    ...(rows.length ? [`By ids, ${percent(layers.accounted, 2)} of the time of ${layers.operators} operators and kernels is accounted for.`] : []),
    ...(found.answers_differ ? ["The answers to the same inputs differ from run to run."] : []), ...found.lacks,
  ];
  return [
    ...(rows.length ? [table("Layers", [["Layer", "text"], ["Type"], ["Own time", "figure"], ["Of run", "figure"], ["Device", "figure"], ["Inputs", "text"]], rows)] : []),
    ...(types.length ? [table("Types of layers", [["Type"], ["Layers", "figure"], ["Time", "figure"], ["Of run", "figure"]], types)] : []),
    table("What each level costs", [["Deepest level"], ["Run", "figure"], ["95 % interval", "figure"], ["Overhead", "figure"]], levels),
    ...said.map((textContent) => make("p", { className: "quiet", textContent })),
  ];
}

const sum = (list, name) => list.reduce((all, each) => all + each[name], 0);

const LATENCY = { p50: "p50", p90: "p90", p99: "p99", p999: "p99.9", longest: "max" };
const latencies = (found) => Object.keys(LATENCY).map((name) => (found?.[name] === undefined ? "" : time(found[name])));

/** A load: what was asked and found, latencies, models, and what else has a row for each of something. */
function workload(found) {
  const { latency, first_byte: firstByte, models = [], ...rest } = found;
  const lists = Object.entries(rest).filter(([, value]) => Array.isArray(value) && value.length && value.every((each) => each !== null && typeof each === "object"));
  const facts = flat(Object.fromEntries(Object.entries(rest).filter(([name]) => !lists.some(([other]) => name === other))));
  const columns = Object.values(LATENCY).map((name) => [name, "figure"]);
  const ofModels = models.map((each) => [each.model, String(each.requests), String(each.answered), each.cold === null ? "" : String(each.cold), ...latencies(each.latency), each.cold_latency ? time(each.cold_latency.p50) : ""]);
  return [
    table("Latency", [["Up to"], ...columns], [["the whole answer", ...latencies(latency)], ["its first byte", ...latencies(firstByte)]]),
    ...(ofModels.length ? [table("Models", [["Model"], ["Requests", "figure"], ["Answered", "figure"], ["Cold", "figure"], ...columns, ["Cold p50", "figure"]], ofModels)] : []),
    ...lists.map(([name, rows]) => listed(name, rows)),
    table("Load", [["Field"], ["Value", "text"]], facts),
  ];
}

function listed(name, rows) {
  const found = rows.map((row) => new Map(flat(row)));
  const names = [...new Set(found.flatMap((row) => [...row.keys()]))];
  return table(name.charAt(0).toUpperCase() + name.slice(1), names.map((each) => [each]), found.map((row) => names.map((each) => row.get(each) ?? "")));
}

function stack(facts) {
  const rows = flat(facts).map(([name, text]) => [name, name === "memory_bytes" ? bytes(Number(text)) : text]);
  return make("details", { className: "facts" }, make("summary", { textContent: "What it was measured on" }), table("Stack", [["Fact"], ["Value", "text"]], rows));
}

/** Nested values as rows of names with dots. */
function flat(value, prefix = "") {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return [[prefix, plain(value)]];
  return Object.entries(value).flatMap(([name, inner]) => flat(inner, prefix ? `${prefix}.${name}` : name));
}

function plain(value) {
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(6)));
  return typeof value === "string" ? value : JSON.stringify(value);
}
