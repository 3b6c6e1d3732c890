// Which page is shown, and the stream of events that keeps it true.
import { Fleet } from "./fleet.js";
import { Service } from "./service.js";

const main = document.getElementById("main"), live = document.getElementById("live");
let stream = null, began = false, retry = 0;

function say(text, tone) {
  if (live.textContent !== text) live.textContent = text;
  live.className = `live ${tone}`;
}

function alive(data) {
  performance.mark("updated");
  if (data.leads === false) say("Standing by: another operator decides", "warn");
  else say("Live", "good");
}

async function lost(own, again) {
  say("Connection lost; trying again", "bad");
  const answer = await fetch("api/services", { method: "HEAD" }).catch(() => null);
  if (answer?.status === 401) location.assign("login");
  else if (own === stream && own.readyState === EventSource.CLOSED) { // a 503: the browser does not try again
    clearTimeout(retry);
    retry = setTimeout(again, 2000); // what is shown, searched and sorted stays
  }
}

function listen(query, handlers) {
  clearTimeout(retry);
  stream?.close();
  const own = stream = new EventSource(`events${query}`);
  stream.addEventListener("error", () => lost(own, () => listen(query, handlers)));
  for (const [event, handler] of Object.entries(handlers)) {
    stream.addEventListener(event, (message) => {
      const data = JSON.parse(message.data);
      handler(data);
      alive(data);
    });
  }
}

function show() {
  const [, namespace, name] = location.hash.match(/^#\/([^/]+)\/([^/]+)$/) ?? [];
  if (name) {
    document.title = `${name} · Pagefleet`;
    const service = new Service(main, namespace, name);
    listen(`?service=${encodeURIComponent(`${namespace}/${name}`)}`, { service: (page) => service.draw(page) });
  } else {
    document.title = "Fleet · Pagefleet";
    const fleet = new Fleet(main);
    listen("", { fleet: (data) => fleet.set(data.rows), rows: (data) => fleet.change(data.rows, data.gone) });
  }
  if (began) main.querySelector("h1").focus();
  began = true;
}

addEventListener("hashchange", () => { if (location.hash !== "#main") show(); });
addEventListener("pagehide", () => stream?.close());
show();
