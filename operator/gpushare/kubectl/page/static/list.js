// A list of any length of which only the rows on screen are elements. One row is chosen, by arrow keys or by a click.

import { element } from "./dom.js";

const ROW = 44;
const BEYOND = 6;

export class VirtualList {
  // `open(item)`: Enter or a click on a row.
  constructor(box, space, open) {
    Object.assign(this, { box, space, open });
    this.items = [];
    this.rows = new Map();
    this.chosen = "";
    this.render = () => [];
    this.columns = "";
    box.addEventListener("scroll", () => this.plan(), { passive: true });
    box.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.plan()).observe(box);
  }

  // `items`: [{key, label, …}]. `render(item)`: the cells of its row. `columns`: as in grid-template-columns.
  show(items, render, columns) {
    if (render !== this.render) this.clear();
    Object.assign(this, { items, render, columns });
    this.space.style.height = `${items.length * ROW}px`;
    this.plan(true);
  }

  clear() {
    for (const row of this.rows.values()) row.remove();
    this.rows.clear();
  }

  visible() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW));
    return this.items.slice(first, first + Math.ceil(this.box.clientHeight / ROW) + 1);
  }

  choose(key, scroll = true) {
    this.chosen = key;
    const at = this.items.findIndex((item) => item.key === key);
    if (scroll && at >= 0) {
      const top = at * ROW;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    }
    this.plan();
  }

  plan(renew = false) {
    this.renew ||= renew;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      this.draw(this.renew);
      this.renew = false;
    });
  }

  draw(renew) {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.items.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + BEYOND);
    const kept = new Set();
    for (let at = first; at < last; at++) {
      const item = this.items[at];
      kept.add(item.key);
      let row = this.rows.get(item.key);
      if (!row) {
        row = element("div", { class: "row", role: "option" });
        row.addEventListener("click", () => {
          this.choose(row.item.key, false);
          this.open(row.item);
        });
        this.rows.set(item.key, row);
        this.space.append(row);
      }
      if (renew || row.item !== item) this.fill(row, item);
      this.place(row, at, item.key === this.chosen);
    }
    for (const [key, row] of this.rows) {
      if (kept.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
  }

  // Sets only what differs: most rows stay where they are while others scroll in.
  place(row, at, chosen) {
    if (row.at !== at) {
      row.at = at;
      row.style.top = `${at * ROW}px`;
      row.id = `row-${at}`;
      row.setAttribute("aria-posinset", at + 1);
    }
    if (row.of !== this.items.length) row.setAttribute("aria-setsize", row.of = this.items.length);
    if (row.chosen !== chosen) row.setAttribute("aria-selected", row.chosen = chosen);
    if (chosen) this.box.setAttribute("aria-activedescendant", row.id);
  }

  fill(row, item) {
    row.item = item;
    row.style.gridTemplateColumns = this.columns;
    row.setAttribute("aria-label", item.label);
    row.replaceChildren(...this.render(item));
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    const at = this.items.findIndex((item) => item.key === this.chosen);
    if (event.key in steps && this.items.length) {
      const wanted = at < 0 && steps[event.key] > 0 && steps[event.key] < Infinity ? 0 : at + steps[event.key];
      this.choose(this.items[Math.max(0, Math.min(this.items.length - 1, wanted))].key);
    } else if (event.key === "Enter" && at >= 0) {
      this.open(this.items[at]);
    } else {
      return;
    }
    event.preventDefault();
  }
}
