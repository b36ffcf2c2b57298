// The five lists: of each its items, sorted, and the cells of a row.

import { bar, slotsOf, sums } from "./bar.js";
import { ago, curve, element, hue, memory, short } from "./dom.js";

export const HISTORY_SECONDS = 300;
const collator = new Intl.Collator("en", { numeric: true });

export const VIEWS = {
  gpus: {
    name: "GPUs",
    kinds: ["gpu"],
    redrawn: ["share", "figures"],
    columns: "minmax(90px, 1.2fr) minmax(70px, .8fr) minmax(70px, .8fr) minmax(100px, 3fr) 96px minmax(60px, 120px) 32px",
    figures: [4, 6],
    head: ["Node", "Share", "State", "Slots, and memory used in each", "Used / granted", "Utilisation, 5 min", "%"],
    empty: "No agent reports a GPU.",
    count: (store) => store.of("gpu").size,
    items(store) {
      return inOrder(store.of("gpu")).map((gpu) => ({
        key: `gpu/${gpu.uuid}`, kind: "gpu", id: gpu.uuid, node: gpu.node, row: gpu,
        get text() { return `${gpu.node} ${gpu.uuid} ${gpu.product} ${gpu.share} ${gpu.state} ${gpu.pods.join(" ")}`; },
        get label() { return gpuLabel(store, gpu); },
      }));
    },
    cells(store, { row: gpu }) {
      const share = store.get("share", gpu.share), figures = store.get("figures", gpu.uuid), sum = sums(figures);
      return [
        two(`${gpu.node} · ${gpu.index}`, gpu.product + (gpu.simulated ? " (simulated)" : "")),
        element("span", { text: gpu.share || "free", class: gpu.share ? "" : "faint" }),
        state(gpu),
        bar(gpu, share, figures),
        element("span", { class: "figure", text: sum.used || sum.granted ? `${memory(sum.used)} / ${memory(sum.granted)}` : "–",
          title: gpuMemory(gpu, figures) }),
        curve(figures?.history ?? [], HISTORY_SECONDS),
        element("span", { class: "figure", text: figures?.utilization ?? "–" }),
      ];
    },
  },
  shares: {
    name: "Shares",
    kinds: ["share", "gpu"],
    columns: "minmax(120px, 1fr) 90px 110px 100px 120px minmax(160px, 2fr)",
    figures: [1, 2, 3, 4],
    head: ["Share", "GPUs ready", "Slots held", "Threads", "Memory", "State"],
    empty: "There is no GpuShare. Create one: examples/inference.yaml.",
    count: (store) => store.of("share").size,
    items(store) {
      return [...store.of("share").values()].sort((one, other) => collator.compare(one.name, other.name))
        .map((share) => ({ key: `share/${share.name}`, kind: "share", id: share.name, row: share,
          text: `${share.name} ${share.reason} ${share.message} ${share.delivery}`,
          label: `Share ${share.name}, ${share.gpus} GPUs ready, ${share.held} of ${share.slots} slots held, ${share.reason}` }));
    },
    cells: (store, { row: share }) => [
      two(share.name, share.delivery),
      element("span", { class: "figure", text: share.gpus }),
      element("span", { class: "figure", text: `${share.held} / ${share.slots}` }),
      element("span", { class: "figure", text: share.threads }),
      element("span", { class: "figure", text: share.memory }),
      two(share.ready === "True" ? "Ready" : share.reason || "Unknown", share.message, share.ready === "True" ? "good" : "bad"),
    ],
  },
  clients: {
    name: "Clients",
    kinds: ["figures", "gpu"],
    columns: "minmax(140px, 1.5fr) 90px 90px 150px 90px minmax(120px, 2fr)",
    figures: [1, 2, 3, 4],
    head: ["Namespace", "Clients", "GPUs", "Used / granted", "Borrowed", "Part of the memory granted to all"],
    empty: "No container uses a shared GPU.",
    count: (store) => [...store.of("figures").values()].reduce((sum, one) => sum + one.clients.length, 0),
    items(store) {
      const found = new Map();
      let all = 0;
      for (const figures of store.of("figures").values()) {
        for (const client of figures.clients) {
          let row = found.get(client.namespace);
          if (!row) found.set(client.namespace, row = { namespace: client.namespace, clients: 0, gpus: new Set(), used: 0, granted: 0, borrowed: 0 });
          row.clients++;
          row.gpus.add(figures.uuid);
          row.used += client.used;
          row.granted += client.granted ?? 0;
          row.borrowed += client.borrowed ?? 0;
          all += client.granted ?? 0;
        }
      }
      return [...found.values()].sort((one, other) => other.granted - one.granted || collator.compare(one.namespace, other.namespace))
        .map((row) => ({ key: `namespace/${row.namespace}`, kind: "namespace", id: row.namespace, row, all, text: row.namespace,
          label: `Namespace ${row.namespace}, ${row.clients} clients on ${row.gpus.size} GPUs, ${memory(row.used)} of ${memory(row.granted)} used`
            + (row.borrowed ? `, ${memory(row.borrowed)} borrowed` : "") }));
    },
    cells: (store, { row, all }) => [
      element("span", {}, element("i", { class: "swatch", "--hue": hue(row.namespace) }), row.namespace),
      element("span", { class: "figure", text: row.clients }),
      element("span", { class: "figure", text: row.gpus.size }),
      element("span", { class: "figure", text: `${memory(row.used)} / ${memory(row.granted)}` }),
      element("span", { class: row.borrowed ? "figure warn" : "figure", text: row.borrowed ? memory(row.borrowed) : "–" }),
      meter(all, row.granted, row.used),
    ],
  },
  waiting: {
    name: "Waiting",
    kinds: ["pod"],
    columns: "minmax(140px, 1fr) minmax(90px, .6fr) 90px minmax(220px, 3fr) 60px",
    figures: [4],
    head: ["Pod", "Share", "Held back by", "Reason", "Since"],
    empty: "No pod that asks for a share is waiting.",
    alarming: true,
    count: (store) => store.of("pod").size,
    items(store) {
      return [...store.of("pod").values()].sort((one, other) => collator.compare(one.since, other.since))
        .map((pod) => ({ key: `pod/${pod.namespace}/${pod.name}`, kind: "pod", id: `${pod.namespace}/${pod.name}`, row: pod,
          text: `${pod.namespace} ${pod.name} ${pod.shares.join(" ")} ${pod.stage} ${pod.sentence}`,
          label: `Pod ${pod.namespace}/${pod.name}, ${pod.sentence}` }));
    },
    cells: (store, { row: pod }) => [
      two(pod.name, pod.namespace),
      element("span", { text: pod.shares.join(", ") }),
      element("span", { class: "warn", text: pod.stage }),
      two(pod.sentence, pod.hint),
      element("span", { class: "figure faint", text: ago(pod.since) }),
    ],
  },
  trouble: {
    name: "Trouble",
    kinds: ["node", "share", "event"],
    columns: "60px minmax(150px, 1fr) minmax(140px, .8fr) minmax(220px, 3fr)",
    figures: [0],
    head: ["Since", "Object", "Reason", "What is wrong, then what happened"],
    empty: "Nothing is wrong, and no event of gpushare is kept.",
    alarming: true,
    count: (store) => troubles(store).filter((one) => one.row.now).length,
    items(store) {
      return [...troubles(store), ...happened(store)];
    },
    cells: (store, { row }) => [
      element("span", { class: "figure faint", text: ago(row.at) || "now" }),
      row.namespace ? two(row.object, row.namespace) : element("span", { text: row.object }),
      element("span", { class: row.now ? "bad" : row.type === "Warning" ? "warn" : "faint", text: row.reason }),
      element("span", { class: "wrapped", text: (row.count > 1 ? `×${row.count}  ` : "") + row.message, title: row.message }),
    ],
  },
};

