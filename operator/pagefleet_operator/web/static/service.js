// One service: where its rollout stands, the evidence, its pods, replicas and what was decided.
import { latencyChart, replicasChart } from "./charts.js";
import { ago, ahead, badge, count, h, latency, NONE, share, stamp } from "./dom.js";

const heat = (value) => Math.min(5, Math.max(0, Math.floor(value * 6)));
const FULL_QUEUE = 16;

function card(title, id, ...children) {
  return h("section", { class: "card", "aria-labelledby": id }, h("h2", { id }, title), children);
}

function fact(title, value, note) {
  return h("div", { class: "fact" }, h("dt", {}, title), h("dd", {}, value, note ? h("span", { class: "muted small" }, note) : null));
}

function legend(...entries) {
  return h("ul", { class: "legend" }, entries.map(([kind, text]) => h("li", {}, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), text)));
}

function split(page) {
  const bars = page.revisions.filter((revision) => revision.weight > 0);
  const said = bars.map((revision) => `${revision.role} ${revision.hash} ${revision.weight} percent`).join(", ");
  const bar = h("div", { class: "split", role: "img", "aria-label": `Traffic: ${said || "none"}` });
  for (const revision of bars) {
    const part = h("div", { class: `part ${revision.role}` }, `${revision.weight} %`);
    part.style.flexGrow = revision.weight;
    bar.append(part);
  }
  const rows = page.revisions.map((revision) => h("tr", {},
    h("th", { scope: "row" }, h("span", { class: `key ${revision.role}`, "aria-hidden": "true" }), h("code", {}, revision.hash)),
    h("td", {}, revision.role), h("td", { class: "number" }, `${revision.weight} %`),
    h("td", { class: "number" }, `${revision.ready} / ${revision.desired}`,
      revision.prefill ? h("span", { class: "muted small" }, `prefill ${revision.prefill.ready} / ${revision.prefill.desired}`) : null),
    h("td", { class: "number muted nowrap" }, ago(revision.created, page.now))));
  return card("Traffic", "traffic", bar, h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {},
    ["Revision", "Role", "Share", "Ready", "Created"].map((title, at) => h("th", { scope: "col", class: at > 1 ? "number" : null }, title)))), h("tbody", {}, rows))));
}

function objectives(page) {
  if (!page.objectives.length) return null;
  const left = (one) => (one.left === null ? NONE : h("span", { class: `badge ${one.left < 0 ? "bad" : one.left < 0.2 ? "busy" : "good"}` }, `${(100 * one.left).toFixed(1)} %`));
  const rows = page.objectives.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.name, h("span", { class: "muted small" }, one.promise)), h("td", { class: "number" }, left(one)),
    h("td", { class: "number" }, one.burn === null ? NONE : `${one.burn} ×`),
    h("td", { class: "number" }, one.left !== null && one.left < 0 ? "used up" : one.runsOut === null ? "lasts" : ahead(one.runsOut, page.now)),
    h("td", { class: "number" }, `${count(one.missed)} of ${count(one.requests)}`)));
  return card("Objectives", "objectives", h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Objectives in numbers" }, h("table", {}, h("thead", {}, h("tr", {},
    ["Objective", "Budget left", "Pace of the last hour", "Runs out", "Missed"].map((title, at) => h("th", { scope: "col", class: at ? "number" : null }, title)))), h("tbody", {}, rows))));
}

function capacityPlan(page) {
  if (!page.capacityPlan.length) return null;
  const shown = (value) => (value === null ? NONE : value >= 100 ? count(Math.round(value)) : `${Number(value.toPrecision(3))}`);
  const between = (one) => (one.low === null ? null : `${shown(one.low)} to ${one.high === null ? "any" : shown(one.high)}`);
  const tone = { AsPlanned: "good", AbovePlan: "busy", BelowPlan: "busy" };
  const rows = page.capacityPlan.map((one) => h("tr", {},
    h("th", { scope: "row" }, one.name, one.revision ? h("span", { class: "muted small" }, one.revision) : null), h("td", { class: "number" }, shown(one.planned)),
    h("td", { class: "number" }, shown(one.measured), h("span", { class: "muted small" }, between(one))),
    h("td", {}, h("span", { class: `badge ${tone[one.finding] ?? "quiet"}` }, one.finding || "too little data"))));
  return card("Capacity plan", "capacity-plan", h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Capacity plan in numbers" }, h("table", {}, h("thead", {}, h("tr", {},
    ["Number", "Planned", "Measured", "Finding"].map((title, at) => h("th", { scope: "col", class: at === 1 || at === 2 ? "number" : null }, title)))), h("tbody", {}, rows))));
}

