// A GPU as a bar of slots: each holds a client, whose fill is the memory it uses of its grant, or waits for one.

import { element, hue, memory } from "./dom.js";

const MOST_SLOTS = 60;

export function bar(gpu, share, figures) {
  const clients = figures?.clients ?? [];
  const slots = Math.min(MOST_SLOTS, Math.max(slotsOf(gpu, share), clients.length));
  const made = element("div", { class: "bar", "aria-hidden": "true" });
  for (let at = 0; at < slots; at++) {
    const client = clients[at];
    if (client) {
      const part = client.granted ? client.used / client.granted : 0;
      made.append(element("i", {
        class: client.borrowed ? "client borrows" : part > 1 ? "client above" : "client",
        "--hue": hue(client.namespace),
        "--used": `${Math.min(100, Math.round(100 * part))}%`,
        title: `${client.namespace}/${client.pod}: ${memory(client.used)} of ${memory(client.granted)}`
          + (client.borrowed ? `, ${memory(client.borrowed)} of it borrowed` : ""),
      }));
    } else {
      made.append(element("i", at < gpu.held
        ? { class: "held", title: "held by a container without a client on the GPU" }
        : { title: "free" }));
    }
  }
  return made;
}

export function slotsOf(gpu, share) {
  return gpu.share ? Math.max(share?.perGpu ?? 0, gpu.held) : 0;
}

export function sums(figures) {
  const clients = figures?.clients ?? [];
  return {
    used: clients.reduce((sum, client) => sum + client.used, 0),
    granted: clients.reduce((sum, client) => sum + (client.granted ?? 0), 0),
    borrowed: clients.reduce((sum, client) => sum + (client.borrowed ?? 0), 0),
  };
}
