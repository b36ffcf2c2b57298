// The details of what is chosen: a share, a GPU, a node, a namespace or a pod. Each leads on to the others.

import { bar, slotsOf, sums } from "./bar.js";
import { ago, curve, element, hash, hue, link, memory, short } from "./dom.js";
import { HISTORY_SECONDS, gpuMemory, meter, state } from "./views.js";

const AGAIN_MS = 5000;

export class Pane {
  constructor(box, store, view) {
    Object.assign(this, { box, store, view });
    this.kind = this.id = "";
    this.answer = null;
    this.asked = 0;
  }

  show(kind, id) {
    if (kind !== this.kind || id !== this.id) {
      this.answer = null;
      this.asked = 0;
      this.box.scrollTop = 0;
    }
    Object.assign(this, { kind, id });
    this.box.hidden = !kind;
    this.draw();
  }

  draw() {
    const selection = getSelection();
    const copying = !selection.isCollapsed && this.box.contains(selection.anchorNode) && this.drawn === this.kind + this.id;
    if (!this.kind || copying) return; // what somebody is about to copy stays where it is
    this.drawn = this.kind + this.id;
    const focused = document.activeElement?.closest?.("#pane") ? document.activeElement.getAttribute("href") ?? "close" : "";
    const close = element("button", { class: "close", type: "button", text: "Close (Esc)", onclick: () => (location.hash = hash(this.view())) });
    const parts = { share: shareParts, gpu: gpuParts, node: nodeParts, namespace: namespaceParts, pod: podParts }[this.kind]?.call(this, this.id);
    this.box.replaceChildren(close, ...(parts ?? [element("p", { text: "It is gone, or was never there." })]).filter(Boolean));
    if (focused) (focused === "close" ? close : [...this.box.querySelectorAll("a")].find((one) => one.getAttribute("href") === focused) ?? close).focus();
  }

  to(kind, id, text) {
    return link(text, hash(this.view(), kind, id));
  }

  // A pod that runs is not among the rows: it is asked for, again and again while it is shown.
  async ask() {
    const { kind, id } = this;
    if (kind !== "pod" || document.hidden || Date.now() - this.asked < AGAIN_MS) return;
    this.asked = Date.now();
    const [namespace, name] = id.split("/");
    let answer;
    try {
      const response = await fetch(`pod?${new URLSearchParams({ namespace, name })}`, { signal: AbortSignal.timeout(30000) });
      answer = await response.json();
    } catch {
      answer = { error: "the program does not answer" };
    }
    if (kind === this.kind && id === this.id) {
      this.answer = answer;
      this.draw();
    }
  }
}

function shareParts(name) {
  const share = this.store.get("share", name);
  if (!share) return null;
  const gpus = [...this.store.of("gpu").values()].filter((gpu) => gpu.share === name);
  const waiting = [...this.store.of("pod").values()].filter((pod) => pod.shares.includes(name));
  return [
    element("h2", { text: `Share ${name}` }),
    element("p", { class: share.ready === "True" ? "good" : "bad", text: share.ready === "True" ? "Ready" : `${share.reason}: ${share.message}` }),
    facts({
      "GPUs ready": share.gpus, "Slots held": `${share.held} of ${share.slots}, ${share.perGpu} on each GPU`, "Places": share.places,
      "Threads": share.threads, "Memory": share.memory, "Memory to borrow": share.lends,
      "Delivery": share.delivery, "Enforcement": share.enforcement,
    }),
    ...lines("What keeps GPUs away", share.unavailable.map((one) => `${one.count} × ${one.reason}: ${one.message}`)),
    ...lines("Claims that fit nowhere", share.unplaced.map((one) => `${one.claim}: ${one.message}`)),
    ...lines("Pods that wait", waiting.map((pod) => element("span", {}, this.to("pod", `${pod.namespace}/${pod.name}`, `${pod.namespace}/${pod.name}`), `: ${pod.sentence}`))),
    ...lines("GPUs", many(gpus, (gpu) => element("span", {}, this.to("gpu", gpu.uuid, `${gpu.node} · ${gpu.index}`), ` ${gpu.held} of ${slotsOf(gpu, share)} held, `, state(gpu)))),
  ];
}

