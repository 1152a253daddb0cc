// Summary, flatness, fairness, settings and commands: what is a table.
function lastTitle(runs) {
  const counts = new Set(runs.map(lastTested).filter(Boolean).map((e) => e.count));
  return (counts.size > 1 ? "last ten or all" : counts.size && !counts.has(10) ? `last ${[...counts][0]}` : "last ten") + unit();
}

// A section's title says what leads in the task that is shown, and so does its line in the contents.
function retitle(id, words) {
  byId(`${id}-title`).textContent = words;
  for (const link of document.querySelectorAll(`#contents a[href="#${id}"]`)) link.textContent = words;
}

function drawSummary() {
  byId("lead-title").textContent = upper(lead().title) + (lead().higher ? "" : " (lower is better)");
  byId("lead-best").textContent = lead().higher ? "a maximum" : "a minimum";
  const chosen = inTask().some((r) => Object.hasOwn(r, "val")), personal = inTask().some((r) => Object.hasOwn(r, "own"));
  const rows = [...groups(inTask())].map(([name, runs]) => {
    const ends = runs.map(lastTested).filter(Boolean);
    const cell = (values, digits) => { const v = values.filter((x) => x !== null && x !== undefined); return !v.length ? { text: "–", value: null } : v.some(Number.isNaN) ? { text: "no number", value: null } : { text: spread(v, digits), value: mean(v) }; };
    const open = runs.filter((r) => r.state !== "finished"), failed = open.some((r) => r.state === "failed");
    const sent = runs.map((r) => axesOf(r).bytes.at(-1) ?? 0), time = runs.map((r) => axesOf(r).seconds.at(-1) ?? 0);
    const outside = open.length > 0; // a run is no cheaper for its rounds that are not done
    const rounds = [...new Set(runs.map(farSoFar))], devices = new Set(runs.map((r) => r.summary.device));
    const took = devices.size > 1 ? { text: `${show(mean(time), 1)} (${devices.size} devices)`, value: null } : { text: show(mean(time), 1), value: mean(time) };
    return { cells: [name + (open.length ? ` (${open.length === runs.length ? "" : `${open.length} `}${failed ? "failed or " : ""}unfinished)` : ""), { text: String(runs.length), value: runs.length }, { text: rounds.join(", "), value: Math.max(...runs.map(length)) },
      cell(ends.map((e) => e.ten), digits()), ...(chosen ? [cell(ends.map((e) => e.validated), digits())] : []), ...(personal ? ["own", "deviation", "worst"].map((n) => cell(ends.map((e) => e[n]), digits())) : []), cell(ends.map((e) => e.last), digits()), cell(ends.map((e) => e.best), digits()), cell(ends.map((e) => e.loss), 4),
      { text: bytes(mean(sent)), value: mean(sent), outside }, { ...took, outside }] };
  });
  table(byId("summary-table"), choice.task ?? "No runs", [{ title: choice.merge ? "method" : "run" }, { title: "seeds" }, { title: "rounds" }, { title: lastTitle(inTask()), best: better() },
    ...(chosen ? [{ title: `by validation${unit()}`, best: better() }] : []), ...(personal ? [{ title: `personal${unit()}`, best: better() }, { title: "over clients ±" }, { title: `worst tenth${unit()}`, best: better() }] : []), { title: `last round${unit()}` }, { title: `best${lead().title.startsWith("test") ? " on test" : ""}${unit()}` }, { title: "test loss", best: "low" }, { title: "sent", best: "low" }, { title: "seconds", best: "low" }], rows);
}

// Table 1 of the paper: a section that is there only if some of the runs are of it.
function showStanding() {
  for (const place of [byId("standing"), document.querySelector('#contents a[href="#standing"]').parentElement]) place.classList.toggle("hidden", !data.standing);
}
function standingCells() {
  const { methods, columns, cells } = data.standing, out = columns.map(() => methods.map(() => null));
  for (const [row, column, seeds, gap, text] of cells) out[row][column] = { seeds, gap, text };
  return out;
}
function drawStanding() {
  if (!data.standing) return;
  const { methods, columns } = data.standing, cells = standingCells(), t = theme();
  const pick = (name) => cells.map((row) => row.map((c) => c?.[name] ?? null)), gaps = pick("gap"), far = Math.max(0.1, ...gaps.flat().map(Math.abs));
  draw("plot-standing", [{ type: "heatmap", x: methods.map(plain), y: columns.map(plain), z: gaps, text: pick("text"), customdata: pick("seeds"), zmin: -far, zmax: far, xgap: 1, ygap: 1,
    colorscale: [[0, "#b2182b"], [0.25, "#ef8a62"], [0.5, "#f7f7f7"], [0.75, "#67a9cf"], [1, "#2166ac"]], texttemplate: "%{text}", colorbar: { title: { text: "points" }, thickness: 12, tickfont: { color: t.ink } },
    hovertemplate: "%{y}<br>%{x}: %{text}<br>seeds: %{customdata}<extra></extra>" }],
    { xaxis: { type: "category", side: "top" }, yaxis: { type: "category", autorange: "reversed" }, margin: { l: 60, r: 12, t: 48, b: 12 } },
    `Heat map: ranks of ${methods.length} methods in ${columns.length} columns of the paper's table 1. The numbers are in the table below.`);
  fillOpenTables();
}
function standingTable(place) {
  const { methods, columns } = data.standing, cells = standingCells();
  table(place, "Rank, best on test less the paper's in points, and seeds", [{ title: "column" }, ...methods.map((m) => ({ title: m }))],
    columns.map((c, i) => ({ cells: [c, ...cells[i].map((cell) => (cell ? { text: `${cell.text}, n = ${cell.seeds}`, value: null } : "–"))] })));
}

