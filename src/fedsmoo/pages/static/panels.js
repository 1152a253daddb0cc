// Curves, rounds to a target, partition, drift.
const noRounds = () => (inTask().some((r) => length(r)) ? null : "No round is done yet");
const untested = () => noRounds() ?? (inTask().some(lastTested) ? null : "No round was evaluated: eval_every says how often");

function drawCurves() {
  if (bare("curves", noRounds())) return;
  const x = { title: { text: AXES[choice.axis] }, rangemode: "tozero" };
  draw("plot-accuracy", lines((r) => points(r, "acc", factor()), lead().percent ? " %" : ""), { xaxis: x, yaxis: { title: { text: plain(lead().title + unit()) } } },
    describe(`${upper(lead().title)} over ${AXES[choice.axis]}`));
  byId("lead-caption").textContent = `${upper(lead().title)}${lead().percent ? " in per cent" : ""}. Shaded: the range over seeds.`;
  const title = choice.lossKind === "loss" ? "test loss" : "training loss";
  draw("plot-loss", lines((r) => points(r, choice.lossKind)), { xaxis: x, yaxis: { title: { text: title }, type: choice.lossLog ? "log" : "linear" } },
    describe(`${title} over ${AXES[choice.axis]}`));
  byId("loss-caption").textContent = choice.lossKind === "loss" ? "Mean loss on the test part." : "Mean minibatch loss of the cohort's local steps.";
  fillOpenTables();
}

function curveTable(place) {
  const all = [...groups(shown())].map(([name, runs]) => [name, groupCurve(runs, (r) => points(r, "acc", factor()))]).filter(([, c]) => c);
  const rounds = [...new Set(all.flatMap(([, c]) => c.rounds))].sort((a, b) => a - b);
  const keep = rounds.filter((_, i) => rounds.length <= 25 || i % Math.ceil(rounds.length / 25) === 0 || i === rounds.length - 1);
  const at = all.map(([, c]) => new Map(c.rounds.map((r, i) => [r, c.y[i]])));
  table(place, `${upper(lead().title)}${lead().percent ? " in per cent" : ""}, at up to 25 rounds`, [{ title: "round" }, ...all.map(([n]) => ({ title: clip(n) }))],
    keep.map((r) => ({ cells: [{ text: String(r), value: r }, ...at.map((m) => ({ text: show(m.get(r), digits()), value: m.get(r) ?? null }))] })));
}

// The first evaluated round at or above the target, and what had been spent by then.
function reached(run, goal) {
  const acc = column(run, "acc"), axes = axesOf(run);
  const i = acc.findIndex((v) => v !== null && (lead().higher ? factor() * v >= goal - 1e-9 : factor() * v <= goal + 1e-9));
  return i < 0 ? null : { round: axes.rounds[i], bytes: axes.bytes[i], seconds: axes.seconds[i] };
}

function setGoal() {
  const best = inTask().map(lastTested).filter(Boolean).map((v) => v.best).filter((v) => !Number.isNaN(v));
  retitle("curves", `${upper(lead().label)} and loss`);
  retitle("target", `Rounds to a target ${lead().label}`);
  if (lead().percent) {
    const top = best.length ? Math.max(...best) : 100;
    if (choice.goal === null) choice.goal = Math.floor(0.9 * top * 2) / 2;
    Object.assign(byId("goal"), { min: 0, step: 0.5, max: Math.max(1, Math.ceil(top)) });
  } else {
    const every = inTask().flatMap((r) => column(r, "acc").filter((v) => v !== null)), low = Math.min(...every), high = Math.max(...every);
    const good = lead().higher ? Math.max(...best) : Math.min(...best);
    if (choice.goal === null) choice.goal = every.length ? Number((good + (lead().higher ? -0.1 : 0.1) * Math.abs(good)).toPrecision(2)) : 0;
    Object.assign(byId("goal"), { step: "any", min: low, max: high });
  }
  byId("goal").value = choice.goal;
  sayGoal();
}

const sayGoal = () => { byId("goal-value").textContent = lead().percent ? `${choice.goal} %` : short(choice.goal, 3); };

function drawTarget() {
  if (bare("target", untested())) return;
  const rows = [...groups(shown())].map(([name, runs]) => {
    const hits = runs.map((r) => reached(r, choice.goal)).filter(Boolean);
    const outside = hits.length < runs.length; // a mean over those that got there is of the lucky ones
    const part = outside ? ` (${hits.length} of ${runs.length} seeds)` : "";
    const cell = (key, format) => (hits.length ? { text: format(mean(hits.map((h) => h[key]))) + (key === "round" ? part : ""), value: mean(hits.map((h) => h[key])), outside } : { text: "never", value: null });
    return { cells: [name, cell("round", (v) => show(v, Number.isInteger(v) ? 0 : 1)), cell("bytes", bytes), cell("seconds", (v) => show(v, 1))] };
  });
  table(byId("target-table"), `First round with a ${lead().title} of at ${lead().higher ? "least" : "most"} ${lead().percent ? `${choice.goal} %` : short(choice.goal, 3)}, and what had been spent by then`,
    [{ title: choice.merge ? "method" : "run" }, { title: "rounds", best: "low" }, { title: "sent", best: "low" }, { title: "seconds", best: "low" }], rows);
}