function gpuParts(uuid) {
  const gpu = this.store.get("gpu", uuid);
  if (!gpu) return null;
  const share = this.store.get("share", gpu.share), figures = this.store.get("figures", uuid), sum = sums(figures);
  const node = this.store.get("node", gpu.node), clients = figures?.clients ?? [];
  const known = new Set(clients.map((client) => `${client.namespace}/${client.pod}`));
  return [
    element("h2", { text: `GPU ${gpu.index} of ${gpu.node}` }),
    element("p", {}, state(gpu), gpu.message ? `: ${gpu.message}` : ""),
    bar(gpu, share, figures),
    facts({
      "Share": gpu.share ? this.to("share", gpu.share, gpu.share) : "none",
      "Node": this.to("node", gpu.node, gpu.node),
      "Slots held": `${gpu.held} of ${slotsOf(gpu, share)}`, "Places used": gpu.places,
      "Memory": gpuMemory(gpu, figures),
      "Product": gpu.product + (gpu.simulated ? " (simulated)" : ""),
      "UUID": gpu.uuid,
      "Processes past MPS": gpu.foreign || null,
    }),
    meter(gpu.memoryMib, sum.granted, sum.used),
    element("h3", { text: `Utilisation over ${HISTORY_SECONDS / 60} minutes: ${figures?.utilization ?? "not known"}${figures?.utilization != null ? " %" : ""}` }),
    curve(figures?.history ?? [], HISTORY_SECONDS, true),
    element("p", { class: "faint", text: "The part of the time in which any kernel ran, however few SMs it took (NVML)." }),
    ...clientTable(this, "Clients", clients.map((client) => ({ ...client, uuid })), false),
    ...lines("Borrow memory, who goes first at the top", (node?.borrowers ?? []).filter((one) => one.uuid === uuid).map((one) => borrower(this, one))),
    ...lines("Wait for a place, the next one at the top", gpu.waiting.map((client) => this.to("pod", client.split("/").slice(0, 2).join("/"), client))),
    ...lines("Hold a slot without a client", gpu.pods.filter((pod) => !known.has(pod)).map((pod) => this.to("pod", pod, pod))),
    ...lines("Findings", (node?.problems ?? []).filter((one) => one.uuid === uuid).map((one) => `${one.reason}: ${one.message}`)),
  ];
}

function nodeParts(name) {
  const node = this.store.get("node", name);
  if (!node) return null;
  const gpus = [...this.store.of("gpu").values()].filter((gpu) => gpu.node === name).sort((one, other) => one.index - other.index);
  return [
    element("h2", { text: `Node ${name}` }),
    node.silence ? element("p", { class: "bad", text: node.silence }) : null,
    facts({ "Driver": node.driver, "Agent": node.agent, "Simulated": node.simulated ? "yes: no hardware" : null }),
    ...lines("GPUs", gpus.map((gpu) => element("span", {}, this.to("gpu", gpu.uuid, `${gpu.index} · ${short(gpu.uuid)}`), ` ${gpu.share || "free"}, `, state(gpu)))),
    ...lines("What is wrong", node.problems.map((one) => `${one.reason}: ${one.message}`)),
    ...lines("Held, and without a client", node.unused.map((one) => element("span", {}, this.to("pod", `${one.namespace}/${one.pod}`, `${one.namespace}/${one.pod}`), ` for ${ago(one.since)}`))),
  ];
}

function namespaceParts(namespace) {
  const clients = [];
  for (const figures of this.store.of("figures").values()) {
    for (const client of figures.clients) if (client.namespace === namespace) clients.push({ ...client, uuid: figures.uuid });
  }
  const waiting = [...this.store.of("pod").values()].filter((pod) => pod.namespace === namespace);
  return [
    element("h2", {}, element("i", { class: "swatch", "--hue": hue(namespace) }), `Namespace ${namespace}`),
    ...lines("Pods that wait", waiting.map((pod) => element("span", {}, this.to("pod", `${namespace}/${pod.name}`, pod.name), `: ${pod.sentence}`))),
    ...clientTable(this, "Clients", clients.sort((one, other) => other.used - one.used), true),
  ];
}

