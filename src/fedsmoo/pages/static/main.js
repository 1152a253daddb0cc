// Wiring: controls change the choice, the panels in sight are drawn again, the others when they come into sight.
const PANELS = {
  summary: drawSummary, standing: drawStanding, curves: drawCurves, target: drawTarget, partition: drawPartition, drift: drawDrift, consistency: drawConsistency,
  landscape: drawLandscape, flatness: drawFlatness, fairness: drawFairness, configs: drawConfigs, commands: drawCommands,
};
const stale = new Set(Object.keys(PANELS)), visible = new Set();

function refresh(...names) {
  for (const name of names.length ? names : Object.keys(PANELS)) {
    stale.add(name);
    delete byId(name).dataset.drawn;
  }
  for (const name of visible) redraw(name);
}
// A panel that shows the present choice says so: whoever reads the page by program can wait for it.
function redraw(name) {
  if (!stale.delete(name)) return;
  PANELS[name]();
  byId(name).dataset.drawn = "yes";
}
function fill(select, entries, value) {
  select.replaceChildren(...entries.map(([key, title]) => element("option", { value: key }, clip(title, 90))));
  if (entries.some(([key]) => key === value)) select.value = value;
  select.disabled = !entries.length;
}

function fillOpenTables() {
  for (const details of document.querySelectorAll("details.data[open]")) {
    ({ curves: curveTable, partition: partitionTable, standing: standingTable })[details.dataset.table](details.querySelector("div"));
  }
}

function fillControls() {
  if (!tasks().includes(choice.task)) choice.task = tasks()[0] ?? null;
  fill(byId("task"), tasks().map((t) => [t, t]), choice.task);
  const finished = data.runs.filter((r) => r.state === "finished").length, open = data.runs.filter((r) => r.state === "unfinished");
  byId("about").textContent = `${data.runs.length} ${data.runs.length === 1 ? "run" : "runs"}, ${finished} finished, ${tasks().length} ${tasks().length === 1 ? "task" : "tasks"}${data.made ? `; ${data.made}` : ""}`;
  byId("going").replaceChildren(...open.slice(0, 4).map((r) => element("li", {}, `${clip(r.name, 60)}: round ${farSoFar(r)} `,
    ...(total(r) > 0 ? [element("progress", { max: total(r), value: length(r), "aria-label": `${clip(r.name, 60)}, rounds done` })] : []))),
    ...(open.length > 4 ? [element("li", {}, `and ${open.length - 4} more that are not finished`)] : []));
  byId("choices").replaceChildren(...inTask().map((run) => {
    const box = element("input", { type: "checkbox" });
    box.checked = !choice.hidden.has(run.name);
    box.addEventListener("change", () => { choice.hidden[box.checked ? "delete" : "add"](run.name); refresh("curves", "target", "drift"); });
    return element("label", {}, box, `${run.group}: ${run.name}`);
  }));
  showStanding();
  setGoal();
  fillSplits();
  fillProbes();
  fillSurfaces();
}

function listen(id, event, change, ...panels) {
  byId(id).addEventListener(event, (e) => { change(e.target); refresh(...panels); });
}
listen("task", "change", (e) => { choice.task = e.value; choice.goal = null; choice.surfaceA = null; choice.surfaceB = ""; fillControls(); });
listen("merge", "change", (e) => { choice.merge = e.checked; });
listen("smooth", "input", (e) => { choice.smooth = Number(e.value); byId("smooth-value").textContent = choice.smooth < 3 ? "off" : `${choice.smooth} rounds`; }, "curves", "drift");
for (const radio of document.querySelectorAll("input[name=axis]")) radio.addEventListener("change", () => { choice.axis = radio.value; refresh("curves", "drift"); });
listen("loss-kind", "change", (e) => { choice.lossKind = e.value; }, "curves");
listen("loss-log", "change", (e) => { choice.lossLog = e.checked; }, "curves");
listen("goal", "input", (e) => { choice.goal = Number(e.value); sayGoal(); }, "target");
listen("split", "change", (e) => { choice.split = Number(e.value); }, "partition");
listen("probe", "change", (e) => { choice.probe = e.value; }, "drift");
listen("drift-log", "change", (e) => { choice.driftLog = e.checked; }, "drift");
listen("surface-a", "change", (e) => { choice.surfaceA = e.value; }, "landscape");
listen("surface-b", "change", (e) => { choice.surfaceB = e.value; }, "landscape");
listen("surface-z", "change", (e) => { choice.height = e.value; }, "landscape");
listen("surface-view", "change", (e) => { choice.view = e.value; }, "landscape");
listen("surface-log", "change", (e) => { choice.surfaceLog = e.checked; }, "landscape");
listen("show-all", "click", () => { choice.hidden.clear(); fillControls(); }, "curves", "target", "drift");
listen("show-none", "click", () => { inTask().forEach((r) => choice.hidden.add(r.name)); fillControls(); }, "curves", "target", "drift");
for (const button of document.querySelectorAll("[data-turn]")) button.addEventListener("click", () => turn(...button.dataset.turn.split(",").map(Number)));
for (const details of document.querySelectorAll("details.data")) details.addEventListener("toggle", fillOpenTables);
// On paper everything is in sight; whether the browser says first that it prints or that colours change is its affair.
const drawAll = () => { [...stale].forEach(redraw); };
for (const media of [dark, paper]) media.addEventListener("change", () => { refresh(); if (paper.matches) drawAll(); });
window.addEventListener("beforeprint", drawAll);

byId("contents").append(element("ul", {}, ...Object.keys(PANELS).map((id) => element("li", {}, element("a", { href: `#${id}` }, byId(`${id}-title`).textContent)))));
fillControls();
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    visible[entry.isIntersecting ? "add" : "delete"](entry.target.id);
    if (entry.isIntersecting) redraw(entry.target.id);
  }
}, { rootMargin: "200px" });
Object.keys(PANELS).forEach((id) => watcher.observe(byId(id)));

// While runs go on the page asks its own server for news; a saved page never asks anybody.
if (data.live) {
  let tag = null;
  const poll = async () => {
    try {
      const answer = await fetch("data.json", { cache: "no-cache", credentials: "omit" });
      if (answer.ok && answer.headers.get("ETag") !== tag) {
        tag = answer.headers.get("ETag");
        data = await answer.json();
        fillControls();
        refresh();
      }
    } catch { byId("about").textContent = "The server does not answer: the page shows what it last sent."; }
    setTimeout(poll, data.every || 2000);
  };
  setTimeout(poll, data.every || 2000);
}
document.documentElement.dataset.ready = "yes";
