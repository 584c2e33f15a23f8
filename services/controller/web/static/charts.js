// Charts over time, drawn by uPlot from the data beside them; the stream adds points. Colours come from the legend's swatches, so both
// themes and the stylesheet have the last word.
"use strict";
(() => {
  const charts = new Map();
  const HOUR_S = 3600;
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const bytes = (value) => {
    let unit = 0;
    while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit++; }
    return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1).replace(/\.0$/, "")} ${UNITS[unit]}`;
  };
  const text = (value, unit) => {
    if (value === null || value === undefined) return "–";
    if (unit === "bytes") return bytes(value);
    if (unit === "%") return `${Math.round(value)} %`;
    return value.toLocaleString("en", { maximumFractionDigits: Math.abs(value) < 10 ? 2 : 0 });
  };
  // As compact_text of formats.py writes them: 2.5 M.
  const short = (value) => {
    for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${letter}`;
    return text(value, "");
  };
  const tick = (value, unit) => (unit ? text(value, unit) : short(value));
  // Hours of the day, or days where a chart shows more than two.
  const moment = (second, span) => (span > 172800
    ? new Date(second * 1000).toLocaleDateString("en", { month: "short", day: "numeric" })
    : new Date(second * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hourCycle: "h23" }));
  const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
  const style = (element) => getComputedStyle(element);
  // A colour as the browser resolved it, whatever it was written as.
  const paint = (color, alpha) => `color-mix(in srgb, ${color} ${alpha}%, transparent)`;
  const probe = document.createElement("canvas").getContext("2d");
  const solid = (color) => { probe.fillStyle = color; return probe.fillStyle; };

  // For stacked series the plot gets running sums; the legend and the tooltip show each by itself. Where one is 0 it is not drawn: its
  // line would hide the one below.
  const plotted = (chart) => {
    if (!chart.data.stacked) return [chart.times, ...chart.values];
    let below = null;
    return [chart.times, ...chart.values.map((values) => {
      const sums = values.map((value, index) => (value === null ? null : value + (below ? below[index] || 0 : 0)));
      const drawn = below ? sums.map((sum, index) => (values[index] === 0 ? null : sum)) : sums;
      below = sums;
      return drawn;
    })];
  };
  const legend = (chart, index) => {
    for (const slot of chart.figure.querySelectorAll("[data-legend]")) {
      const series = Number(slot.dataset.legend) - 1, values = chart.values[series];
      let at = index;
      if (at === null || at === undefined) for (at = values.length - 1; at > values.length - 4 && values[at] === null; at--);
      slot.textContent = at < 0 ? "" : text(values[at], chart.data.series[series].unit);
    }
  };
  const draw = (chart) => {
    if (chart.plot) chart.plot.destroy();
    const { holder, figure, data } = chart;
    const colors = [...figure.querySelectorAll(".legend .swatch")].map((swatch) => style(swatch).backgroundColor);
    const muted = style(figure.querySelector(".legend li")).color, grid = paint(style(holder).borderTopColor || muted, 100);
    const line = paint(solid(muted), 18);
    const unit = data.series[0].unit;
    const order = data.series.map((_, index) => index);
    chart.plot = new uPlot({
      width: Math.max(200, holder.clientWidth), height: Number(holder.dataset.height) || 180,
      padding: [8, 20, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 }, sync: { key: "wooly" }, drag: { x: false, y: false } },
      scales: {
        x: { time: true, range: (self, low, high) => { const end = high || Date.now() / 1000; return [Math.min(low || end, end - (data.span || HOUR_S)), end]; } },
        y: { range: (self, low, high) => [0, data.max || Math.max(high * 1.1, data.least || 1)] },
      },
      axes: [
        { stroke: muted, font: "11px Inter, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false }, space: 70, size: 28,
          values: (self, splits) => splits.map((second) => moment(second, data.span || HOUR_S)) },
        { stroke: muted, font: "11px Inter, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false }, size: unit === "bytes" ? 62 : 48, gap: 4, space: 32,
          ...(unit === "bytes" ? { incrs: POWERS } : {}), values: (self, splits) => splits.map((value) => tick(value, unit)) },
      ],
      series: [{}, ...order.map((index) => ({
        stroke: colors[index], width: 1.6, fill: paint(colors[index], data.stacked ? 42 : 12), points: { show: false }, spanGaps: false,
      }))],
      bands: data.stacked ? order.slice(1).map((index) => ({ series: [index + 1, index], fill: paint(colors[index], 42) })) : [],
      hooks: { setCursor: [(self) => legend(chart, self.cursor.idx)] },
    }, plotted(chart), holder);
    const none = holder.querySelector(".plot-empty");
    if (none) none.remove();
    if (!chart.values.some((values) => values.some((value) => value !== null))) {
      const note = document.createElement("p");
      note.className = "plot-empty";
      note.textContent = "Nothing measured yet";
      holder.append(note);
    }
    legend(chart, null);
  };
  const holderIsEmpty = (chart) => chart.holder.querySelector(".plot-empty") !== null;
  const take = (chart, data) => { chart.data = data; chart.times = [...data.t]; chart.values = data.series.map((series) => [...series.values]); };
  const resize = new ResizeObserver((entries) => {
    for (const { target, contentRect } of entries) {
      const chart = charts.get(target.id);
      if (chart && chart.plot && Math.abs(chart.plot.width - contentRect.width) > 1) chart.plot.setSize({ width: Math.max(200, contentRect.width), height: chart.plot.height });
    }
  });
  const setup = (root) => {
    for (const holder of root.querySelectorAll("[data-chart]")) {
      const known = charts.get(holder.id);
      if (known && known.holder === holder) continue;
      const chart = { holder, figure: holder.closest("figure"), plot: null };
      take(chart, JSON.parse(document.getElementById(`${holder.id}-data`).textContent));
      charts.set(holder.id, chart);
      draw(chart);
      resize.observe(holder);
    }
  };
  document.addEventListener("wooly:points", (event) => {
    for (const [id, points] of Object.entries(event.detail)) {
      const chart = charts.get(id);
      if (!chart) continue;
      for (const [second, ...values] of points) {
        const end = chart.times.length - 1, at = chart.times.lastIndexOf(second);
        if (at >= 0) chart.values.forEach((series, index) => { series[at] = values[index]; });
        else if (end < 0 || second > chart.times[end]) { chart.times.push(second); chart.values.forEach((series, index) => series.push(values[index])); }
      }
      const newest = chart.times[chart.times.length - 1];
      while (chart.times[0] < newest - (chart.data.span || HOUR_S)) { chart.times.shift(); chart.values.forEach((series) => series.shift()); }
      if (holderIsEmpty(chart)) draw(chart);
      else { chart.plot.setData(plotted(chart)); if (chart.plot.cursor.idx === null || chart.plot.cursor.idx === undefined) legend(chart, null); }
    }
  });
  document.addEventListener("wooly:resync", () => {
    for (const chart of charts.values()) {
      const src = chart.holder.dataset.src;
      if (src) fetch(src, { headers: { accept: "application/json" } }).then((answer) => answer.ok ? answer.json() : null).then((data) => { if (data) { take(chart, data); draw(chart); } }).catch(() => {});
    }
  });
  document.addEventListener("wooly:theme", () => requestAnimationFrame(() => charts.forEach(draw)));
  document.addEventListener("htmx:afterSettle", () => setup(document));
  document.fonts.ready.then(() => charts.forEach(draw));
  setup(document);
})();