const partitionOf = (run) => run.task.split(", ")[1];

function drawFlatness() {
  const measured = inTask().filter((r) => r.analysis.hessian || r.analysis.sharpness || r.analysis.bound);
  if (bare("flatness", measured.length ? null : "Not measured; this does it (and sharpness, bound)", "fedsmoo analyse hessian RUN")) return;
  const value = (v, digits = 4) => ({ text: short(v, digits), value: v ?? null });
  const rows = measured.map((r) => {
    const h = r.analysis.hessian || {}, s = r.analysis.sharpness || {}, b = r.analysis.bound || {};
    const drift = column(r, "drift").filter((v) => v !== null).at(-1);
    const trace = h.trace === undefined || h.trace === null ? { text: "–", value: null } : { text: short(h.trace) + (h.trace_error ? ` ± ${short(h.trace_error, 2)}` : ""), value: h.trace };
    return { cells: [`${r.group}: ${r.name}`, value((h.eigenvalues || [])[0]), trace, value(s.sharpness), value(s.average), value(b.log10_capacity), value(b.margin_error, 3), value(drift, 3), h.samples ? `${h.samples} (${h.part})` : "–"] };
  });
  // The paper measured ResNet-18-GN on CIFAR-10: its numbers stand beside ours only there.
  for (const p of data.paper) {
    const like = measured.find((r) => r.method === p.method && r.config.dataset === "cifar10" && r.config.model === "resnet18_gn" && partitionOf(r) === p.partition);
    if (like) rows.push({ reference: true, cells: [`${p.method}, ${p.partition} (the paper)`, value(p.top, 5), value(p.trace, 5), "–", "–", "–", "–", value(p.drift), "–"] });
  }
  table(byId("hessian-table"), "Flatness of the final models: smaller is flatter",
    [{ title: "run" }, { title: "top eigenvalue", best: "low" }, { title: "trace", best: "low" }, { title: "sharpness", best: "low" }, { title: "average sharpness", best: "low" },
      { title: "log₁₀ capacity", best: "low" }, { title: "margin error", best: "low" }, { title: "drift, last round", best: "low" }, { title: "samples", words: true }], rows);
  const dense = inTask().filter((r) => r.analysis.hessian && r.analysis.hessian.density.length), t = theme();
  byId("density-figure").classList.toggle("hidden", !dense.length);
  if (dense.length) {
    draw("plot-density", dense.map((r, k) => ({ x: r.analysis.hessian.grid, y: r.analysis.hessian.density.map((v) => (v > 1e-8 ? v : null)), name: plain(clip(`${r.group}: ${r.name}`)), mode: "lines", line: { color: t.colours[k % t.colours.length], dash: DASHES[k % DASHES.length] } })),
      { showlegend: true, xaxis: { title: { text: "eigenvalue" } }, yaxis: { title: { text: "density" }, type: "log", exponentformat: "power" } }, "Spectral density of the Hessian.");
  }
}

function drawConsistency() {
  const all = inTask().filter((r) => r.analysis.consistency);
  if (bare("consistency", all.length ? null : "Not measured; this does it (--probe consistency:10 during training)", "fedsmoo analyse consistency RUN")) return;
  const names = [...new Set(all.flatMap((r) => Object.keys(r.analysis.consistency)))];
  const value = (r, n) => (Object.hasOwn(r.analysis.consistency, n) ? { text: short(r.analysis.consistency[n]), value: r.analysis.consistency[n] } : "–");
  table(byId("consistency-table"), "Final models: how far server and client duals are apart, and clients' perturbations from the global one (in radii)",
    [{ title: "run" }, ...names.map((n) => ({ title: n.replaceAll("_", " ") }))], all.map((r) => ({ cells: [`${r.group}: ${r.name}`, ...names.map((n) => value(r, n))] })));
}

