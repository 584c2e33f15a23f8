// What pages do in the browser beside htmx: theme, menu, questions before an action, times, flash messages.
"use strict";
(() => {
  const one = (selector, root = document) => root.querySelector(selector);

  // Theme: the cookie tells the server, which writes it into the page: no flash of the other one at the next load.
  document.addEventListener("change", (event) => {
    if (!event.target.matches("[data-theme-switch] input")) return;
    const theme = event.target.value;
    document.cookie = `wooly_theme=${theme}; path=/; max-age=31536000; samesite=lax`;
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    document.dispatchEvent(new Event("wooly:theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("wooly:theme")));

  document.addEventListener("click", (event) => {
    const menu = event.target.closest("[data-menu]");
    if (menu) menu.setAttribute("aria-expanded", String(one("#side").classList.toggle("open")));
    const dismiss = event.target.closest("[data-dismiss]");
    if (dismiss) dismiss.closest("[data-flash]").remove();
    const copy = event.target.closest("[data-copy]");
    if (copy) navigator.clipboard.writeText(copy.dataset.copy).then(() => { copy.dataset.copied = ""; });
    const opener = event.target.closest("[data-open]");
    if (opener) document.getElementById(opener.dataset.open).showModal();
    const closer = event.target.closest("[data-close]");
    if (closer) closer.closest("dialog").close();
  });
  document.addEventListener("keydown", (event) => {
    const side = one("#side.open");
    if (event.key === "Escape" && side) {
      side.classList.remove("open");
      const button = one("[data-menu]");
      button.setAttribute("aria-expanded", "false");
      button.focus();
    }
    if (event.key === "/" && !event.target.closest("input, textarea, select, [contenteditable]")) {
      const search = one("#listing-q");
      if (search) { event.preventDefault(); search.focus(); }
    }
  });

  // A form with data-confirm asks first; the dialog gives the focus back by itself.
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (!form.dataset || !form.dataset.confirm || form.dataset.sure) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const dialog = one("#confirm"), yes = one("[data-yes]", dialog);
    one("#confirm-text", dialog).textContent = form.dataset.confirm;
    yes.textContent = form.dataset.confirmLabel || "Yes";
    yes.classList.toggle("button-danger", "danger" in form.dataset);
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => {
      if (dialog.returnValue !== "yes") return;
      form.dataset.sure = "1";
      form.requestSubmit(event.submitter || undefined);
      delete form.dataset.sure;
    }, { once: true });
    dialog.showModal();
  }, true);

  // How long ago, or for how long (data-ago="for"): counted here, so the server's bytes stay the same while nothing happens.
  const full = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const spoken = (seconds) => {
    if (seconds < 2) return "now";
    if (seconds < 60) return `${Math.floor(seconds)} s ago`;
    if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
    if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
    return `${Math.floor(seconds / 86400)} d ago`;
  };
  const times = () => {
    const now = Date.now();
    for (const time of document.querySelectorAll("time[data-ago]")) {
      const moment = Date.parse(time.dateTime);
      const ago = spoken(Math.max(0, (now - moment) / 1000)), text = time.dataset.ago === "for" ? ago.replace(" ago", "") : ago;
      if (time.textContent !== text) time.textContent = text;
      if (time.dataset.titled !== time.dateTime) { time.title = full.format(moment); time.dataset.titled = time.dateTime; }
    }
  };
  document.addEventListener("wooly:changed", times);
  document.addEventListener("htmx:afterSettle", times);
  setInterval(times, 1000);
  times();

  // A log stays at its end while lines are added, unless the user has scrolled away from it.
  let atEnd = true;
  const toEnd = () => { if (atEnd) for (const log of document.querySelectorAll(".log")) log.scrollTop = log.scrollHeight; };
  document.addEventListener("scroll", (event) => {
    const log = event.target;
    if (log.classList && log.classList.contains("log")) atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 8;
  }, true);
  document.addEventListener("wooly:changed", toEnd);
  toEnd();

  document.addEventListener("htmx:configRequest", (event) => {
    const token = one('meta[name="csrf-token"]').content;
    if (token) event.detail.headers["X-CSRF-Token"] = token;
    // An empty field of a filter bar means no filter: it stays out of the address.
    if (event.detail.verb === "get") {
      for (const [name, value] of Object.entries(event.detail.parameters)) if (value === "") delete event.detail.parameters[name];
    }
  });
  // A problem page (a login that ran out, a server that is away) is shown whole, not squeezed into a table.
  document.addEventListener("htmx:beforeSwap", (event) => {
    if (event.detail.xhr.status >= 400) { event.preventDefault(); location.assign(event.detail.pathInfo.requestPath); }
  });
})();