function podParts(id) {
  this.ask();
  const answer = this.answer, row = this.store.get("pod", id);
  const head = element("h2", { text: `Pod ${id}` });
  if (answer?.error) return [head, element("p", { class: "bad", text: answer.error })];
  const pod = answer ?? row;
  if (!pod) return [head, element("p", { class: "faint", text: "asking the API server" })];
  return [
    head,
    element("p", { text: pod.sentence }),
    pod.hint ? element("p", { class: "faint", text: pod.hint }) : null,
    facts({ "At": pod.stage, "Phase": pod.phase, "Node": pod.node ? this.to("node", pod.node, pod.node) : null, "Age": ago(pod.since) }),
    ...lines("Shares", pod.shares.map((share) => this.to("share", share, share))),
    ...lines("Granted", (pod.grants ?? []).map((one) => `${one.of}: ${one.amounts}`)),
    ...lines("GPUs", (pod.gpus ?? []).map((one) => this.to("gpu", one.uuid, `${short(one.uuid)} of ${one.node}`))),
    ...lines("Neighbours", (pod.gpus ?? []).flatMap((one) => one.neighbours).map((other) => this.to("pod", other, other))),
    ...lines("Events", (pod.events ?? []).map((one) => element("span", {}, element("span", { class: one.type === "Warning" ? "warn" : "faint", text: `${ago(one.at)} ${one.reason}` }), ` ${one.message}`))),
  ];
}

function borrower(pane, one) {
  return element("span", {}, pane.to("pod", `${one.namespace}/${one.pod}`, `${one.namespace}/${one.pod}`),
    ` ${one.container}: ${memory(one.reserved)} reserved, at most ${memory(one.limit)}`,
    one.endsAt ? element("span", { class: "bad", text: `, ended at ${one.endsAt} unless memory is free before` }) : "");
}

function facts(pairs) {
  const rows = Object.entries(pairs).filter(([, value]) => value != null && value !== "");
  return element("table", {}, element("tbody", {}, ...rows.map(([name, value]) => element("tr", {}, element("th", { scope: "row", text: name }), element("td", {}, value)))));
}

function lines(title, items) {
  return items.length ? [element("h3", { text: title }), element("ul", {}, ...items.map((item) => element("li", {}, item)))] : [];
}

const MOST = 200;

// The pane is no list of thousands: the lists on the left are.
function many(items, made) {
  const shown = items.slice(0, MOST).map(made);
  return items.length > MOST ? [...shown, `and ${items.length - MOST} more: filter the GPUs by the share's name`] : shown;
}

function clientTable(pane, title, clients, gpus) {
  if (!clients.length) return [];
  const head = ["Pod", gpus ? "GPU" : "Threads", "Used", "Granted", "At most", "Processes"];
  return [
    element("h3", { text: title }),
    element("table", {},
      element("thead", {}, element("tr", {}, ...head.map((name, at) => element("th", { scope: "col", text: name, class: at > 1 ? "figure" : "" })))),
      element("tbody", {}, ...clients.slice(0, MOST).map((client) => element("tr", {},
        element("td", {}, element("i", { class: "swatch", "--hue": hue(client.namespace) }),
          pane.to("pod", `${client.namespace}/${client.pod}`, gpus ? client.pod : `${client.namespace}/${client.pod}`), ` ${client.container}`,
          client.class ? element("span", { class: "faint", text: ` ${client.class}`, title: client.active == null ? null : `active for ${client.active} s` }) : null),
        element("td", {}, gpus ? pane.to("gpu", client.uuid, short(client.uuid)) : client.threads == null ? "–" : `${client.threads}%`),
        element("td", { class: `figure ${client.borrowed ? "warn" : client.granted && client.used > client.granted ? "bad" : ""}`, text: memory(client.used),
          title: client.borrowed ? `${memory(client.borrowed)} of it borrowed` : null }),
        element("td", { class: "figure", text: memory(client.granted) }),
        element("td", { class: "figure", text: memory(client.limit ?? client.granted) }),
        element("td", { class: "figure", text: `${client.processes} / ${client.allowed ?? "–"}` }))))),
    clients.length > MOST ? element("p", { class: "faint", text: `and ${clients.length - MOST} more` }) : null,
  ].filter(Boolean);
}
