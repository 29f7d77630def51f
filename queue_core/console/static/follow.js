"use strict";
// How a page follows what happens: by its stream while somebody sees it, by reloading its main part where no stream
// is to be had, and not at all when the login is over. Without JavaScript a page is reloaded by hand.
(function () {
  const RELOAD_MS = 5000; // pause between two reloads of a page without a stream
  const HIDDEN_MS = 10000; // a tab that is hidden for so long stops following
  if (!window.htmx) return;
  const main = () => document.querySelector("main[data-live]");
  const say = (text) => { const found = document.getElementById("live-state"); if (found) found.textContent = text; };
  let source = null, reloading = 0, hiding = 0, isOver = false, isPaused = false;

  htmx.createEventSource = (url) => {
    source = new EventSource(url, { withCredentials: true });
    source.addEventListener("open", () => { clearInterval(reloading); reloading = 0; });
    source.addEventListener("error", () => {
      // Closed for good: the server said no, as it does when there are too many viewers. The extension asks again.
      if (source.readyState === EventSource.CLOSED && !reloading && !isPaused && !isOver) {
        reloading = setInterval(reload, RELOAD_MS);
        say("reloading every 5 s");
      }
    });
    source.addEventListener("over", over);
    return source;
  };

  function over() {
    isOver = true;
    clearInterval(reloading);
    if (source) { source.onerror = null; source.close(); }
    say("Your session has ended: reload the page to log in again.");
  }

  async function reload() {
    if (document.hidden || isOver) return;
    try {
      const reply = await fetch(location.href, { headers: { accept: "text/html" }, credentials: "same-origin" });
      if (reply.redirected && new URL(reply.url).pathname.endsWith("/login")) { over(); return; }
      if (!reply.ok) return;
      const page = new DOMParser().parseFromString(await reply.text(), "text/html");
      const found = page.querySelector("main");
      if (!found || !main() || !reloading) return;
      Idiomorph.morph(main(), found.innerHTML, { morphStyle: "innerHTML" });
      htmx.trigger(main(), "htmx:sseMessage");
      say("reloading every 5 s");
    } catch (error) {
      say("not connected: tries again");
    }
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiding);
    if (document.hidden) {
      hiding = setTimeout(() => { if (source && !isOver) { isPaused = true; source.close(); } }, HIDDEN_MS);
    } else if (isPaused) {
      isPaused = false;
      if (source.onerror) source.onerror(new Event("error")); // the extension connects a closed source again
    }
  });
})();