let order = [];

// By node and index. To sort thousands of GPUs takes longer than a frame, so the order is kept while they are the same.
function inOrder(gpus) {
  if (order.length !== gpus.size || !order.every((uuid) => gpus.has(uuid))) {
    const nodes = [...new Set([...gpus.values()].map((gpu) => gpu.node))].sort(collator.compare);
    const place = new Map(nodes.map((node, at) => [node, at]));
    order = [...gpus.values()].sort((one, other) => place.get(one.node) - place.get(other.node) || one.index - other.index)
      .map((gpu) => gpu.uuid);
  }
  return order.map((uuid) => gpus.get(uuid));
}

// What is wrong now.
export function troubles(store) {
  const found = [];
  const add = (kind, id, object, at, reason, message, now = true) => found.push({
    key: `trouble/${object}/${reason}/${message}`, kind, id, row: { now, at, object, reason, message },
    text: `${object} ${reason} ${message}`, label: `${object}, ${reason}, ${message}`,
  });
  for (const share of store.of("share").values()) {
    if (share.ready !== "True") add("share", share.name, `gpushare/${share.name}`, "", share.reason || "Unknown", share.message);
    // A share that is Ready may leave GPUs out on purpose.
    for (const one of share.unavailable) add("share", share.name, `gpushare/${share.name}`, "", one.reason, one.message, share.ready !== "True");
  }
  for (const node of store.of("node").values()) {
    const since = new Map(node.findings.map((one) => [one.uuid + one.reason + one.message, one.since]));
    for (const one of node.problems) {
      const [kind, id] = one.uuid ? ["gpu", one.uuid] : ["node", node.name];
      const object = `node/${node.name}${one.uuid ? ` ${short(one.uuid)}` : ""}`;
      add(kind, id, object, since.get(one.uuid + one.reason + one.message) ?? "", one.reason, one.message);
    }
  }
  return found.sort((one, other) => other.row.now - one.row.now);
}

