// Lines that stay apart in colour, for the colour-blind, and in black and white; light and dark.
const PALETTES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b4538a", "#a66f00", "#2b8fc4", "#5f5f5f", "#000000"],
  dark: ["#56a8e0", "#ff8a3d", "#2ec49a", "#e59ac4", "#f0b429", "#8fd0ff", "#b5b5b5", "#ffffff"],
};
const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot", "5px,2px,1px,2px", "1px,3px"];
const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "x", "cross", "star", "triangle-down"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const paper = window.matchMedia("print");

function theme() {
  const css = getComputedStyle(document.documentElement);
  const get = (name) => css.getPropertyValue(name).trim();
  return { ink: get("--ink"), soft: get("--soft"), paper: get("--paper"), line: get("--line"), colours: PALETTES[dark.matches && !paper.matches ? "dark" : "light"] };
}

// The plotting library reads a little HTML in its texts: names from run folders must not be read so.
const plain = (s) => String(s).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
const clip = (s, n = 36) => (s.length > n ? s.slice(0, n - 1) + "…" : s);

function layout(extra = {}) {
  const t = theme(), narrow = window.innerWidth < 640;
  const axis = { gridcolor: t.line, zerolinecolor: t.line, linecolor: t.line, automargin: true, title: { standoff: 8 } };
  const { xaxis = {}, yaxis = {}, ...rest } = extra;
  return {
    paper_bgcolor: t.paper, plot_bgcolor: t.paper, font: { color: t.ink, size: 13, family: "system-ui, sans-serif" },
    margin: { l: narrow ? 44 : 60, r: 12, t: 30, b: 48 }, hovermode: "closest", hoverlabel: { namelength: 60 },
    legend: narrow ? { orientation: "h", y: 1.02, yanchor: "bottom" } : { y: 0.98 },
    xaxis: { ...axis, ...xaxis }, yaxis: { ...axis, ...yaxis }, ...rest,
  };
}

// On a narrow page the legend stands where the plotting library has its buttons: there they are left out.
const options = () => ({ displayModeBar: window.innerWidth < 640 ? false : "hover", responsive: true, displaylogo: false, plotlyServerURL: "", modeBarButtonsToRemove: ["lasso2d", "select2d"] });

function draw(id, traces, extra, label) {
  const place = byId(id);
  if (!traces.length) {
    if (place.data) Plotly.purge(place);
    place.replaceChildren(element("p", { class: "empty" }, "Nothing to draw of the runs shown."));
    place.style.height = "auto";
    place.removeAttribute("role");
    place.removeAttribute("aria-label");
    return Promise.resolve();
  }
  if (!place.data) place.replaceChildren();
  place.style.height = "";
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", label);
  return Plotly.react(place, traces, layout(extra), options());
}

// One line per group, numbered the same in every chart, with the range of the seeds shaded.
function lines(pick, suffix = "") {
  const t = theme(), names = [...groups(inTask()).keys()], all = groups(shown());
  const limit = Math.max(80, Math.min(800, Math.floor(6000 / Math.max(1, all.size)))), traces = [];
  for (const [name, runs] of all) {
    const k = names.indexOf(name), curve = groupCurve(runs, pick);
    if (!curve) continue;
    const { x, y, low, high } = thinned(curve, limit), colour = t.colours[k % t.colours.length];
    const again = k + Math.floor(k / t.colours.length); // the ninth line has the first one's colour with another dash
    if (low && all.size <= 16) {
      traces.push({ x: [...x, ...x.slice().reverse()], y: [...high, ...low.slice().reverse()], fill: "toself", mode: "none",
        fillcolor: colour + "26", hoverinfo: "skip", showlegend: false, legendgroup: name });
    }
    traces.push({ x, y, name: plain(clip(name)), legendgroup: name, mode: all.size > 40 ? "lines" : "lines+markers",
      line: { color: colour, dash: DASHES[again % DASHES.length], width: 2 },
      marker: { symbol: SYMBOLS[again % SYMBOLS.length], size: 7, maxdisplayed: 8 },
      hovertemplate: `%{x}<br>%{y:.4g}${suffix}` });
  }
  return traces;
}

const describe = (what) => `${what} of ${[...groups(shown()).keys()].slice(0, 12).join(", ")}. The numbers are in the tables of this page.`;
