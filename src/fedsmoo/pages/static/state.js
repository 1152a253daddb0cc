// The data of the page, and what the reader has chosen to see.
const byId = (id) => document.getElementById(id);
let data = JSON.parse(byId("data").textContent);
const choice = {
  task: null, merge: true, hidden: new Set(), smooth: 1, axis: "rounds", lossKind: "loss", lossLog: false, goal: null,
  split: 0, probe: "drift", driftLog: false, surfaceA: null, surfaceB: "", height: "loss", view: "surface", surfaceLog: false,
};
const AXES = { rounds: "communication rounds", bytes: "bytes sent, up and down", seconds: "seconds of local training" };

const tasks = () => [...new Set(data.runs.map((r) => r.task))];
const inTask = () => data.runs.filter((r) => r.task === choice.task);
const shown = () => inTask().filter((r) => !choice.hidden.has(r.name));

// A column is one number where all rounds agree.
const column = (run, key) => (Array.isArray(run[key]) ? run[key] : new Array(length(run)).fill(run[key] ?? null));
const length = (run) => (Array.isArray(run.rounds) ? run.rounds.length : run.rounds);
const roundsOf = (run) => (Array.isArray(run.rounds) ? run.rounds : Array.from({ length: run.rounds }, (_, i) => i + 1));

// How far a run is of how much, while it goes on.
const total = (run) => Number(Object.hasOwn(run.config, "rounds") ? run.config.rounds : NaN);
const farSoFar = (run) => (run.state === "finished" || !(total(run) > 0) ? String(length(run)) : `${length(run)} of ${total(run)}`);

const derived = new WeakMap();
function axesOf(run) {
  if (!derived.has(run)) {
    const up = column(run, "up"), down = column(run, "down"), sec = column(run, "sec");
    let bytes = 0, seconds = 0;
    const axes = { rounds: roundsOf(run), bytes: [], seconds: [] };
    for (let i = 0; i < length(run); i++) {
      bytes += (up[i] || 0) + (down[i] || 0);
      seconds += sec[i] || 0;
      axes.bytes.push(bytes);
      axes.seconds.push(seconds);
    }
    derived.set(run, axes);
  }
  return derived.get(run);
}

// The rounds in which a quantity was measured: their place on the axis and the values.
function points(run, key, scale = 1) {
  const values = column(run, key), x = axesOf(run)[choice.axis], rounds = axesOf(run).rounds;
  const out = { rounds: [], x: [], y: [] };
  values.forEach((v, i) => {
    if (v !== null) { out.rounds.push(rounds[i]); out.x.push(x[i]); out.y.push(scale * v); }
  });
  return out;
}

// A Hanning window, centred on each round, the ends held by repeating the end values.
function smoothed(values, window) {
  if (window < 3 || values.length < 2) return values;
  const half = Math.floor(window / 2), last = values.length - 1;
  const weights = Array.from({ length: 2 * half + 1 }, (_, k) => 0.5 + 0.5 * Math.cos((2 * Math.PI * (k - half)) / (window + 1)));
  const total = weights.reduce((a, b) => a + b, 0);
  return values.map((_, i) => {
    let sum = 0;
    for (let k = 0; k < weights.length; k++) sum += weights[k] * values[Math.min(last, Math.max(0, i + k - half))];
    return sum / total;
  });
}

// The window is in rounds: of a curve with a point every tenth round, a tenth as many points lie in it.
const windowOf = (rounds) => (rounds.length < 2 ? choice.smooth : Math.round((choice.smooth * (rounds.length - 1)) / (rounds.at(-1) - rounds[0])));

function groups(runs) {
  const out = new Map();
  for (const run of runs) {
    const name = choice.merge ? run.group : run.name;
    if (!out.has(name)) out.set(name, []);
    out.get(name).push(run);
  }
  return out;
}

const mean = (v) => v.reduce((a, b) => a + b, 0) / v.length;
function deviation(v) {
  const m = mean(v);
  return v.length < 2 ? null : Math.sqrt(v.reduce((a, b) => a + (b - m) ** 2, 0) / (v.length - 1));
}

// The curve of a group: the mean over its seeds in the rounds that all of them have, and the range.
function groupCurve(runs, pick) {
  const each = runs.map(pick).filter((p) => p.y.length);
  if (!each.length) return null;
  each.forEach((p) => { p.y = smoothed(p.y, windowOf(p.rounds)); });
  if (each.length === 1) return { x: each[0].x, rounds: each[0].rounds, y: each[0].y, low: null, high: null };
  const maps = each.map((p) => new Map(p.rounds.map((r, i) => [r, i])));
  const out = { x: [], rounds: [], y: [], low: [], high: [] };
  for (const r of each[0].rounds) {
    if (!maps.every((m) => m.has(r))) continue;
    const ys = each.map((p, k) => p.y[maps[k].get(r)]);
    out.rounds.push(r);
    out.x.push(mean(each.map((p, k) => p.x[maps[k].get(r)])));
    out.y.push(mean(ys));
    out.low.push(Math.min(...ys));
    out.high.push(Math.max(...ys));
  }
  return out;
}

// Far more points than pixels only cost time: keep at most so many, the last one among them.
function thinned(curve, limit) {
  const n = curve.x.length;
  if (n <= limit) return curve;
  const keep = Array.from({ length: limit }, (_, i) => Math.round((i * (n - 1)) / (limit - 1)));
  const cut = (v) => (v ? keep.map((i) => v[i]) : null);
  return { x: cut(curve.x), rounds: cut(curve.rounds), y: cut(curve.y), low: cut(curve.low), high: cut(curve.high) };
}

// What runs of a task are compared by: test accuracy, unless they say otherwise.
const ACCURACY = { title: "test accuracy", label: "accuracy", percent: true, higher: true, held: true };
const leadOf = (run) => run.lead ?? ACCURACY;
const lead = () => (inTask().length ? leadOf(inTask()[0]) : ACCURACY);
const factor = () => (lead().percent ? 100 : 1);
const unit = () => (lead().percent ? " (%)" : "");
const digits = () => (lead().percent ? 2 : 4);
const better = () => (lead().higher ? "high" : "low");
const upper = (s) => s.charAt(0).toUpperCase() + s.slice(1);

// Evaluated rounds without a number, as of a model that diverged, count as such: without them, earlier ones would be the end.
function lastTested(run) {
  const acc = column(run, "acc"), none = new Set(run.none ?? []), at = [...acc.keys()].filter((i) => acc[i] !== null || none.has(i));
  if (!at.length) return null;
  const tested = at.map((i) => acc[i] ?? NaN), known = tested.filter((v) => !Number.isNaN(v));
  const held = Object.hasOwn(run, "val") ? column(run, "val") : [], q = leadOf(run), f = q.percent ? 100 : 1;
  const best = (v, higher) => (higher ? Math.max(...v) : Math.min(...v)), top = best(held.filter((v) => v !== null), q.held);
  const chosen = held.length ? acc[held.indexOf(top)] ?? null : null;
  const end = (name, times = f) => { const v = Object.hasOwn(run, name) ? column(run, name) : []; return v.some((x) => x !== null) ? times * (v[at.at(-1)] ?? NaN) : null; };
  return { own: end("own"), deviation: end("deviation"), worst: end("worst"), validated: chosen === null ? null : f * chosen, last: f * tested.at(-1), ten: f * mean(tested.slice(-10)), count: Math.min(10, tested.length), best: known.length ? f * best(known, q.higher) : NaN, loss: end("loss", 1) };
}