function drawFairness() {
  const all = inTask().filter((r) => r.analysis.fairness), t = theme();
  if (bare("fairness", all.length ? null : "Not measured; this does it", "fedsmoo analyse fairness RUN")) return;
  const names = all.length ? all[0].analysis.fairness.class_names : [];
  const classes = all.length ? all[0].analysis.fairness.classes.slice(0, 20) : [];
  const per = (v) => ({ text: v === null || v === undefined ? "–" : show(100 * v, 1), value: v ?? null });
  table(byId("fairness-table"), "Accuracy of the global model in per cent: clients by their mix of classes, and each class",
    [{ title: "run" }, { title: "mean client", best: "high" }, { title: "worst 10 % of clients", best: "high" }, { title: "best 10 %", best: "high" }, { title: "deviation", best: "low" }, ...classes.map((_, k) => ({ title: names[k] ?? `class ${k}`, best: "high" }))],
    all.map((r) => { const f = r.analysis.fairness; return { cells: [`${r.group}: ${r.name}`, per(f.mean), per(f.worst_tenth), per(f.best_tenth), per(f.deviation), ...classes.map((_, k) => per(f.classes[k]))] }; }));
  draw("plot-fairness", all.map((r, k) => ({ y: r.analysis.fairness.clients.filter((v) => v !== null).map((v) => 100 * v).sort((a, b) => a - b), name: plain(clip(`${r.group}: ${r.name}`)), mode: "lines+markers",
    line: { color: t.colours[k % t.colours.length], dash: DASHES[k % DASHES.length] }, marker: { symbol: SYMBOLS[k % SYMBOLS.length], size: 5, maxdisplayed: 12 } })),
    { showlegend: true, xaxis: { title: { text: "clients, worst first" } }, yaxis: { title: { text: "accuracy (%)" } } }, "Accuracy per client, sorted.");
}

function drawConfigs() {
  const runs = inTask(), keys = [...new Set(runs.flatMap((r) => Object.keys(r.config)))];
  const get = (r, k) => (Object.hasOwn(r.config, k) ? r.config[k] : "–");
  const differ = keys.filter((k) => new Set(runs.map((r) => get(r, k))).size > 1);
  const common = keys.filter((k) => !differ.includes(k));
  table(byId("diff-table"), differ.length ? "Settings in which the runs differ" : "All runs shown have the same settings.", [{ title: "run" }, ...differ.map((k) => ({ title: k, words: true }))],
    differ.length ? runs.map((r) => ({ cells: [r.name, ...differ.map((k) => get(r, k))] })) : []);
  table(byId("common-table"), "Settings in common", [{ title: "setting" }, { title: "value", words: true }], runs.length ? common.map((k) => ({ cells: [k, get(runs[0], k)] })) : []);
}

// The command that makes a run alone; what was typed, where that made several, stands once above them.
function drawCommands() {
  const runs = inTask(), typed = new Map();
  for (const r of runs.filter((r) => r.summary.command && r.summary.again && r.summary.command !== r.summary.again)) {
    typed.set(r.summary.command, [...(typed.get(r.summary.command) ?? []), r.name]);
  }
  const several = [...typed].filter(([, names]) => names.length > 1).map(([words, names]) => element("div", {}, element("h3", {}, `Typed for ${names.length} of these runs`), command(words)));
  byId("command-list").replaceChildren(...several, ...runs.map((r) => element("div", {}, element("h3", {}, r.name),
    r.summary.again || r.summary.command ? command(r.summary.again ?? r.summary.command) : element("p", { class: "empty" }, "This run folder does not say which command made it."),
    element("p", { class: "note" }, [r.summary.engine && `${r.summary.engine} engine`, r.summary.device, r.summary.parameters && `${r.summary.parameters} parameters`, r.summary.commit && `commit ${r.summary.commit.slice(0, 12)}${r.summary.dirty ? " with edited files" : ""}`, r.state !== "finished" && `${r.state}, round ${farSoFar(r)}`, r.summary.finished && `finished ${r.summary.finished}`].filter(Boolean).join(", ")),
    ...(r.skipped ?? []).map((line) => element("p", { class: "note" }, `Left out: ${line}`)))));
}

function command(words) {
  const place = element("pre", { tabindex: "0" }, words), button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", async () => {
    try { await navigator.clipboard.writeText(words); } catch {  // from a file, some browsers do not let a page write there
      getSelection().selectAllChildren(place);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  });
  return element("div", { class: "command" }, place, button);
}
