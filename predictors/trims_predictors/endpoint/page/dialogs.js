// The two dialogs: one confirms an order, one asks for the token.

import { byId, make, setText, show } from "./dom.js";

/** Open a dialog until it is submitted or left. Returns what `value` says then, or null. */
function open(dialog, value) {
  return new Promise((resolve) => {
    const form = dialog.querySelector("form");
    let found = null;
    form.onsubmit = (event) => {
      event.preventDefault();
      found = value();
      dialog.close();
    };
    dialog.addEventListener("close", function done() {
      if (dialog.open) return; // the dialog was opened again before it was told that it had closed
      dialog.removeEventListener("close", done);
      resolve(found);
    });
    dialog.showModal();
  });
}

/**
 * Confirm an order. Returns null if it is not wanted, else {place}: the place that was chosen, if places were offered
 * as [value, text].
 */
export function confirm({ title, text, verb, places = [], danger = false }) {
  const dialog = byId("confirm");
  setText(byId("confirm-title"), title);
  setText(byId("confirm-text"), text);
  const yes = byId("confirm-yes");
  setText(yes, verb);
  yes.className = danger ? "danger" : "primary";
  const select = byId("confirm-place");
  select.replaceChildren(...places.map(([value, name]) => make("option", { value, textContent: name })));
  show(byId("confirm-place-label"), places.length > 0);
  byId("confirm-no").onclick = () => dialog.close();
  const wanted = open(dialog, () => ({ place: select.value }));
  if (!danger) (places.length ? select : yes).focus();
  return wanted;
}

/** Ask for the token; null if the dialog was left without one. */
export function askToken(wasRefused) {
  const field = byId("token");
  field.value = "";
  const message = byId("token-error");
  setText(message, wasRefused ? "The endpoint does not accept that token. Look at its token file again." : "");
  show(message, wasRefused);
  field.setAttribute("aria-invalid", String(wasRefused));
  return open(byId("token-dialog"), () => field.value.trim() || null);
}
