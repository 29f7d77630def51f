"use strict";
// What the pages add where there is JavaScript: the state of the stream, and charts. Every page is whole without it.
(function () {
  const state = () => document.getElementById("live-state");
  const say = (text) => { const found = state(); if (found && found.textContent !== text) found.textContent = text; };
  document.addEventListener("htmx:sseOpen", () => say("live"));
  document.addEventListener("htmx:sseError", () => say("not connected: tries again"));
  document.addEventListener("htmx:sseMessage", () => { say("live"); draw(); });

  // A chart: a <figure data-chart="id of its table">, drawn from the figures of that table.
  const charts = new WeakMap();
  function draw() {
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const table = document.getElementById(figure.dataset.chart);
      if (!table || !window.uPlot) continue;
      const rows = [...table.tBodies[0].rows].map((row) => [...row.cells].map((cell) => Number(cell.dataset.value)));
      if (rows.length < 2) continue;
      const heads = [...table.tHead.rows[0].cells].map((cell) => cell.textContent);
      const columns = heads.map((_, column) => rows.map((row) => (Number.isFinite(row[column]) ? row[column] : null)));
      const known = charts.get(figure);
      if (known && known.root.isConnected) { known.setData(columns); continue; }
      const style = getComputedStyle(document.documentElement);
      const color = (name) => style.getPropertyValue(name).trim();
      const axis = { stroke: color("--dim"), grid: { stroke: color("--line") }, ticks: { stroke: color("--line") } };
      const strokes = [color("--accent"), color("--bad"), color("--good"), color("--dim")];
      figure.replaceChildren();
      const chart = new uPlot({
        width: widthOf(figure), height: 220, axes: [axis, axis],
        series: heads.map((label, place) => place === 0 ? { label } : { label, stroke: strokes[(place - 1) % 4], width: 2 }),
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
  document.addEventListener("DOMContentLoaded", () => { keep(); draw(); });
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
      beforeNodeMorphed: (old) => !(old instanceof Element)
        || !(old.matches("figure[data-chart]") || (old.matches("input, select, textarea") && isChosen(old))),
      beforeAttributeUpdated: (name, one) => !(name === "open" && one instanceof HTMLDetailsElement),
    });
  }
})();
