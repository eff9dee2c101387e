// @ts-check
// Requests to the server: JSON responses, streams of server-sent events (SSE), and errors as sentences.

/** `status` is the HTTP status, 0 without a response; `after` the seconds after which to try again. */
export class Problem extends Error {
  /** @type {number} */
  status;

  constructor(message, { status = 0, param = null, after = null } = {}) {
    super(message);
    Object.assign(this, { status, param, after });
  }
}

async function send(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { ...options, headers: { "Content-Type": "application/json" }, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server does not respond.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

async function problemOf(response) {
  const wait = Number(response.headers.get("Retry-After"));
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // not the server's JSON: a proxy may have responded
  }
  const reason = error.message ?? `The server responded ${response.status} ${response.statusText}`.trim();
  const message = response.status === 401 ? "This server needs a key: sign in." : reason; // its own is for programs
  return new Problem(message, { status: response.status, param: error.param ?? null, after: wait > 0 ? wait : null });
}

/** POSTs `body`, or GETs without one, and returns the JSON. */
export async function fetchJson(path, body, signal) {
  const response = await send(path, body, signal);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The response was cut off.");
  }
}

/** The server-sent events of a stream, each as its JSON, up to [DONE]. */
export async function* stream(path, body, signal) {
  const response = await send(path, { ...body, stream: true }, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) throw new Problem("The connection was closed before the end.");
      text += value.replaceAll("\r\n", "\n");
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const data = dataOf(text.slice(0, end));
        if (data === "[DONE]") return;
        if (data === null) continue;
        const event = JSON.parse(data);
        if (event.error) throw new Problem(event.error.message, { status: 500 });
        yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof Problem) throw error;
    throw new Problem("The connection was closed before the end.");
  } finally {
    reader.cancel().catch(() => {});
  }
}

function dataOf(event) {
  const lines = event.split("\n").filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).trimStart()).join("\n") : null;
}

/** For requests of which only the latest matters: begins one and aborts the one before. */
export class Latest {
  begin() {
    this.stop();
    this.controller = new AbortController();
    return this.controller.signal;
  }

  stop() {
    this.controller?.abort();
    this.controller = null;
  }
}
