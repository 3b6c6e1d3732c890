// The fleet: every service a row; search, filter, sort, fifty rows at a time.
import { ago, badge, count, h, NONE, share } from "./dom.js";

const PAGE = 50;
const COLUMNS = [
  ["name", "Service", (row) => `${row.namespace}/${row.name}`], ["rank", "State", (row) => row.rank],
  ["weight", "Canary", (row) => row.weight, "number"], ["ready", "Ready", (row) => row.ready, "number"],
  ["queue", "Queue", (row) => row.queue ?? -1, "number"], ["used", "KV pages used", (row) => row.used ?? -1, "number"],
  ["slo", "Error budget", (row) => row.slo ?? 2, "number"],
  ["changed", "Last decision", (row) => row.changed ?? 0, "number"],
];
const GROUPS = [
  ["all", "All", () => true], ["trouble", "Need attention", (row) => row.rank <= 4],
  ["rollout", "Rolling out", (row) => row.state === "Rolling out" || row.state === "Paused"],
  ["healthy", "Healthy", (row) => row.state === "Healthy"], ["asleep", "Asleep", (row) => row.state === "Asleep"],
];

export class Fleet {
  constructor(root) {
    this.rows = new Map();
    this.search = ""; this.group = "all"; this.sort = "rank"; this.down = false; this.page = 0;
    this.loaded = false;
    this.root = root;
    this.build();
  }

  set(rows) { this.rows = new Map(rows.map((row) => [`${row.namespace}/${row.name}`, row])); this.loaded = true; this.draw(); }

  change(rows, gone) {
    for (const row of rows) this.rows.set(`${row.namespace}/${row.name}`, row);
    for (const key of gone) this.rows.delete(key);
    this.draw();
  }

  build() {
    this.groups = h("div", { class: "groups", role: "group", "aria-label": "Filter by state" });
    this.buttons = new Map(GROUPS.map(([key, title]) => {
      const number = h("span", { class: "count" });
      const button = h("button", { type: "button", onclick: () => { this.group = key; this.page = 0; this.draw(); } }, title, " ", number);
      this.groups.append(button);
      return [key, [button, number]];
    }));
    const search = h("input", {
      type: "search", id: "search", placeholder: "Name, namespace, model or revision", autocomplete: "off",
      oninput: (event) => { this.search = event.target.value.trim().toLowerCase(); this.page = 0; this.draw(); },
    });
    this.heads = COLUMNS.map(([key, title, , kind]) => {
      const button = h("button", { type: "button", onclick: () => this.order(key) }, title, h("span", { "aria-hidden": "true", class: "arrow" }));
      return h("th", { scope: "col", class: kind }, button);
    });
    this.body = h("tbody");
    this.said = h("p", { class: "muted", role: "status" });
    this.pages = h("nav", { class: "pages", "aria-label": "Pages of services" });
    this.root.replaceChildren(
      h("div", { class: "headline" }, h("h1", {}, "Fleet"), this.said),
      h("div", { class: "tools" }, h("div", { class: "search" }, h("label", { for: "search", class: "hidden" }, "Search services"), search), this.groups),
      h("div", { class: "scroll card flush", tabindex: "0", role: "region", "aria-label": "Services" },
        h("table", { class: "fleet" }, h("caption", { class: "hidden" }, "Inference services"), h("thead", {}, h("tr", {}, this.heads)), this.body)),
      this.pages);
    this.draw();
  }

  order(key) {
    if (this.sort === key) this.down = !this.down;
    else { this.sort = key; this.down = !["name", "rank"].includes(key); }
    this.page = 0;
    this.draw();
  }

  found() {
    const within = GROUPS.find(([key]) => key === this.group)[2];
    const words = this.search.split(/\s+/).filter(Boolean);
    const text = (row) => `${row.namespace}/${row.name} ${row.model} ${row.stable} ${row.canary}`.toLowerCase();
    const value = COLUMNS.find(([key]) => key === this.sort)[2], sign = this.down ? -1 : 1;
    const name = (row) => `${row.namespace}/${row.name}`;
    const less = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    return [...this.rows.values()].filter((row) => within(row) && words.every((word) => text(row).includes(word)))
      .sort((a, b) => sign * less(value(a), value(b)) || less(name(a), name(b)));
  }

  draw() {
    const all = [...this.rows.values()];
    for (const [key, , within] of GROUPS) {
      const [button, number] = this.buttons.get(key);
      button.setAttribute("aria-pressed", String(this.group === key));
      number.textContent = count(all.filter(within).length);
    }
    COLUMNS.forEach(([key], at) => {
      const mine = this.sort === key;
      this.heads[at].setAttribute("aria-sort", mine ? (this.down ? "descending" : "ascending") : "none");
      this.heads[at].querySelector(".arrow").textContent = mine ? (this.down ? " ↓" : " ↑") : "";
    });
    const found = this.found(), last = Math.max(0, Math.ceil(found.length / PAGE) - 1), now = Date.now() / 1000;
    this.page = Math.min(this.page, last);
    const shown = found.slice(this.page * PAGE, (this.page + 1) * PAGE);
    const focus = this.root.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
    this.body.replaceChildren(...shown.map((row) => this.line(row, now)));
    if (!shown.length) this.body.append(h("tr", {}, h("td", { colspan: COLUMNS.length, class: "empty" }, this.nothing())));
    if (focus) this.root.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus();
    const said = !this.loaded ? "" : found.length === all.length ? `${count(all.length)} services` : `${count(found.length)} of ${count(all.length)} services`;
    if (this.said.textContent !== said) this.said.textContent = said;
    this.turn(last);
  }

  nothing() {
    if (!this.loaded) return "Reading the fleet…";
    return this.rows.size ? "No service matches." : "There is no InferenceService yet. Apply one, and it appears here.";
  }

  line(row, now) {
    const canary = row.canary
      ? [h("meter", { min: 0, max: 100, value: row.weight, "aria-label": `Canary's share of ${row.name}` }), ` ${row.weight} %`] : NONE;
    const late = row.queue !== null && row.queue > 4 * Math.max(1, row.ready);
    return h("tr", {},
      h("th", { scope: "row" }, h("a", { href: `#/${row.namespace}/${row.name}` }, row.name),
        h("span", { class: "muted small" }, `${row.namespace} · ${row.model}`)),
      h("td", {}, badge(row.state)), h("td", { class: "number nowrap" }, canary),
      h("td", { class: "number" }, `${row.ready} / ${row.desired}`),
      h("td", { class: `number${late ? " hot" : ""}` }, count(row.queue)),
      h("td", { class: `number${row.used !== null && row.used > 0.9 ? " hot" : ""}` }, share(row.used)),
      h("td", { class: `number${row.slo !== null && row.slo < 0 ? " hot" : ""}` }, share(row.slo)),
      h("td", { class: "number muted nowrap" }, ago(row.changed, now)));
  }

  turn(last) {
    if (last === this.pages.last && this.page === this.pages.at) return;
    this.pages.last = last; this.pages.at = this.page;
    const to = (page) => () => { this.page = page; this.draw(); this.root.querySelector(".scroll").scrollTop = 0; };
    this.pages.replaceChildren(...(last === 0 ? [] : [
      h("button", { type: "button", disabled: this.page === 0, onclick: to(this.page - 1) }, "Previous"),
      h("span", {}, `Page ${this.page + 1} of ${last + 1}`),
      h("button", { type: "button", disabled: this.page === last, onclick: to(this.page + 1) }, "Next")]));
  }
}
