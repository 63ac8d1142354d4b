// Keeps what is shown up to date: the server tells that something has changed, and htmx asks for the page again.
// Without this script, all of a page can be read.
"use strict";
(() => {
  const { events, about } = document.body.dataset;
  const state = document.getElementById("connection");
  const AGES = [["s", 1, 120], ["m", 60, 7200], ["h", 3600, 172800]];
  // Milliseconds between two questions, however much changes: ten times what the last answer took, within these bounds.
  const LEAST = 300;
  const MOST = 1000;

  const age = (seconds) => {
    for (const [unit, length, longest] of AGES) {
      if (seconds < longest) return `${Math.floor(seconds / length)}${unit} ago`;
    }
    return `${Math.floor(seconds / 86400)}d ago`;
  };

  const tell = () => {
    for (const each of document.querySelectorAll("#live time[datetime]")) {
      each.textContent = age(Math.max((Date.now() - Date.parse(each.dateTime)) / 1000, 0));
    }
  };

  // What somebody has opened stays open.
  if (window.Idiomorph) {
    window.Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) =>
      !(name === "open" && node.tagName === "DETAILS");
  }

  const show = (word, tone) => {
    state.hidden = false;
    if (state.textContent !== word) state.textContent = word;
    state.className = `connection ${tone}`;
  };

  let pause = LEAST;
  let asked = 0;
  let waiting = 0;
  const ask = () => {
    if (waiting || document.hidden) return;
    waiting = setTimeout(() => {
      waiting = 0;
      asked = Date.now();
      window.htmx.trigger(document.body, "changed");
    }, Math.max(asked + pause - Date.now(), 0));
  };
  document.body.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt.id === "live") pause = Math.min(Math.max(10 * (Date.now() - asked), LEAST), MOST);
  });

  const matters = ({ changed, more }) =>
    !about || more || changed.some((each) => each.resource === "seeds" || about.split(" ").includes(`${each.resource}/${each.name}`));

  const follow = () => {
    const source = new EventSource(events);
    source.onopen = () => { show("Live", "on"); ask(); };
    source.addEventListener("change", (event) => { if (matters(JSON.parse(event.data))) ask(); });
    source.onerror = () => {
      show("Not live, trying again", "off");
      if (source.readyState === EventSource.CLOSED) setTimeout(follow, 5000);
    };
    addEventListener("pagehide", () => source.close());
  };

  if (events && window.htmx && window.EventSource) {
    follow();
    setInterval(tell, 10000);
    document.addEventListener("visibilitychange", ask);
  }
})();