function fillSplits() {
  const used = new Map();
  for (const run of inTask()) {
    if (run.partition !== null && !used.has(run.partition)) used.set(run.partition, `${run.task.split(", ").slice(0, 2).join(", ")}, seed ${run.seed}`);
  }
  fill(byId("split"), [...used].map(([k, name]) => [String(k), name]), String(choice.split));
  choice.split = used.size ? Number(byId("split").value) : null;
}

const className = (split, k) => (split.names ? split.names[k] : String(k));

function drawPartition() {
  const split = choice.split === null ? null : data.partitions[choice.split];
  if (bare("partition", split ? null : "Not known of these runs; fedsmoo run writes it beside runs with up to 1000 clients")) return;
  const classes = split.counts[0].map((_, k) => className(split, k)), t = theme();
  const byClass = classes.map((_, k) => split.counts.map((c) => c[k]));
  const totals = byClass.map((row) => row.reduce((a, b) => a + b, 0));
  const most = byClass.flat().reduce((a, v) => Math.max(a, v), 1);
  const ramp = dark.matches && !paper.matches ? [[0, t.paper], [1, "#58a6ff"]] : [[0, "#ffffff"], [1, "#08306b"]];
  draw("plot-heat", [{ type: "heatmap", z: byClass, y: classes.map(plain), zmin: 0, zmax: most, colorscale: ramp, xgap: split.counts.length <= 120 ? 1 : 0, ygap: 1,
    colorbar: { title: { text: "samples" }, thickness: 12 }, hovertemplate: "client %{x}<br>class %{y}<br>%{z} samples<extra></extra>" }],
    { xaxis: { title: { text: "client" } }, yaxis: { title: { text: "class" }, type: "category", autorange: "reversed" } },
    `Heat map: samples of ${classes.length} classes held by ${split.counts.length} clients. The counts are in the table below.`);
  const s = Math.sqrt(totals.reduce((a, v) => a + (v - mean(totals)) ** 2, 0) / totals.length);
  byId("totals-caption").textContent = `Samples of each class over all clients: standard deviation ${show(s, 1)}, mean ${show(mean(totals), 1)}.`;
  draw("plot-totals", [{ type: "bar", x: classes.map(plain), y: totals, marker: { color: t.colours[0], line: { color: t.ink, width: 1 } },
    hovertemplate: "class %{x}<br>%{y} samples<extra></extra>" }],
    { xaxis: { title: { text: "class" }, type: "category" }, yaxis: { title: { text: "samples" } } }, `Bars: total samples per class, ${totals.join(", ")}.`);
  fillOpenTables();
}

function partitionTable(place) {
  const split = choice.split === null ? null : data.partitions[choice.split];
  const counts = split ? split.counts.slice(0, 500) : [];
  table(place, "Samples per client and class", [{ title: "client" }, ...(counts[0] || []).map((_, k) => ({ title: className(split, k) }))],
    counts.map((row, i) => ({ cells: [{ text: String(i), value: i }, ...row.map((v) => ({ text: String(v), value: v }))] })));
}

function fillProbes() {
  const names = [...new Set(inTask().flatMap((r) => Object.keys(r.probes)))].sort();
  fill(byId("probe"), [["drift", "client drift"], ...names.map((n) => [`probe ${n}`, n])], choice.probe);
  choice.probe = byId("probe").value;
}

function drawDrift() {
  if (bare("drift", noRounds())) return;
  const probe = choice.probe.startsWith("probe ") ? choice.probe.slice(6) : null;
  const pick = probe === null ? (r) => points(r, "drift") : (r) => {
    const at = new Map(axesOf(r).rounds.map((n, i) => [n, i])), out = { rounds: [], x: [], y: [] };
    for (const [n, v] of Object.hasOwn(r.probes, probe) ? r.probes[probe] : []) {
      if (v !== null && at.has(n)) { out.rounds.push(n); out.x.push(axesOf(r)[choice.axis][at.get(n)]); out.y.push(v); }
    }
    return out;
  };
  const title = probe === null ? "mean ‖wᵢ − w‖²" : plain(probe);
  byId("drift-caption").textContent = probe === null ? "Mean squared distance of the clients' models from the global one they started from." : `The probe ${probe}, in the rounds in which it was measured.`;
  draw("plot-drift", lines(pick), { xaxis: { title: { text: AXES[choice.axis] }, rangemode: "tozero" }, yaxis: { title: { text: title }, type: choice.driftLog ? "log" : "linear" } },
    describe(probe === null ? "Client drift" : `Probe ${probe}`));
}
