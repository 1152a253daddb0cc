// Landscapes: one as a surface, a second as a grid over it, as in the paper; contours where a browser has no WebGL.
const webgl = (() => {
  const canvas = document.createElement("canvas");
  return Boolean(canvas.getContext("webgl2") || canvas.getContext("webgl"));
})();

function surfaces() {
  const out = new Map();
  for (const run of inTask()) {
    if (run.analysis.landscape) out.set(run.name, { ...run.analysis.landscape, title: `${run.group}: ${run.name}` });
    if (run.analysis.plane) out.set(`${run.name} plane`, { ...run.analysis.plane, title: `plane through ${run.analysis.plane.models.map((m) => m.name).join(", ")}` });
  }
  return out;
}

function fillSurfaces() {
  const entries = [...surfaces()].map(([key, s]) => [key, s.title]);
  fill(byId("surface-a"), entries, choice.surfaceA);
  choice.surfaceA = entries.length ? byId("surface-a").value : null;
  fill(byId("surface-b"), [["", "none"], ...entries], choice.surfaceB);
  choice.surfaceB = byId("surface-b").value;
  if (!webgl) choice.view = "contour";
  byId("surface-view").value = choice.view;
}

const heights = (s) => {
  const z = s[choice.height];
  if (!z) return null;
  const scale = choice.height === "accuracy" ? 100 : 1;
  return z.map((row) => row.map((v) => (v === null ? null : choice.surfaceLog ? Math.log10(Math.max(scale * v, 1e-12)) : scale * v)));
};
const heightTitle = () => (choice.surfaceLog ? "log₁₀ " : "") + (choice.height === "accuracy" ? "accuracy (%)" : "loss");
let camera = { angle: 45, tilt: 32 }, surfaceDrawn = Promise.resolve();
const eye = () => {
  const a = (camera.angle * Math.PI) / 180, t = (camera.tilt * Math.PI) / 180, r = 2.1;
  return { x: r * Math.cos(t) * Math.cos(a), y: r * Math.cos(t) * Math.sin(a), z: r * Math.sin(t) };
};

function drawLandscape() {
  const some = surfaces().size || inTask().some((r) => r.analysis.line);
  if (bare("landscape", some ? null : "Not measured; this does it", "fedsmoo analyse landscape RUN")) return;
  const all = surfaces(), a = all.get(choice.surfaceA), b = all.get(choice.surfaceB);
  byId("surface-caption").textContent = a ? `${heightTitle()} around ${a.title}${b ? `, with the grid of ${b.title}` : ""}. Grid ${a.a.length} × ${a.b.length}, ${a.samples ?? "?"} samples (${a.part || "?"}).` : "";
  const chosen = [[a, false], [b, true]].filter(([s]) => s && heights(s));
  const traces = chosen.map(([s, grid]) => (choice.view === "surface" && webgl ? surfaceTrace(s, grid) : contourTrace(s, grid)));
  for (const [s] of chosen.slice(0, 1)) if (choice.view === "contour" && s.models.length) traces.push(modelMarks(s));
  const t = theme(), axis = { gridcolor: t.line, color: t.ink, backgroundcolor: t.paper };
  const extra = choice.view === "surface" && webgl
    ? { scene: { xaxis: { ...axis, title: { text: "a" } }, yaxis: { ...axis, title: { text: "b" } }, zaxis: { ...axis, title: { text: heightTitle() } }, aspectmode: "manual", aspectratio: { x: 1, y: 1, z: 0.75 }, camera: { eye: eye(), center: { x: 0, y: 0, z: -0.1 } } }, margin: { l: 0, r: 0, t: 0, b: 0 } }
    : { xaxis: { title: { text: "a" }, constrain: "domain" }, yaxis: { title: { text: "b" }, scaleanchor: "x" } };
  const range = a && heights(a) ? heights(a).flat().filter((v) => v !== null) : [];
  const span = range.length ? ` from ${short(range.reduce((p, v) => Math.min(p, v)))} to ${short(range.reduce((p, v) => Math.max(p, v)))}` : "";
  const place = byId("plot-surface");
  if (place.data && place.data.length && traces.length && (place.data[0].type === "surface") !== (traces[0].type === "surface")) Plotly.purge(place);
  surfaceDrawn = draw("plot-surface", traces, extra, `${heightTitle()} around ${a ? a.title : "a model"}${span}.`);
  drawLine();
}

function surfaceTrace(s, grid) {
  const t = theme(), z = heights(s), transposed = s.b.map((_, j) => s.a.map((_, i) => z[i][j]));
  const common = { type: "surface", x: s.a, y: s.b, z: transposed, name: plain(clip(s.title)), hovertemplate: "a %{x:.2f}<br>b %{y:.2f}<br>%{z:.4g}<extra></extra>" };
  if (!grid) return { ...common, colorscale: "Cividis", colorbar: { title: { text: heightTitle() }, thickness: 12, len: 0.7 } };
  const line = (axis) => ({ show: true, color: t.ink, width: 1, start: axis[0], end: axis.at(-1), size: (axis.at(-1) - axis[0]) / Math.min(24, axis.length - 1) });
  return { ...common, hidesurface: true, showscale: false, contours: { x: line(s.a), y: line(s.b), z: { show: false } } };
}

function contourTrace(s, grid) {
  const t = theme(), z = heights(s), transposed = s.b.map((_, j) => s.a.map((_, i) => z[i][j]));
  return { type: "contour", x: s.a, y: s.b, z: transposed, name: plain(clip(s.title)), ncontours: 18, showscale: !grid,
    contours: { coloring: grid ? "none" : "fill", showlabels: true, labelfont: { size: 11, color: grid ? t.ink : "#ffffff" } },
    colorscale: "Cividis", line: grid ? { color: t.ink, dash: "dot", width: 1.5 } : { width: 0.5, color: "#888888" },
    colorbar: { title: { text: heightTitle() }, thickness: 12 } };
}

const modelMarks = (s) => ({ x: s.models.map((m) => m.a), y: s.models.map((m) => m.b), text: s.models.map((m) => plain(clip(m.name, 24))), mode: "markers+text",
  textposition: "top center", marker: { size: 10, symbol: "x", color: "#ffffff", line: { color: "#000000", width: 1 } }, textfont: { color: "#ffffff" }, showlegend: false, hoverinfo: "text" });

function drawLine() {
  const all = inTask().filter((r) => r.analysis.line), t = theme();
  byId("line-figure").classList.toggle("hidden", !all.length);
  if (!all.length) return;
  draw("plot-line", all.map((r, k) => ({ x: r.analysis.line.t, y: r.analysis.line.loss, name: plain(clip(r.analysis.line.models.join(" → "), 60)), mode: "lines",
    line: { color: t.colours[k % t.colours.length], dash: DASHES[k % DASHES.length] } })),
    { showlegend: true, xaxis: { title: { text: "from the first model (0) to the second (1)" } }, yaxis: { title: { text: "loss" } } }, "Loss between two models.");
}

function turn(angle, tilt) {
  camera = { angle: camera.angle + angle, tilt: Math.max(2, Math.min(88, camera.tilt + tilt)) };
  // Drawing takes a while on a slow machine; a turn before its end must not be lost.
  surfaceDrawn = surfaceDrawn.then(() => (byId("plot-surface").data && choice.view === "surface" ? Plotly.relayout("plot-surface", { "scene.camera.eye": eye() }) : null));
}
