// Keeps an open page up to date from the server's stream. A message is {"html": {id: markup}, "lists": {id: [ids in order]},
// "points": {chart id: [[time, values...], ...]}, "all": true when it is everything there is}. What did not change is not touched.
"use strict";
(() => {
  const body = document.body;
  const state = document.getElementById("live-state");
  const banner = document.getElementById("offline");
  let source = null, open = "", retry = 0, timer = 0, hidden = 0, broken = 0, lastId = "";

  const say = (name, text) => {
    if (!state || state.dataset.state === name) return;
    state.dataset.state = name;
    state.querySelector("[data-live-text]").textContent = text;
    if (banner) banner.hidden = name !== "offline";
  };
  const parse = (markup) => {
    const holder = document.createElement("template");
    holder.innerHTML = markup.trim();
    return holder.content.firstElementChild;
  };
  // The user may be typing in it, or has opened it: leave those.
  const morphing = {
    ignoreActiveValue: true,
    callbacks: {
      beforeAttributeUpdated: (name, node) => !(name === "open" && (node.localName === "details" || node.localName === "dialog")),
      beforeNodeRemoved: (node) => !(node.dataset && "keep" in node.dataset),
      beforeNodeMorphed: (node) => !(node.dataset && "keep" in node.dataset),
    },
  };
  const apply = (patch) => {
    for (const [id, order] of Object.entries(patch.lists || {})) {
      const list = document.getElementById(id);
      if (!list) continue;
      const wanted = new Set(order);
      for (const child of [...list.children]) if (child.id && !wanted.has(child.id) && !("keep" in child.dataset)) child.remove();
      let before = null;
      for (const name of order) {
        let child = document.getElementById(name);
        if (!child) {
          const markup = patch.html[name];
          if (!markup) continue;
          child = parse(markup);
          child.classList.add("fresh");
        }
        const next = before ? before.nextElementSibling : list.firstElementChild;
        if (next !== child) list.insertBefore(child, next);
        before = child;
        while (before.nextElementSibling && before.nextElementSibling.dataset.after === name) before = before.nextElementSibling;
      }
    }
    for (const [id, markup] of Object.entries(patch.html || {})) {
      const element = document.getElementById(id);
      if (element && !element.contains(document.querySelector("dialog[open]"))) Idiomorph.morph(element, markup.trim(), morphing);
    }
    if (patch.points) document.dispatchEvent(new CustomEvent("wooly:points", { detail: patch.points }));
    document.dispatchEvent(new Event("wooly:changed"));
    if (window.htmx) htmx.process(document.getElementById("main"));
  };

  const close = () => { if (source) source.close(); source = null; clearTimeout(timer); };
  const connect = () => {
    close();
    open = body.dataset.live || "";
    if (!open) { say("off", "Not live"); return; }
    const url = lastId ? `${open}${open.includes("?") ? "&" : "?"}since=${encodeURIComponent(lastId)}` : open;
    source = new EventSource(url);
    source.addEventListener("patch", (event) => {
      lastId = event.lastEventId;
      const patch = JSON.parse(event.data);
      apply(patch);
      if (broken && Date.now() - broken > 8000) document.dispatchEvent(new Event("wooly:resync"));
      broken = 0; retry = 0;
      say("live", "Live");
    });
    source.addEventListener("hello", () => { retry = 0; broken = 0; say("live", "Live"); });
    source.addEventListener("gone", () => { close(); location.reload(); });
    source.onerror = () => {
      broken = broken || Date.now();
      close();
      say(retry < 1 ? "connecting" : "offline", retry < 1 ? "Connecting" : "Offline");
      // Each page in its own time, so that a controller that comes back is not asked by all at once.
      timer = setTimeout(connect, Math.min(15000, 500 * 2 ** retry) * (0.5 + Math.random()));
      retry = Math.min(retry + 1, 6);
    };
  };

  // Another search, filter or page of the table is another thing to follow.
  const follow = () => {
    const base = (body.dataset.live || "").split("?")[0];
    if (!base) return;
    body.dataset.live = base + location.search;
    if (body.dataset.live !== open) { lastId = ""; connect(); }
  };
  document.addEventListener("htmx:pushedIntoHistory", follow);
  document.addEventListener("htmx:replacedInHistory", follow);
  window.addEventListener("popstate", () => setTimeout(follow, 0));
  // A hidden page costs nothing: it disconnects, and reloads its state when it becomes visible.
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hidden);
    if (document.visibilityState === "hidden") hidden = setTimeout(() => { broken = Date.now(); close(); }, 30000);
    else if (!source) connect();
  });
  window.addEventListener("online", () => { retry = 0; connect(); });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", (event) => { if (event.persisted) connect(); });
  connect();
})();
