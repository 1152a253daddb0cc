/* Accuracy over rounds, seconds or megabytes: an SVG that is drawn anew when something is chosen. */
(function () {
  "use strict";
  const { columns, colours } = window.fedsmooCurves;
  const AXES = { rounds: "communication rounds", seconds: "seconds of training", megabytes: "gigabytes sent" };
  const state = { column: Object.keys(columns)[1], axis: "rounds", hidden: new Set(), zoom: false };
  const NS = "http://www.w3.org/2000/svg";

  function element(name, attributes = {}, ...children) {
    const made = name.startsWith("svg:") ? document.createElementNS(NS, name.slice(4)) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  }

  function title(column) {
    const [who, task] = column.split(" ");
    const data = task.slice(0, task.indexOf("."));
    const division = task.slice(task.indexOf(".") + 1);
    const split = division.replace("dirichlet-", "Dirichlet ").replace("pathological-", "classes per client: ");
    return [`${data.replace("cifar", "CIFAR-")}, 10 of ${who.split("-")[2]} clients`, split];
  }

  function of_a_round(curve) {
    return { rounds: 1, seconds: curve.s, megabytes: curve.mb / 1000 }[state.axis];
  }

  function across(curve) {
    const window = curve.rounds / curve.y.length;
    return curve.y.map((_, k) => of_a_round(curve) * Math.min(curve.rounds, (k + 0.5) * window));
  }

  function steps(from, to, about) {
    const raw = (to - from) / about;
    const base = 10 ** Math.floor(Math.log10(raw));
    const step = base * [1, 2, 5, 10].find((m) => m * base >= raw);
    const out = [];
    for (let v = Math.ceil(from / step) * step; v <= to + step / 1e6; v += step) out.push(v);
    return out;
  }

  function figure(width) {
    const narrow = width < 520;
    const height = narrow ? 300 : 400;
    const edge = { left: 40, right: 12, top: 10, bottom: 44 };
    const shown = Object.entries(columns[state.column]).filter(([name]) => !state.hidden.has(name));
    const svg = element("svg:svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "accuracy of the methods" });
    if (!shown.length) return svg;
    const xs = shown.map(([, curve]) => across(curve));
    const right = Math.max(...shown.map(([, curve]) => curve.rounds * of_a_round(curve)));
    const top = Math.ceil(Math.max(...shown.flatMap(([, c]) => c.y)) + 1);
    const low = state.zoom ? Math.floor(Math.min(...shown.map(([, c]) => c.end)) - 8) : 0;
    const x = (v) => edge.left + ((width - edge.left - edge.right) * v) / right;
    const y = (v) => height - edge.bottom - ((height - edge.top - edge.bottom) * (v - low)) / (top - low);
    for (const v of steps(low, top, 6)) {
      svg.append(element("svg:line", { class: "grid", x1: edge.left, x2: width - edge.right, y1: y(v), y2: y(v) }));
      svg.append(element("svg:text", { x: edge.left - 6, y: y(v) + 4, "text-anchor": "end" }, String(Math.round(v))));
    }
    for (const v of steps(0, right, narrow ? 4 : 8)) {
      svg.append(element("svg:text", { x: x(v), y: height - edge.bottom + 17, "text-anchor": "middle" }, String(+v.toPrecision(3))));
    }
    svg.append(element("svg:text", { class: "name", x: (edge.left + width) / 2, y: height - 6, "text-anchor": "middle" }, AXES[state.axis]));
    const clip = element("svg:clipPath", { id: "within" }, element("svg:rect", { x: edge.left, y: edge.top, width: width - edge.left - edge.right, height: height - edge.top - edge.bottom }));
    svg.append(clip);
    shown.forEach(([name, curve], k) => {
      const path = curve.y.map((v, i) => `${i ? "L" : "M"}${x(xs[k][i]).toFixed(1)} ${y(v).toFixed(1)}`).join("");
      svg.append(element("svg:path", { class: "curve", d: path, stroke: colour(name), "clip-path": "url(#within)" }));
    });
    const cursor = element("svg:line", { class: "cursor", y1: edge.top, y2: height - edge.bottom, visibility: "hidden" });
    const note = element("div", { class: "note", hidden: "" });
    const move = (event) => {
      const box = svg.getBoundingClientRect();
      const at = ((event.clientX - box.left) / box.width) * width;
      const v = ((at - edge.left) / (width - edge.left - edge.right)) * right;
      if (v < 0 || v > right) return leave();
      cursor.setAttribute("x1", at);
      cursor.setAttribute("x2", at);
      cursor.setAttribute("visibility", "visible");
      const read = shown.map(([name, curve], k) => [name, value(xs[k], curve.y, v)]).filter(([, a]) => a !== null);
      read.sort((a, b) => b[1] - a[1]);
      note.replaceChildren(element("b", {}, `${+v.toPrecision(3)} ${state.axis === "megabytes" ? "gigabytes" : state.axis}`),
        ...read.map(([name, a]) => element("div", {}, swatch(name), `${name} ${a.toFixed(1)}`)));
      note.hidden = false;
      note.style.left = at / width > 0.6 ? "" : `${(100 * at) / width + 2}%`;
      note.style.right = at / width > 0.6 ? `${100 - (100 * at) / width + 2}%` : "";
    };
    const leave = () => { note.hidden = true; cursor.setAttribute("visibility", "hidden"); };
    svg.append(cursor);
    svg.addEventListener("pointermove", move);
    svg.addEventListener("pointerleave", leave);
    return element("div", { class: "drawing" }, svg, note);
  }

  function value(xs, ys, at) {
    if (at > xs[xs.length - 1] * 1.01) return null;
    const k = xs.findIndex((x) => x >= at);
    return k < 0 ? ys[ys.length - 1] : ys[k];
  }

  function colour(name) {
    const k = Object.keys(columns[state.column]).indexOf(name);
    return `var(--curve-${k}, ${colours[k % colours.length]})`;
  }

  function swatch(name) {
    return element("i", { style: `background:${colour(name)}` });
  }

  function choice(label, options, chosen, pick) {
    const select = element("select", { onchange: (event) => pick(event.target.value) },
      ...options.map(([value, text, group]) => element("option", { value, ...(value === chosen ? { selected: "" } : {}), "data-group": group || "" }, text)));
    const groups = new Map();
    for (const option of [...select.children]) {
      const name = option.dataset.group;
      if (!name) continue;
      if (!groups.has(name)) groups.set(name, select.appendChild(element("optgroup", { label: name })));
      groups.get(name).append(option);
    }
    return element("label", {}, `${label} `, select);
  }

  function legend(again) {
    return Object.entries(columns[state.column]).sort((a, b) => b[1].end - a[1].end).map(([name, curve]) =>
      element("button", { type: "button", class: state.hidden.has(name) ? "off" : "", "aria-pressed": String(!state.hidden.has(name)),
        title: "the mean of the last ten rounds, and the number of seeds",
        onclick: () => { state.hidden.has(name) ? state.hidden.delete(name) : state.hidden.add(name); again(); } },
      swatch(name), `${name} `, element("b", {}, curve.end.toFixed(2)), curve.n > 1 ? ` (${curve.n} seeds)` : ""));
  }

  function draw(root) {
    const again = () => draw(root);
    const set = (key) => (v) => { state[key] = v; again(); };
    const tasks = Object.keys(columns).map((c) => { const [group, split] = title(c); return [c, split, group]; });
    root.replaceChildren(
      element("div", { class: "choices" },
        choice("Task", tasks, state.column, set("column")),
        choice("over", [["rounds", "rounds"], ["seconds", "seconds"], ["megabytes", "what is sent"]], state.axis, set("axis")),
        choice("showing", [["", "everything"], ["z", "the top"]], state.zoom ? "z" : "", (v) => { state.zoom = Boolean(v); again(); })),
      figure(Math.max(280, Math.min(root.clientWidth, 1000))),
      element("div", { class: "legend" }, ...legend(again)));
  }

  for (const root of document.querySelectorAll("[data-curves]")) {
    draw(root);
    for (const cell of document.querySelectorAll("td[data-column]")) {
      cell.addEventListener("click", () => {
        state.column = cell.dataset.column;
        draw(root);
        root.scrollIntoView({ behavior: "smooth", block: "start" });
      });
    }
    let width = root.clientWidth;
    new ResizeObserver(() => { if (root.clientWidth !== width) { width = root.clientWidth; draw(root); } }).observe(root);
  }
})();
