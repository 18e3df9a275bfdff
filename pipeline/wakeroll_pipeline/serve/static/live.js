// Keeps the page current: it receives changed regions as server-sent events, and morphs them into the document.

const QUIET_MS = 15_000; // the server sends an event at least every 5 s
const body = document.body;
let source = null;
let heardAt = Date.now();
let clock = { log: Number(body.dataset.now), local: Date.now() };

// The log's time now, in epoch ms. An archived log and the past stand still.
function logNow() {
  return ["ledger", "past"].includes(body.dataset.state) ? clock.log : clock.log + (Date.now() - clock.local);
}

// The same words as the server's.
function duration(ms) {
  const seconds = Math.floor(Math.max(ms, 0) / 1000);
  if (seconds < 120) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  const rest = minutes % 60;
  if (hours < 48) return rest ? `${hours} h ${rest} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

function showAges() {
  if (!clock.log) return;
  const now = logNow();
  for (const element of document.querySelectorAll("time.age")) {
    const text = duration(now - Number(element.dataset.at));
    if (element.textContent !== text) element.textContent = text;
  }
  const asOf = document.getElementById("now");
  if (asOf) asOf.textContent = new Date(clock.log).toISOString().slice(0, 19).replace("T", " ");
}

function morph(id, html) {
  const element = document.getElementById(id);
  if (!element) return;
  window.Idiomorph.morph(element, html, {
    morphStyle: "innerHTML",
    // What the reader has opened stays open, and a form that is being filled in stays as it is.
    callbacks: {
      beforeAttributeUpdated: (name) => name !== "open",
      beforeNodeMorphed: (node) => !(node.dataset && "edited" in node.dataset),
    },
  });
}

function connection(state) {
  if (body.dataset.connection !== state) body.dataset.connection = state;
}

function update(event) {
  const { now_ms: now, state, regions } = JSON.parse(event.data);
  heardAt = Date.now();
  clock = { log: now, local: Date.now() };
  body.dataset.state = state;
  delete body.dataset.working;
  for (const [id, html] of Object.entries(regions)) morph(id, html);
  connection("open");
  showAges();
}

function connect() {
  if (!body.dataset.events) return; // a page that does not change
  if (source) source.close();
  heardAt = Date.now();
  const opened = new EventSource(body.dataset.events);
  source = opened;
  opened.addEventListener("update", update);
  opened.addEventListener("working", () => {
    heardAt = Date.now();
    connection("open");
  });
  opened.addEventListener("gone", () => {
    opened.close();
    location.reload();
  });
  opened.addEventListener("error", () => {
    connection("lost");
    // A browser gives up when the answer is an error.
    if (opened.readyState === EventSource.CLOSED) setTimeout(() => opened === source && connect(), 2000);
  });
}

// Shows another query of the same page without loading it.
function show(address, { push = true } = {}) {
  const url = new URL(address, location.href);
  if (push) history.pushState(null, "", url);
  else history.replaceState(null, "", url);
  body.dataset.events = `${body.dataset.events.split("?")[0]}${url.search}`;
  keepTime(url);
  connect();
}

// Links and forms outside the regions lead to the moment that the page shows.
function keepTime(url) {
  const at = url.searchParams.get("at") ?? "";
  if (at !== body.dataset.at) body.dataset.working = "";
  body.dataset.at = at;
  for (const link of document.querySelectorAll("a[data-keeps-at]")) {
    const kept = new URL(link.href);
    if (at) kept.searchParams.set("at", at);
    else kept.searchParams.delete("at");
    link.href = kept;
  }
  for (const kept of document.querySelectorAll('input[type="hidden"][name="at"]')) kept.value = at;
  const now = document.querySelector(".timebar .now");
  if (!now) return;
  const present = new URL(url);
  present.searchParams.delete("at");
  now.href = present;
  document.getElementById("at").value = at;
  const slider = document.getElementById("time");
  slider.value = at ? (/^\d+$/.test(at) ? at : Date.parse(at)) : slider.max;
  slider.setAttribute("aria-valuetext", at || "now");
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-soft]");
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button !== 0) return;
  const url = new URL(link.href);
  if (url.pathname !== location.pathname || !body.dataset.events) return;
  event.preventDefault();
  const box = document.getElementById("q");
  if (box && !url.searchParams.has("q")) box.value = "";
  show(url);
});

let typing = 0;
for (const form of document.querySelectorAll("form[data-live-form]")) {
  const go = () => {
    const url = new URL(location.href);
    const text = form.elements.q.value.trim();
    if (text) url.searchParams.set("q", text);
    else url.searchParams.delete("q");
    url.searchParams.delete("page");
    show(url, { push: false });
  };
  form.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(go, 200);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(typing);
    go();
  });
}

// The archived log grows while the page is open.
let extentAt = Date.now();
async function extendSlider({ target: slider }) {
  if (Date.now() - extentAt < 5_000) return;
  extentAt = Date.now();
  const answer = await fetch(`${body.dataset.base}/api/extent`);
  const { first_ms: first, last_ms: last } = answer.ok ? await answer.json() : {};
  if (!first) return;
  slider.min = first;
  slider.max = last;
  if (!body.dataset.at) slider.value = last;
}
document.getElementById("time")?.addEventListener("pointerenter", extendSlider);
document.getElementById("time")?.addEventListener("focus", extendSlider);

// Shows another moment when the slider rests.
let sliding = 0;
function slide(slider) {
  const at = new Date(Number(slider.value)).toISOString();
  document.getElementById("at").value = at;
  slider.setAttribute("aria-valuetext", at);
  clearTimeout(sliding);
  sliding = setTimeout(() => {
    const url = new URL(location.href);
    url.searchParams.set("at", at);
    if (!body.dataset.events) location.assign(url);
    else show(url, { push: body.dataset.at === "" });
  }, 200);
}

document.addEventListener("input", (event) => {
  const form = event.target.closest("form.what-if");
  if (form) form.dataset.edited = "";
});

document.addEventListener("keydown", (event) => {
  const box = document.getElementById("q");
  if (event.key === "/" && box && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) {
    event.preventDefault();
    box.focus();
    box.select();
  }
});
window.addEventListener("popstate", () => {
  const box = document.getElementById("q");
  if (box) box.value = new URL(location.href).searchParams.get("q") ?? "";
  show(location.href, { push: false });
});
window.addEventListener("pagehide", () => source && source.close());
window.addEventListener("pageshow", (event) => event.persisted && connect());

setInterval(() => {
  if (source && Date.now() - heardAt > QUIET_MS) {
    connection("lost");
    connect();
  }
  showAges();
}, 1000);

connect();
showAges();

const slider = document.getElementById("time");
if (slider) {
  slider.addEventListener("input", () => slide(slider));
  // A page can be used before its script runs: then the slider stands where the server did not put it.
  const drawn = slider.cloneNode();
  drawn.value = slider.defaultValue; // rounded to a step
  if (slider.value !== drawn.value) slide(slider);
}
