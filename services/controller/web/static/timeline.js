// Zoom of a task's timeline: buttons and keys, or a drag over it with the mouse. All bands show the same part; the browser draws what is in
// the page already, so each column stays as long as it is.
"use strict";
(() => {
  const LEAST = 4; // columns
  const STEP = 0.5;
  let part = null; // [from, to] in ms of Unix time; null: the whole
  let drag = null;
  const whole = (zoom) => [Number(zoom.dataset.fromMs), Number(zoom.dataset.toMs)];
  const clock = (ms, precise) => new Date(ms).toISOString().slice(11, precise ? 23 : 19);

  const draw = (zoom) => {
    const [from, to] = whole(zoom), slots = Number(zoom.dataset.slots), slot = (to - from) / slots;
    let [begin, end] = part || [from, to];
    const length = Math.min(to - from, Math.max(end - begin, LEAST * slot));
    begin = Math.min(Math.max(from, (begin + end - length) / 2), to - length);
    end = begin + length;
    for (const svg of zoom.querySelectorAll("svg.gantt")) svg.setAttribute("viewBox", `${(begin - from) / slot} 0 ${length / slot} 100`);
    for (const ticks of zoom.querySelectorAll(".ticks")) {
      const count = ticks.children.length - 1;
      [...ticks.children].forEach((tick, at) => { tick.textContent = clock(begin + (length * at) / count, length < 10000); });
    }
    const zoomed = length < to - from;
    if (part) part = zoomed ? [begin, end] : null;
    zoom.querySelector("[data-zoom-range]").textContent = zoomed ? `${clock(begin, length < 10000)} to ${clock(end, length < 10000)} UTC` : "";
    const useless = { in: length <= LEAST * slot, out: !zoomed, whole: !zoomed, earlier: begin <= from, later: end >= to };
    for (const button of zoom.querySelectorAll("[data-zoom-act]")) button.setAttribute("aria-disabled", String(useless[button.dataset.zoomAct]));
    return [begin, end];
  };
  const act = (zoom, name) => {
    const [begin, end] = draw(zoom), middle = (begin + end) / 2, half = (end - begin) / 2;
    if (name === "in") part = [middle - half * STEP, middle + half * STEP];
    else if (name === "out") part = [middle - half / STEP, middle + half / STEP];
    else if (name === "whole") part = null;
    else {
      const [from, to] = whole(zoom), by = name === "later" ? Math.min(half, to - end) : -Math.min(half, begin - from);
      part = [begin + by, end + by];
    }
    draw(zoom);
  };
  const all = () => { for (const zoom of document.querySelectorAll("[data-zoom]")) draw(zoom); };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-zoom-act]");
    if (button && button.getAttribute("aria-disabled") !== "true") act(button.closest("[data-zoom]"), button.dataset.zoomAct);
  });
  const KEYS = { "+": "in", "=": "in", "-": "out", "0": "whole", ArrowLeft: "earlier", ArrowRight: "later" };
  document.addEventListener("keydown", (event) => {
    const bar = event.target.closest(".zoom-bar"), name = KEYS[event.key];
    if (!bar || !name || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act(bar.closest("[data-zoom]"), name);
  });

  // A drag marks a part of one band; the same part of every band is shown then.
  document.addEventListener("pointerdown", (event) => {
    const svg = event.target.closest("[data-zoom] svg.gantt");
    if (!svg || event.pointerType !== "mouse" || event.button !== 0) return;
    event.preventDefault();
    const box = svg.getBoundingClientRect(), mark = document.createElement("div");
    mark.className = "zoom-mark";
    mark.style.cssText = `top:${box.top + scrollY}px;height:${box.height}px`;
    document.body.append(mark);
    drag = { zoom: svg.closest("[data-zoom]"), box, mark, at: event.clientX };
  });
  document.addEventListener("mousedown", (event) => { if (drag) event.preventDefault(); }); // no text is selected
  document.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const inside = (x) => Math.min(Math.max(x, drag.box.left), drag.box.right);
    const [left, right] = [inside(Math.min(drag.at, event.clientX)), inside(Math.max(drag.at, event.clientX))];
    drag.mark.style.left = `${left + scrollX}px`;
    drag.mark.style.width = `${right - left}px`;
    drag.part = [(left - drag.box.left) / drag.box.width, (right - drag.box.left) / drag.box.width];
  });
  const drop = (event) => {
    if (!drag) return;
    const { zoom, mark, box, part: marked } = drag;
    drag = null;
    mark.remove();
    if (event.type !== "pointerup" || !marked || (marked[1] - marked[0]) * box.width < 5 || !zoom.isConnected) return;
    const [begin, end] = draw(zoom);
    part = [begin + marked[0] * (end - begin), begin + marked[1] * (end - begin)];
    draw(zoom);
  };
  document.addEventListener("pointerup", drop);
  document.addEventListener("pointercancel", drop);
  document.addEventListener("dblclick", (event) => {
    const svg = event.target.closest("[data-zoom] svg.gantt");
    if (svg) act(svg.closest("[data-zoom]"), "whole");
  });

  // The part of the page is replaced while the task runs: it shows the same time as before.
  document.addEventListener("htmx:afterSettle", all);
  all();
})();
