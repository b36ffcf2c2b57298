// Elements, made without any markup from strings: whatever a tenant writes stays text.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name.startsWith("--")) made.style.setProperty(name, value);
    else if (value !== false && value != null) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child != null));
  return made;
}

export function link(text, hash) {
  return element("a", { href: hash, text });
}

export function hash(view, kind = "", key = "") {
  return `#${[view, kind, key].filter(Boolean).map(encodeURIComponent).join("/")}`;
}

export function memory(mib) {
  if (mib == null) return "–";
  return mib >= 10240 ? `${Math.round(mib / 1024)}Gi` : mib >= 1024 ? `${(mib / 1024).toFixed(1)}Gi` : `${mib}Mi`;
}

export function ago(moment, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - Date.parse(moment)) / 1000));
  if (!moment || Number.isNaN(seconds)) return "";
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)}h` : `${Math.floor(seconds / 86400)}d`;
}

export function short(uuid) {
  return uuid.slice(0, 12);
}

// One hue for each namespace; the golden angle keeps those of similar names apart.
export function hue(namespace) {
  let sum = 7;
  for (const letter of namespace) sum = (sum * 31 + letter.codePointAt(0)) >>> 0;
  return Math.round((sum % 997) * 137.508) % 360;
}

const SVG = "http://www.w3.org/2000/svg";

// `history`: pairs of seconds since 1970 and percent. `seconds`: how much of it is shown.
export function curve(history, seconds, large = false) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", large ? "curve large" : "curve");
  svg.setAttribute("viewBox", "0 0 100 100");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("aria-hidden", "true");
  const end = history.length ? history[history.length - 1][0] : 0;
  const points = history.filter(([at]) => at > end - seconds)
    .map(([at, percent]) => `${(100 - ((end - at) / seconds) * 100).toFixed(1)},${(98 - percent * 0.96).toFixed(1)}`);
  if (points.length) {
    const first = points[0].split(",")[0];
    if (points.length === 1) points.unshift(`${Math.max(0, first - 2)},${points[0].split(",")[1]}`);
    svg.append(path(`M${points[0].split(",")[0]},100 L${points.join(" ")} L100,100 Z`, "area"), path(`M${points.join(" ")}`, ""));
  }
  return svg;
}

function path(d, kind) {
  const made = document.createElementNS(SVG, "path");
  made.setAttribute("d", d);
  if (kind) made.setAttribute("class", kind);
  return made;
}
