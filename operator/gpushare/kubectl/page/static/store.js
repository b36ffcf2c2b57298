// What the server has sent, by kind and key, kept up to date by asking for what is newer.

const ASK_MS = 2000;
const LONGEST_PAUSE_MS = 15000;

export class Store {
  // `seen()`: the names of the nodes on screen. `changed(kinds)`: a Set of the kinds that have other rows now.
  // `live(text, ok)`: how the connection is.
  constructor({ seen, changed, live }) {
    Object.assign(this, { seen, changed, live });
    this.kinds = new Map();
    this.epoch = "";
    this.revision = 0;
    this.timer = 0;
    this.pause = ASK_MS;
    this.asking = false;
    document.addEventListener("visibilitychange", () => document.hidden || this.ask());
  }

  of(kind) {
    let rows = this.kinds.get(kind);
    if (!rows) this.kinds.set(kind, rows = new Map());
    return rows;
  }

  get(kind, key) {
    return this.of(kind).get(key);
  }

  async ask() {
    if (this.asking) return;
    this.asking = true;
    clearTimeout(this.timer);
    let again = ASK_MS;
    try {
      const query = new URLSearchParams({ epoch: this.epoch, since: this.revision, nodes: this.seen().join(",") });
      const response = await fetch(`changes?${query}`, { signal: AbortSignal.timeout(20000) });
      if (!response.ok) throw new Error(`answer ${response.status}`);
      const answer = await response.json();
      this.take(answer);
      this.pause = ASK_MS;
      if (answer.more) again = 0;
      this.live("live", true);
    } catch (error) {
      this.pause = again = Math.min(LONGEST_PAUSE_MS, 2 * this.pause);
      this.live("not connected: has the program ended?", false);
    }
    this.asking = false;
    if (!document.hidden) this.timer = setTimeout(() => this.ask(), again);
  }

  take(answer) {
    const kinds = new Set();
    if (answer.reset) {
      for (const kind of this.kinds.keys()) kinds.add(kind);
      this.kinds.clear();
    }
    for (const [key, row] of Object.entries(answer.changed)) {
      const [kind, rest] = split(key);
      this.of(kind).set(rest, row);
      kinds.add(kind);
    }
    for (const key of answer.gone) {
      const [kind, rest] = split(key);
      this.of(kind).delete(rest);
      kinds.add(kind);
    }
    this.epoch = answer.epoch;
    this.revision = answer.revision;
    if (kinds.size) this.changed(kinds);
  }
}

function split(key) {
  const at = key.indexOf("/");
  return [key.slice(0, at), key.slice(at + 1)];
}