function happened(store) {
  return [...store.of("event").entries()]
    .sort(([, one], [, other]) => (one.at < other.at ? 1 : one.at > other.at ? -1 : 0))
    .map(([uid, event]) => {
      const [kind, name] = event.object.split("/");
      const target = { pod: ["pod", `${event.namespace}/${name}`], gpushare: ["share", name], gpunode: ["node", name], node: ["node", name] }[kind];
      return { key: `event/${uid}`, kind: target?.[0] ?? "", id: target?.[1] ?? "", row: event,
        text: `${event.namespace} ${event.object} ${event.reason} ${event.message}`,
        label: `${ago(event.at)} ago, ${event.object}, ${event.reason}, ${event.message}` };
    });
}

// In words: what clients use, what is reserved for them, what they have above that, and what is left.
export function gpuMemory(gpu, figures) {
  if (!figures) return memory(gpu.memoryMib);
  const sum = sums(figures);
  return [`${memory(sum.used)} used`, `${memory(sum.granted)} granted`, sum.borrowed && `${memory(sum.borrowed)} borrowed`,
    figures.free != null && `${memory(figures.free)} free`, figures.short && `${memory(figures.short)} short`]
    .filter(Boolean).join(", ") + ` of ${memory(gpu.memoryMib)}`;
}

function gpuLabel(store, gpu) {
  const share = store.get("share", gpu.share), figures = store.get("figures", gpu.uuid), sum = sums(figures);
  return `GPU ${gpu.index} of node ${gpu.node}, ${gpu.share ? `share ${gpu.share}, ${gpu.held} of ${slotsOf(gpu, share)} slots held` : "free"}, `
    + `${gpu.state}${figures ? `, ${memory(sum.used)} of ${memory(sum.granted)} used${sum.borrowed ? `, ${memory(sum.borrowed)} borrowed` : ""}` : ""}`
    + (figures?.utilization != null ? `, utilisation ${figures.utilization} percent` : "");
}

export function state(gpu) {
  const kind = gpu.ready ? "good" : gpu.state === "Free" ? "faint" : "bad";
  const text = gpu.leaving ? `${gpu.state}, draining` : gpu.paused ? `${gpu.state}, paused` : gpu.state;
  return element("span", { class: kind, text, title: gpu.message });
}

function two(first, second, kind = "") {
  return element("span", { class: "two", title: second }, element("span", { text: first, class: kind }), element("span", { text: second }));
}

export function meter(all, granted, used) {
  const made = element("div", { class: "meter", "aria-hidden": "true" }, element("i"), element("i"));
  made.children[0].style.width = all ? `${Math.min(100, (100 * granted) / all)}%` : "0";
  made.children[1].style.width = all ? `${Math.min(100, (100 * used) / all)}%` : "0";
  return made;
}

