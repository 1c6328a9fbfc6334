/** Requests to the server that served this page. Nobody else is ever asked. */

export const BASE = "/api/v1";

export class ApiError extends Error {
  override name = "ApiError";

  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }

  /** The server has no such endpoint, or nothing of that name. */
  get isMissing(): boolean {
    return this.status === 404 || this.status === 405 || this.status === 501;
  }

  /** The server could not be reached at all. */
  get isOffline(): boolean {
    return this.status === 0;
  }
}

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

const listeners = new Set<() => void>();

/** Be told when the server does not know who asks any more. */
export function onSignedOut(listener: () => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const CSRF_COOKIE = "headrace_csrf";
const CSRF_HEADER = "X-Headrace-CSRF";

export function cookie(name: string, text: string): string | undefined {
  for (const part of text.split(";")) {
    const [key, ...value] = part.trim().split("=");
    if (key === name) return decodeURIComponent(value.join("="));
  }
  return undefined;
}

export async function request<T>(method: Method, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const text = await send(method, path, body, signal);
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

/** The answer as text; raises an ApiError for one that is no success. */
async function send(method: Method, path: string, body?: unknown, signal?: AbortSignal): Promise<string> {
  const headers: Record<string, string> = { Accept: "application/json, text/plain" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers[CSRF_HEADER] = cookie(CSRF_COOKIE, document.cookie) ?? "1";
  let response: Response;
  try {
    response = await fetch(BASE + path, {
      method,
      headers,
      credentials: "same-origin",
      body: body === undefined ? null : JSON.stringify(body),
      signal: signal ?? null,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.");
  }
  const text = await response.text();
  if (response.status === 401) listeners.forEach((listener) => listener());
  if (!response.ok) throw new ApiError(response.status, errorText(response, text));
  return text;
}

function errorText(response: Response, text: string): string {
  try {
    const body: unknown = JSON.parse(text);
    if (body && typeof body === "object" && "error" in body && typeof body.error === "string") return body.error;
  } catch {
    // Not JSON: a proxy between, perhaps.
  }
  return text.trim().slice(0, 300) || `The server answered ${response.status} ${response.statusText}`.trim();
}

export const get = <T>(path: string, signal?: AbortSignal) => request<T>("GET", path, undefined, signal);
export const getText = (path: string, signal?: AbortSignal) => send("GET", path, undefined, signal);
export const post = <T>(path: string, body: unknown = {}) => request<T>("POST", path, body);
export const put = <T>(path: string, body: unknown) => request<T>("PUT", path, body);
export const patch = <T>(path: string, body: unknown) => request<T>("PATCH", path, body);
export const remove = <T>(path: string) => request<T>("DELETE", path);

/** All pages of a list. */
export async function getAll<T extends { id: string }>(path: string, signal?: AbortSignal): Promise<T[]> {
  const all: T[] = [];
  for (;;) {
    const last = all.at(-1);
    const query = `limit=500${last ? `&starting_after=${encodeURIComponent(last.id)}` : ""}`;
    const page = await get<{ data: T[]; hasMore?: boolean }>(`${path}?${query}`, signal);
    all.push(...page.data);
    if (!page.hasMore || page.data.length === 0) return all;
  }
}

export interface EventHandlers<T> {
  onMessage: (value: T) => void;
  onState?: (state: "open" | "lost" | "ended") => void;
}

/** Server-sent events; the browser connects again when the line drops. Returns how to close it. */
export function listen<T>(path: string, { onMessage, onState }: EventHandlers<T>): () => void {
  const source = new EventSource(BASE + path, { withCredentials: true });
  source.onopen = () => onState?.("open");
  source.onerror = () => onState?.(source.readyState === EventSource.CLOSED ? "ended" : "lost");
  source.addEventListener("end", () => {
    source.close(); // or the browser would ask again
    onState?.("ended");
  });
  source.onmessage = (event: MessageEvent<string>) => onMessage(JSON.parse(event.data) as T);
  return () => source.close();
}

/** The events that an answer brings, one after the other; a refusal is an ApiError with its reason. */
export async function* events<T>(
  method: "GET" | "POST",
  path: string,
  body?: unknown,
  signal?: AbortSignal,
): AsyncGenerator<T> {
  const response = await fetch(BASE + path, {
    method,
    credentials: "same-origin",
    headers: {
      "Content-Type": "application/json",
      Accept: "text/event-stream",
      [CSRF_HEADER]: cookie(CSRF_COOKIE, document.cookie) ?? "1",
    },
    body: body === undefined ? null : JSON.stringify(body),
    signal: signal ?? null,
  });
  if (!response.ok) throw new ApiError(response.status, errorText(response, await response.text()));
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const split = splitEvents(rest + (value ?? ""));
    rest = split.rest;
    for (const data of split.events) yield JSON.parse(data) as T;
    if (done) return;
  }
}

/** The data of the whole events in a text, and what is left of the next one. */
export function splitEvents(text: string): { events: string[]; rest: string } {
  const blocks = text.replace(/\r\n?/g, "\n").split("\n\n");
  const rest = blocks.pop() ?? "";
  const events = blocks
    .map((block) =>
      block
        .split("\n")
        .filter((line) => line.startsWith("data:"))
        .map((line) => line.slice(5).replace(/^ /, ""))
        .join("\n"),
    )
    .filter((data) => data !== "");
  return { events, rest };
}