function spending(page) {
  if (!page.spending) return null;
  const { spent, budget, forecast, month, state } = page.spending;
  const money = (value) => value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  const tone = state === "WithinBudget" ? "good" : state === "ForecastAboveBudget" ? "busy" : "bad";
  return fact("Spent", h("span", { class: `badge ${tone}` }, `${money(spent)} of ${money(budget)}`), `in ${month}; forecast ${money(forecast)}`);
}

function owner(page) {
  const { team, contact, runbook } = page.owner;
  if (!team && !contact && !runbook) return null;
  const link = runbook ? h("a", { href: runbook, rel: "noreferrer" }, "runbook") : null;
  return fact("Owner", team || contact || link, [team ? contact : null, team || contact ? link : null].filter(Boolean).flatMap((part, at) => (at ? [", ", part] : [part])));
}

const spread = (value, low, high) =>
  value === null ? NONE : [latency(value), h("span", { class: "muted small" }, low === null || high === null ? "interval not known" : `${latency(low)} to ${latency(high)}`)];

const TONE = { Regressed: "bad", Passed: "good", Inconclusive: "busy" };

function evidence(page) {
  if (!page.signals.length && !page.series.length) {
    return card("Evidence", "evidence", h("p", { class: "muted" }, page.verdict ? page.verdict.message : "Nothing is being judged: there is no rollout."));
  }
  const percentile = page.signals[0]?.percentile ?? "p95";
  const charts = page.series.map((series) => h("figure", {}, h("figcaption", {}, h("strong", {}, series.title), `, ${series.slice}`),
    latencyChart(series.points, `${series.title}, ${series.slice}, ${percentile} of stable and canary over time; the newest numbers are in the table below`)));
  const rows = page.signals.map((signal) => h("tr", {},
    h("th", { scope: "row" }, signal.title, h("span", { class: "muted small" }, `${signal.slice}, ${signal.percentile}`)),
    h("td", { class: "number" }, spread(signal.stable_p95, signal.stable_low, signal.stable_high), h("span", { class: "muted small" }, `${count(signal.stable_samples)} requests`)),
    h("td", { class: "number" }, spread(signal.canary_p95, signal.canary_low, signal.canary_high), h("span", { class: "muted small" }, `${count(signal.canary_samples)} requests`)),
    h("td", {}, h("span", { class: `badge ${TONE[signal.outcome] ?? "quiet"}` }, signal.outcome)), h("td", { class: "wide" }, signal.message)));
  return card("Evidence", "evidence",
    page.verdict ? h("p", {}, page.verdict.message) : null,
    legend(["stable", `stable, ${percentile}`], ["canary", `canary, ${percentile}`], ["band", "interval of 95 %"]),
    h("div", { class: "charts" }, charts),
    h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Signals in numbers" }, h("table", {}, h("thead", {}, h("tr", {},
      h("th", { scope: "col" }, "Signal"), h("th", { scope: "col", class: "number" }, "Stable"), h("th", { scope: "col", class: "number" }, "Canary"),
      h("th", { scope: "col" }, "Outcome"), h("th", { scope: "col" }, "Why"))), h("tbody", {}, rows))));
}

function tile(pod) {
  const short = pod.name.split("-").slice(-1)[0];
  const pages = pod.used === null ? "none" : heat(pod.used), queue = pod.waiting === null ? "none" : heat(pod.waiting / FULL_QUEUE);
  return h("li", { class: "tile", title: pod.name }, h("span", { class: "pod" }, short, pod.state === "Ready" ? null : h("em", {}, ` ${pod.state}`)),
    h("span", { class: `cell heat-${pages}` }, h("span", { class: "what" }, "KV"), share(pod.used)),
    h("span", { class: `cell heat-${queue}` }, h("span", { class: "what" }, "queue"), count(pod.waiting)));
}

