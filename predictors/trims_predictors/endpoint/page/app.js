// The page: asks for the state every second, and hands it to the parts that show it.

import { openAddition } from "./addition.js";
import { AwayError, NoTokenError, get } from "./api.js";
import { byId, count, setText, show, span } from "./dom.js";
import { openEvaluations, showKnownModels } from "./evaluations.js";
import { showModels, showPlaces, showTransfers } from "./models.js";
import * as routes from "./routes.js";
import { openTraces } from "./traces.js";
import { openTrial, showTrialState } from "./trial.js";

const EVERY_MS = 1000;
const PATIENCE_MS = 5000;
const SELDOM = 5; // in other views than that of the models, which may measure how fast this machine is
let beats = 0;
let stopped = false;
let state = null;
let running = false;

async function refresh() {
  if (running) return;
  running = true;
  try {
    showState(await get("ui/state", PATIENCE_MS));
  } catch (error) {
    showTrouble(error);
  } finally {
    running = false;
  }
}

function showState(found) {
  const away = found.daemon.status === "away";
  setStale(away);
  if (away) banner(`${sentence(found.daemon.trouble)} This page goes on by itself once it answers.`);
  else if (found.daemon.status === "draining") banner("The daemon is ending: it takes no new opens.");
  else banner("");
  showDaemon(found.daemon);
  setText(byId("version"), `trims ${found.version}`);
  if (away && state !== null) return; // what was there last stays in sight, dimmed
  if (!away) state = found;
  showPlaces(found.places, found.device_spares);
  showTransfers(found.transfers);
  showModels(found, { tryModel: openTrial, refresh, banner: notice, empty: !away });
  showTrialState(found.models);
  showKnownModels(found.models);
}

function showDaemon(daemon) {
  byId("daemon").dataset.status = daemon.status;
  const about = [`up ${span(daemon.uptime_s)}`, count(daemon.sessions, "session"), count(daemon.leases, "lease")];
  const text = daemon.status === "away" ? "daemon away" : [`daemon ${daemon.status}`, ...about].join(" · ");
  setText(byId("daemon-text"), text);
}

function showTrouble(error) {
  setStale(true);
  byId("daemon").dataset.status = "away";
  if (error instanceof NoTokenError) {
    stopped = true;
    setText(byId("daemon-text"), "no token");
    banner(error.message, ["Enter the token", () => { stopped = false; refresh(); }]);
    return;
  }
  setText(byId("daemon-text"), error instanceof AwayError ? "endpoint away" : "trouble");
  banner(error instanceof AwayError ? `${error.message} This page tries again every second.` : sentence(error.message));
}

/** A sentence of the endpoint's, which begin with small letters, for people. */
export function sentence(text) {
  const begun = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

const setStale = (stale) => document.body.classList.toggle("stale", stale);

let noticed = null;

/** What became of an order, until it is dismissed. */
function notice(text) {
  noticed = text || null;
  banner("");
}

function banner(text, [name, action] = []) {
  const mine = text === "" && noticed !== null;
  setText(byId("banner-text"), mine ? noticed : text);
  const button = byId("banner-button");
  setText(button, mine ? "Dismiss" : name ?? "");
  show(button, mine || name !== undefined);
  button.onclick = mine ? () => notice("") : action ?? null;
  show(byId("banner"), mine || text !== "");
}

document.addEventListener("visibilitychange", () => { if (!document.hidden && !stopped) refresh(); });
setInterval(() => {
  beats += 1;
  if (!document.hidden && !stopped && (routes.current() === "models" || beats % SELDOM === 0)) refresh();
}, EVERY_MS);
openAddition(refresh, sentence);
routes.addView("models", () => { if (!stopped) refresh(); });
routes.addView("evaluations", openEvaluations);
routes.addView("traces", openTraces);
routes.begin();
if (routes.current() !== "models") refresh();
