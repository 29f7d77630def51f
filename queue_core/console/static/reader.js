"use strict";
// For people who read a page long: tables that sort, texts that are copied, and keys for the places one goes to.
// What is sorted is in the address, so that a link shows the same. Every page is whole without it.
(function () {
  const root = () => document.querySelector("a.brand").getAttribute("href");

  // Sorting: `?sort=COLUMN` (its heading), `-COLUMN` for the other way. Rows of a table body stay together.
  const wanted = () => new URLSearchParams(location.search).get("sort") || "";
  const valueOf = (cell) => {
    if (!cell) return "";
    const found = cell.querySelector("time[datetime]");
    const text = cell.dataset.value || (found ? found.dateTime : cell.textContent.trim());
    const number = /^-?[\d,]*\.?\d+/.exec(text);
    if (found || !number) return text.toLowerCase();
    const unit = /^[\d,.\s-]+(ms|s|min|h|d|KiB|MiB|GiB|B|%)?/.exec(text)[1];
    const times = { ms: 1e-3, min: 60, h: 3600, d: 86400, KiB: 1024, MiB: 1048576, GiB: 1073741824 };
    return Number(number[0].replaceAll(",", "")) * (times[unit] || 1);
  };
  const compare = (one, other) => {
    if (typeof one === typeof other) return one < other ? -1 : one > other ? 1 : 0;
    return typeof one === "number" ? -1 : 1; // empty cells last
  };
  function sortAll() {
    for (const table of document.querySelectorAll("main .scroll table")) {
      if (!table.tHead || table.id === "points") continue;
      const heads = [...table.tHead.rows[0].cells];
      for (const head of heads) {
        if (!head.textContent.trim() || head.querySelector("button.sort")) continue;
        const button = document.createElement("button");
        button.type = "button";
        button.className = "sort";
        button.append(...head.childNodes);
        head.append(button);
      }
      const name = wanted().replace(/^-/, ""), down = wanted().startsWith("-");
      const column = heads.findIndex((head) => head.textContent.trim() === name);
      heads.forEach((head, place) => {
        if (place === column) head.setAttribute("aria-sort", down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      });
      if (column < 0) continue;
      const groups = table.tBodies.length > 1 ? [...table.tBodies] : [...table.tBodies[0].rows];
      const key = (group) => valueOf((group.rows ? group.rows[0] : group).cells[column]);
      const keyed = groups.map((group, place) => [key(group), place, group]);
      keyed.sort((one, other) => (down ? -1 : 1) * compare(one[0], other[0]) || one[1] - other[1]);
      if (keyed.some(([, place], at) => place !== at)) {
        for (const [, , group] of keyed) group.parentNode.append(group);
      }
    }
  }
  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element && target.closest("button.sort");
    if (!button) return;
    const name = button.textContent.trim(), query = new URLSearchParams(location.search);
    if (wanted() === name) query.set("sort", `-${name}`);
    else if (wanted() === `-${name}`) query.delete("sort");
    else query.set("sort", name);
    const text = query.toString();
    history.replaceState(null, "", location.pathname + (text ? `?${text}` : ""));
    if (query.has("sort")) sortAll();
    else location.reload();
  });

  // Copying: a button beside each name of a page's heading and each block of code.
  function offerCopies() {
    if (!navigator.clipboard) return;
    for (const one of document.querySelectorAll("main .heading h1[data-copy], main pre")) {
      const after = one.nextElementSibling;
      if ((after && after.matches("button.copy")) || !one.textContent.trim()) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy quiet";
      button.textContent = "Copy";
      if (one.matches("h1")) button.setAttribute("aria-label", "Copy the name");
      one.after(button);
    }
  }
  document.addEventListener("click", async ({ target }) => {
    const button = target instanceof Element && target.closest("button.copy");
    if (!button) return;
    await navigator.clipboard.writeText(button.previousElementSibling.textContent.trim());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });

  // Keys: g and a letter for the pages of the menu, / for the search, ? for this list.
  const places = { f: "", q: "queues", w: "workers", h: "hosts", d: "deaths", s: "schedules", e: "events" };
  let first = "";
  document.addEventListener("keydown", (event) => {
    const { target, key } = event;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target instanceof Element && target.matches("input, textarea, select")) return;
    const before = first;
    first = key === "g" ? "g" : "";
    if (before === "g" && key in places) { location.assign(root() + places[key]); return; }
    if (key === "/") {
      const search = document.querySelector("main input[type=search], main form[method=get] input");
      if (search) { event.preventDefault(); search.focus(); }
    }
    if (key === "?") {
      const list = document.getElementById("keys");
      if (list) list.showModal();
    }
  });

  const show = () => { sortAll(); offerCopies(); };
  document.addEventListener("DOMContentLoaded", show);
  document.addEventListener("htmx:afterSwap", show);
  document.addEventListener("htmx:sseMessage", show);
})();