function pods(page) {
  const roles = Object.fromEntries(page.revisions.map((revision) => [revision.hash, revision.role]));
  const grouped = (members) => [...new Set(members.map((pod) => pod.revision))].map((revision) => [revision, members.filter((pod) => pod.revision === revision)]);
  const titled = (what) => ([revision, members]) => [
    h("h3", {}, h("span", { class: `key ${roles[revision] ?? "leaving"}`, "aria-hidden": "true" }), `${what}${roles[revision] ?? "leaving"} `, h("code", {}, revision)),
    h("ul", { class: "tiles" }, members.map(tile))];
  const shown = [...grouped(page.pods.filter((pod) => !pod.prefill)).map(titled("")), ...grouped(page.pods.filter((pod) => pod.prefill)).map(titled("prefill pods of "))];
  const empty = page.leads ? "No pods." : "This operator stands by; the numbers of pods are with the one that decides.";
  return card("Pods", "pods", page.pods.length
    ? [h("p", { class: "muted scale" }, "KV pages in use and requests waiting per pod. Cool ",
        [0, 1, 2, 3, 4, 5].map((step) => h("span", { class: `swatch heat-${step}`, "aria-hidden": "true" })), " hot (83 % of the pages, 14 waiting, or more)."), shown,
      page.leftOut ? h("p", { class: "muted" }, `${page.leftOut} more pods are not shown.`) : null]
    : h("p", { class: "muted" }, empty));
}

function replicas(page) {
  if (!page.replicas.length) return null;
  const kinds = Object.fromEntries(page.revisions.map((revision) => [revision.hash, revision.role]));
  return card("Replicas", "replicas", legend(["stable", "stable"], ["canary", "canary"], ["leaving", "leaving"], ["dashed", "desired"]),
    replicasChart(page.replicas, page.now, kinds, `Ready and desired replicas by revision since ${ago(page.replicas[0].time, page.now)}; now ${page.ready} of ${page.desired} are ready`));
}

function decisions(page) {
  return card("Decisions", "decisions", page.decisions.length ? h("ol", { class: "log", reversed: true }, page.decisions.map((entry) => h("li", {},
    h("time", { datetime: stamp(entry.time), title: stamp(entry.time) }, ago(entry.time, page.now)), h("p", {}, h("strong", {}, entry.kind), " ", entry.message))))
    : h("p", { class: "muted" }, "Nothing has been decided yet."));
}

export class Service {
  constructor(root, namespace, name) {
    this.root = root;
    this.head = h("div", { class: "headline" }, h("h1", { tabindex: "-1" }, name), h("span", { class: "muted" }, namespace), this.state = h("span"));
    this.said = h("p", { class: "lead", role: "status" }, "Reading…");
    this.body = h("div");
    root.replaceChildren(h("nav", { "aria-label": "Breadcrumb" }, h("a", { href: "#/" }, "← Fleet")), this.head, this.said, this.body);
  }

  draw(page) {
    if (page.gone) { this.said.textContent = "There is no such service."; this.body.replaceChildren(); return; }
    if (this.said.textContent !== page.headline) this.said.textContent = page.headline;
    this.state.replaceChildren(badge(page.state));
    const troubles = page.conditions.filter((entry) => (entry.type === "Degraded" && entry.status === "True") || (["Ready", "Guarded", "SLOMet", "WithinBudget"].includes(entry.type) && entry.status === "False") || entry.reason === "WorseThanPlanned");
    this.body.replaceChildren(
      ...troubles.map((entry) => h("p", { class: "trouble" }, h("strong", {}, entry.reason), " ", entry.message)),
      h("dl", { class: "facts" }, fact("Model", page.model), fact("Replicas ready", `${page.ready} / ${page.desired}`),
        fact("Waiting", count(page.queue), page.held ? `and ${count(page.held)} held by gateways` : null),
        fact("Fullest pod", share(page.used), "of its KV pages"),
        fact("Read", page.read ? ago(page.read, page.now) : NONE, page.stale ? "not current" : null), spending(page) ?? "", owner(page) ?? ""),
      h("div", { class: "columns" }, split(page), replicas(page) ?? ""), objectives(page) ?? "", capacityPlan(page) ?? "", evidence(page), pods(page), decisions(page));
  }
}
