// The page: which view and which details are shown stands in the address, so Back and bookmarks work.

import { element, hash, memory } from "./dom.js";
import { VirtualList } from "./list.js";
import { Pane } from "./pane.js";
import { Store } from "./store.js";
import { VIEWS } from "./views.js";

const $ = (id) => document.getElementById(id);
const names = Object.keys(VIEWS);
let place = { view: "gpus", kind: "", id: "" };
let items = [];
const stale = new Set(names);

const store = new Store({
  seen: () => [...new Set([...list.visible().map((item) => item.node), paneNode()].filter(Boolean))],
  changed(kinds) {
    for (const name of names) if (VIEWS[name].kinds.some((kind) => kinds.has(kind))) stale.add(name);
    if (VIEWS[place.view].redrawn?.some((kind) => kinds.has(kind))) list.plan(true);
    draw();
  },
  live(text, ok) {
    if ($("live").textContent !== text) $("live").textContent = text;
    $("live").className = ok ? "" : "off";
  },
});
const list = new VirtualList($("list"), $("space"), (item) => item.kind && go(item.kind, item.id));
const pane = new Pane($("pane"), store, () => place.view);

function go(kind = "", id = "") {
  location.hash = hash(place.view, kind, id);
}

function paneNode() {
  return place.kind === "gpu" ? store.get("gpu", place.id)?.node : place.kind === "node" ? place.id : "";
}

function arrive() {
  const [view, kind = "", id = ""] = location.hash.slice(1).split("/").map(decode);
  const before = place;
  place = { view: view in VIEWS ? view : "gpus", kind, id };
  if (place.view !== before.view) {
    stale.add(place.view);
    list.box.scrollTop = 0;
    list.chosen = "";
  }
  if (kind && list.items.some((item) => item.key === `${kind}/${id}`)) list.choose(`${kind}/${id}`);
  pane.show(kind, id);
  if (before.kind && !kind) list.box.focus();
  draw();
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return "";
  }
}

function draw() {
  const view = VIEWS[place.view];
  if (stale.delete(place.view)) {
    items = view.items(store);
    show();
  }
  tabs();
  totals();
  notes();
  pane.draw();
}

function show() {
  const view = VIEWS[place.view], wanted = $("filter").value.trim().toLowerCase();
  const kept = wanted ? items.filter((item) => item.text.toLowerCase().includes(wanted)) : items;
  view.render ??= (item) => view.cells(store, item);
  list.show(kept, view.render, view.columns);
  $("head").style.gridTemplateColumns = view.columns;
  if ($("head").dataset.view !== place.view) {
    $("head").dataset.view = place.view;
    $("head").replaceChildren(...view.head.map((text, at) => element("span", { text, class: view.figures?.includes(at) ? "figure" : "" })));
  }
  $("empty").hidden = kept.length > 0;
  $("empty").textContent = wanted && items.length ? `Nothing here has "${wanted}" in it.` : view.empty;
}

function tabs() {
  names.forEach((name, at) => {
    const tab = $("tabs").children[at], count = VIEWS[name].count(store), mark = tab.querySelector(".count");
    tab.setAttribute("aria-selected", name === place.view);
    tab.tabIndex = name === place.view ? 0 : -1;
    mark.textContent = count;
    mark.className = VIEWS[name].alarming && count ? "count some" : "count";
  });
}

function totals() {
  let held = 0, slots = 0, ready = 0, assigned = 0, used = 0, granted = 0;
  for (const share of store.of("share").values()) {
    held += share.held;
    slots += share.slots;
  }
  for (const gpu of store.of("gpu").values()) {
    if (!gpu.share) continue;
    assigned++;
    if (gpu.ready) ready++;
  }
  for (const figures of store.of("figures").values()) {
    for (const client of figures.clients) {
      used += client.used;
      granted += client.granted ?? 0;
    }
  }
  const shown = [["GPUs ready", `${ready} / ${assigned}`], ["slots held", `${held} / ${slots}`], ["memory used", `${memory(used)} / ${memory(granted)}`]];
  const text = JSON.stringify(shown);
  if (totals.text === text) return;
  totals.text = text;
  $("totals").replaceChildren(...shown.map(([name, value]) => element("span", {}, element("b", { text: value }), ` ${name}`)));
}

function notes() {
  const text = [...store.of("note").values()].map((note) => `${note.what}: ${note.message}`).sort().join("\n");
  if (notes.text === text) return;
  notes.text = text;
  $("notes").replaceChildren(...text.split("\n").filter(Boolean).map((line) => element("div", { text: line })));
}

function theme(next) {
  const themes = ["auto", "dark", "light"];
  let chosen = themes.includes(stored()) ? stored() : "auto";
  if (next) chosen = themes[(themes.indexOf(chosen) + 1) % themes.length];
  document.documentElement.dataset.theme = chosen;
  $("theme").textContent = `Colours: ${chosen}`;
  try {
    localStorage.setItem("gpushare-theme", chosen);
  } catch { /* a browser that keeps nothing */ }
}

function stored() {
  try {
    return localStorage.getItem("gpushare-theme");
  } catch {
    return null;
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target === $("filter");
  if (event.key === "Escape") {
    if (typing && $("filter").value) $("filter").value = "", show();
    else if (place.kind) go();
    else list.box.focus();
  } else if (typing) {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    list.box.focus();
    if (list.items.length) list.choose(list.items[0].key);
  } else if (event.key === "/") {
    $("filter").focus();
  } else if (names[event.key - 1]) {
    location.hash = hash(names[event.key - 1]);
    list.box.focus();
  } else {
    return;
  }
  event.preventDefault();
});
$("filter").addEventListener("input", show);
$("theme").addEventListener("click", () => theme(true));
$("tabs").append(...names.map((name) => element("button", {
  type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "panel", onclick: () => (location.hash = hash(name)),
}, VIEWS[name].name, element("span", { class: "count" }))));
$("tabs").addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const at = (names.indexOf(place.view) + step + names.length) % names.length;
  location.hash = hash(names[at]);
  $("tabs").children[at].focus();
});
addEventListener("hashchange", arrive);
setInterval(() => {
  list.plan(true); // ages grow by themselves
  pane.draw();
  pane.ask();
}, 5000);

theme(false);
arrive();
store.ask();
fetch("about").then((answer) => answer.json()).then((about) => {
  const where = [about.cluster, about.namespace && `namespace ${about.namespace}`].filter(Boolean).join(", ");
  $("where").textContent = $("where").title = where;
  document.title = where ? `gpushare: ${where}` : "gpushare";
}, () => {});
