// Elements and numbers as people read them. No markup is ever parsed from data: text goes in as text.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

export const NONE = "–";
export const share = (value) => (value === null ? NONE : `${Math.round(value * 100)} %`);
export const count = (value) => (value === null ? NONE : value.toLocaleString("en"));

export function latency(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds === 0) return "0";
  if (seconds < 0.0995) return `${(seconds * 1000).toPrecision(2)} ms`;
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 100 ? `${seconds.toPrecision(3)} s` : `${Math.round(seconds)} s`;
}

export function ago(time, now) {
  if (!time) return NONE;
  const seconds = Math.max(0, now - time);
  if (seconds < 60) return `${Math.round(seconds)} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h ago` : `${Math.round(seconds / 86400)} days ago`;
}

export function ahead(time, now) {
  const hours = Math.max(0, (time - now) / 3600);
  return hours < 48 ? `in ${Math.max(1, Math.round(hours))} h` : `in ${Math.round(hours / 24)} days`;
}

export const clock = (time) => new Date(time * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
export const stamp = (time) => new Date(time * 1000).toISOString();

const SIGNS = {
  Healthy: ["good", "●"], Asleep: ["quiet", "◌"], "Rolling out": ["busy", "◐"], Paused: ["warn", "‖"],
  "Rolled back": ["warn", "↩"], "Rolling back": ["bad", "↩"], "Not ready": ["warn", "○"], Degraded: ["bad", "▲"],
};

export function badge(state) {
  const [tone, sign] = SIGNS[state] ?? ["quiet", "?"];
  return h("span", { class: `badge ${tone}` }, h("span", { "aria-hidden": "true" }, sign), " ", state);
}
