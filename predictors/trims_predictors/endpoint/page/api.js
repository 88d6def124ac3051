// Requests to the endpoint, with its token if it has one. The token is kept in sessionStorage only.

import { askToken } from "./dialogs.js";

const KEY = "trims-token";
let asking = null;

/** What the endpoint has answered instead of a result. */
export class RefusedError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** The endpoint has not answered at all. */
export class AwayError extends Error {}

/** The token dialog was left without a token. */
export class NoTokenError extends Error {}

/** One request; the token is asked for when it is missing or wrong. Returns the response if it is a good one. */
export async function send(path, options = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEY);
    const headers = { ...options.headers, ...(token === null ? {} : { Authorization: `Bearer ${token}` }) };
    const signal = options.signal ?? (options.patience ? AbortSignal.timeout(options.patience) : null);
    const response = await reach(path, { cache: "no-store", ...options, headers, signal });
    if (response.ok) return response;
    if (response.status !== 401) throw new RefusedError(response.status, await reason(response));
    await renew(token);
  }
}

async function reach(path, options) {
  try {
    return await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new AwayError("The endpoint does not answer.");
  }
}

async function reason(response) {
  try {
    return (await response.json()).error ?? response.statusText;
  } catch {
    return `status ${response.status} ${response.statusText}`;
  }
}

/** Ask for the token once, however many requests were refused with the one before. */
async function renew(refused) {
  if (sessionStorage.getItem(KEY) !== refused) return;
  asking ??= askToken(refused !== null).finally(() => { asking = null; });
  const given = await asking;
  if (given === null) {
    sessionStorage.removeItem(KEY);
    throw new NoTokenError("This endpoint needs its token.");
  }
  sessionStorage.setItem(KEY, given);
}

/** `patience`: milliseconds until an endpoint that is silent counts as away. */
export async function get(path, patience = 30000) {
  return (await send(path, { patience })).json();
}

export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return (await send(path, { method: "POST", headers, body: JSON.stringify(body) })).json();
}

export const modelPath = (name) => `v2/models/${encodeURIComponent(name)}`;
export const orderPath = (name, order) => `ui/models/${encodeURIComponent(name)}/${order}`;
export const evaluationPath = (...names) => ["v1/evaluations", ...names.map(encodeURIComponent)].join("/");
export const tracePath = (id) => `v1/traces/${encodeURIComponent(id)}`;

export async function remove(path) {
  return (await send(path, { method: "DELETE" })).json();
}
