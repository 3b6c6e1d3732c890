// Line charts with bands, and steps. Every chart has a text alternative; the numbers stand in tables beside it.
import { clock, latency, s } from "./dom.js";

const WIDTH = 520, HEIGHT = 190, LEFT = 62, RIGHT = 12, TOP = 12, BOTTOM = 26;

function ticks(most, whole, wanted = 4) {
  const raw = most / wanted, power = 10 ** Math.floor(Math.log10(raw));
  const step = Math.max(whole ? 1 : 0, (whole ? [1, 2, 5, 10] : [1, 2, 2.5, 5, 10]).map((factor) => factor * power).find((value) => value >= raw));
  const found = [];
  for (let value = 0; value <= most * 1.0001; value += step) found.push(value);
  return found;
}

function frame(from, to, most, name, label, body) {
  const whole = label === String;
  const x = (time) => LEFT + ((time - from) / Math.max(1, to - from)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => HEIGHT - BOTTOM - (Math.min(value, most) / most) * (HEIGHT - TOP - BOTTOM);
  const lines = ticks(most, whole).map((value) => [
    s("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
    s("text", { class: "tick", x: LEFT - 8, y: y(value) + 4, "text-anchor": "end" }, label(value)),
  ]);
  const times = [[from, "start"], [(from + to) / 2, "middle"], [to, "end"]].filter(([time], at) => to - from > 150 || at !== 1);
  const marks = times.map(([time, anchor]) =>
    s("text", { class: "tick", x: x(time), y: HEIGHT - 6, "text-anchor": anchor }, clock(time)));
  return s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": name, class: "chart" }, lines, marks, body(x, y));
}

function band(points, low, high, x, y, kind) {
  const known = points.filter((point) => point[low] !== null && point[high] !== null);
  if (known.length < 2) return null;
  const over = known.map((point) => `${x(point[0]).toFixed(1)},${y(point[high]).toFixed(1)}`);
  const under = known.map((point) => `${x(point[0]).toFixed(1)},${y(point[low]).toFixed(1)}`).reverse();
  return s("polygon", { class: `band ${kind}`, points: [...over, ...under].join(" ") });
}

function line(points, at, x, y, kind) {
  const known = points.filter((point) => point[at] !== null);
  if (!known.length) return null;
  const last = known.at(-1);
  const way = known.map((point) => `${x(point[0]).toFixed(1)},${y(point[at]).toFixed(1)}`).join(" ");
  return [s("polyline", { class: `line ${kind}`, points: way }), s("circle", { class: `dot ${kind}`, cx: x(last[0]), cy: y(last[at]), r: 4 })];
}

/** Points are [time, stable, low, high, canary, low, high] in seconds. Bands run off the top rather than flatten the lines. */
export function latencyChart(points, name) {
  const highest = Math.max(...points.flatMap((point) => [point[1] ?? 0, point[4] ?? 0]), 1e-4);
  const bands = Math.max(...points.flatMap((point) => [point[3] ?? 0, point[6] ?? 0]), 0);
  const most = Math.max(highest * 1.15, Math.min(bands * 1.05, highest * 2));
  return frame(points[0][0], Math.max(points.at(-1)[0], points[0][0] + 30), most, name, latency, (x, y) => [
    band(points, 2, 3, x, y, "stable"), band(points, 5, 6, x, y, "canary"),
    line(points, 1, x, y, "stable"), line(points, 4, x, y, "canary"),
  ]);
}

/** Ready replicas by revision as steps; desired ones dashed. `kinds` names each revision's colour. */
export function replicasChart(changes, now, kinds, name) {
  const revisions = [...new Set(changes.flatMap((change) => [...Object.keys(change.ready), ...Object.keys(change.desired)]))];
  const counts = changes.flatMap((change) => [...Object.values(change.ready), ...Object.values(change.desired)]);
  const most = Math.max(4, ...counts) * 1.1, from = Math.min(changes[0].time, now - 300);
  return frame(from, now, most, name, String, (x, y) => revisions.map((revision) => ["desired", "ready"].map((what) => {
    let way = "", before = null;
    for (const change of changes) {
      const value = change[what][revision] ?? 0, at = x(change.time).toFixed(1);
      way += before === null ? `M${at},${y(value).toFixed(1)}` : `H${at}V${y(value).toFixed(1)}`;
      before = value;
    }
    return s("path", { class: `line ${what} ${kinds[revision] ?? "leaving"}`, d: `${way}H${x(now).toFixed(1)}` });
  })));
}
