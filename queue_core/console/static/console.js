"use strict";
// What the pages add where there is JavaScript: the state of the stream, and charts. Every page is whole without it.
(function () {
  const state = () => document.getElementById("live-state");
  const say = (text) => { const found = state(); if (found && found.textContent !== text) found.textContent = text; };
  document.addEventListener("htmx:sseOpen", () => say("live"));
  document.addEventListener("htmx:sseError", () => say("not connected: retrying"));
  document.addEventListener("htmx:sseMessage", () => { say("live"); show(); });
  const show = () => { localise(); draw(); tail(); };

  // Times are the viewer's, and the zone is named: the server writes its own, for pages without JavaScript.
  const two = (number) => String(number).padStart(2, "0");
  const clock = (date) => [date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":");
  const day = (date) => [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  function localise() {
    const zone = document.getElementById("zone");
    const name = Intl.DateTimeFormat().resolvedOptions().timeZone;
    if (zone && name && zone.textContent !== name) zone.textContent = name;
    const today = day(new Date());
    for (const one of document.querySelectorAll("time[datetime]")) {
      const at = new Date(one.dateTime);
      const text = day(at) === today ? clock(at) : `${day(at)} ${clock(at)}`;
      if (one.textContent !== text) one.textContent = text;
    }
  }

  // The end of an output stays in view, unless somebody has scrolled up in it.
  const isScrolled = new WeakSet();
  function tail() {
    for (const output of document.querySelectorAll("pre[data-tail]")) {
      if (!isScrolled.has(output)) output.scrollTop = output.scrollHeight;
    }
  }
  document.addEventListener("scroll", ({ target }) => {
    if (!(target instanceof Element) || !target.matches("pre[data-tail]")) return;
    const isAtEnd = target.scrollTop + target.clientHeight >= target.scrollHeight - 8;
    isScrolled[isAtEnd ? "delete" : "add"](target);
  }, true);

  // A chart: a <figure data-chart="id of its table">, drawn from the figures of that table.
  const charts = new WeakMap();
  function draw() {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const table = document.getElementById(figure.dataset.chart);
      if (!table || !window.uPlot) continue;
      const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map(({ dataset: { value } }) => value ? Number(value) : null));
      if (rows.length < 2) continue;
      const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
      const columns = heads.map((_, column) => rows.map((row) => (Number.isFinite(row[column]) ? row[column] : null)));
      const known = charts.get(figure);
      if (known && known.root.isConnected) { known.setData(columns); continue; }
      const style = getComputedStyle(document.documentElement);
      const color = (name) => style.getPropertyValue(name).trim();
      const axis = { stroke: color("--dim"), grid: { stroke: color("--line"), width: 1 }, ticks: { stroke: color("--line"), width: 1 } };
      const strokes = [color("--accent"), color("--warn"), color("--good"), color("--bad"), color("--bad"), color("--dim")];
      const time = (seconds) => clock(new Date(seconds * 1000));
      // A column is a stepped line, dashed, as bars or points at the foot of the chart, or a backlog on the right axis.
      const marks = [...table.tHead.rows[0].cells].map((cell) => cell.dataset.mark || "line");
      const step = uPlot.paths.stepped({ align: 1 });
      const shapes = {
        line: (stroke) => ({ stroke, width: 2, scale: "y", paths: step, spanGaps: true, points: { show: false } }),
        dash: (stroke) => ({ stroke, width: 2, scale: "y", paths: step, spanGaps: true, dash: [6, 4], points: { show: false } }),
        bars: () => ({ stroke: color("--bad"), fill: color("--bad"), width: 0, scale: "foot", paths: uPlot.paths.bars({ size: [0.6, 8, 2] }), points: { show: false } }),
        points: () => ({ stroke: color("--bad"), scale: "foot", paths: () => null, points: { show: true, size: 9, width: 2, fill: color("--card") } }),
        right: (stroke) => ({ stroke, width: 1.5, scale: "last", paths: step, spanGaps: true, points: { show: false } }),
      };
      const line = (label, place) => place === 0 ? { label, value: (_, at) => at === null ? "" : time(at) }
        : { label, ...shapes[marks[place]](strokes[(place - 1) % strokes.length]) };
      const whole = (_, splits) => splits.map((one) => Number.isInteger(one) ? one.toLocaleString("en") : "");
      const fromZero = (_, __, most) => [0, Math.max(1, most)];
      const chart = new uPlot({
        width: widthOf(figure), height: 220, scales: { y: { range: fromZero }, last: { range: fromZero }, foot: { range: (_, __, most) => [0, 4 * Math.max(1, most)] } },
        axes: [{ ...axis, space: 90, values: (_, splits) => splits.map(time) }, { ...axis, values: whole },
          { ...axis, scale: "last", side: 1, grid: { show: false }, values: whole }],
        series: heads.map(line),
      }, columns, figure);
      charts.set(figure, chart);
      chart.over.addEventListener("click", () => {
        const at = chart.data[0][chart.cursor.idx];
        if (figure.dataset.at && at !== undefined) location.assign(`${figure.dataset.at}?at=${at}`);
      });
    }
  }
  const widthOf = (figure) => figure.clientWidth || 600;
  function fit() {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const chart = charts.get(figure);
      if (chart) chart.setSize({ width: widthOf(figure), height: chart.height });
    }
  }
  document.addEventListener("DOMContentLoaded", () => { keep(); show(); });
  window.addEventListener("resize", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const chart = charts.get(figure);
      if (chart) chart.destroy();
      charts.delete(figure);
    }
    draw();
  });

  // What a person has typed, chosen or opened, and what is drawn, stays as it is when the page changes under it.
  const isChosen = (one) => one === document.activeElement
    || (one instanceof HTMLInputElement && (one.value !== one.defaultValue || one.checked !== one.defaultChecked))
    || (one instanceof HTMLSelectElement && [...one.options].some((option) => option.selected !== option.defaultSelected));
  function keep() {
    if (!window.Idiomorph) return;
    Object.assign(Idiomorph.defaults.callbacks, {
      beforeNodeMorphed: (old, found) => !(old instanceof Element)
        || !(old.matches("figure[data-chart], dialog") || old.querySelector(":scope > button.sort") || (old.matches("time") && found.dateTime === old.dateTime) || (old.matches("input, select, textarea") && isChosen(old))),
      beforeNodeRemoved: (one) => !(one instanceof Element && one.matches("button.copy")),
      beforeAttributeUpdated: (name, one) => !(name === "open" && one instanceof HTMLDetailsElement),
    });
  }
})();
