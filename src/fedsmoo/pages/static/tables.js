// Real tables, made of text nodes only: nothing from a run folder is ever read as HTML.
function element(tag, attributes = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) out.setAttribute(name, value);
  out.append(...children.filter((c) => c !== null && c !== undefined));
  return out;
}

const show = (v, digits = 2) => (v === null || v === undefined || Number.isNaN(v) ? "–" : v.toFixed(digits));
function short(v, digits = 4) {
  if (v === null || v === undefined) return "–";
  if (v !== 0 && Math.abs(v) < 1e-3) return v.toExponential(digits - 2).replace("e-", "e−");
  return Number(v.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits, useGrouping: false });
}
function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let k = 0;
  while (n >= 1000 && k < units.length - 1) { n /= 1000; k++; }
  return `${k ? n.toFixed(1) : Math.round(n)} ${units[k]}`;
}
const spread = (values, digits = 2) => {
  const s = deviation(values);
  return show(mean(values), digits) + (s === null ? "" : ` ± ${show(s, digits)}`);
};

// A panel with nothing to show is a line: what is missing, and which command would fill it. Null: there is something.
function bare(id, words, command) {
  const section = byId(id);
  section.classList.toggle("bare", words !== null);
  section.querySelector(".nothing")?.remove();
  if (words !== null) section.append(element("p", { class: "nothing" }, words, ...(command ? [": ", element("code", {}, command)] : [])));
  return words !== null;
}

// Rows in an order: numbers by their value, words as they are read; what is not there comes last, either way.
function ordered(cells, sort) {
  const order = cells.map((_, i) => i);
  if (!sort) return order;
  const key = (i) => { const cell = cells[i][sort.column]; return cell.value ?? (cell.text === "–" || cell.text === "never" ? null : cell.text); };
  return order.sort((i, j) => {
    const a = key(i), b = key(j);
    if (a === null || b === null) return (a === null) - (b === null);
    return sort.sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
  });
}

const sorts = new WeakMap(); // by place: it lasts while a live page is drawn again
const hints = new ResizeObserver((entries) => entries.forEach((e) => hint(e.target)));
function hint(region) {
  const hidden = region.scrollWidth - region.clientWidth;
  region.parentElement?.classList.toggle("more", hidden > 1 && region.scrollLeft < hidden - 1);
}

// A column: {title, words?, best?: "high" | "low"}; a cell: text, or {text, value, outside?: true, it cannot be best}.
// Rows may carry {reference: true}.
function table(place, caption, columns, rows) {
  place.replaceChildren();
  if (!rows.length) {
    place.append(element("p", { class: "empty" }, caption));
    return;
  }
  const cells = rows.map((r) => r.cells.map((c) => (c !== null && typeof c === "object" ? c : { text: c ?? "–", value: null })));
  const best = columns.map((c, k) => {
    const ours = cells.filter((r, i) => !rows[i].reference && !r[k].outside);
    const values = ours.map((r) => r[k].value).filter((v) => v !== null && v !== undefined);
    const told = new Set(values).size > 1 || (values.length > 0 && values.length < ours.length);
    return c.best && told ? (c.best === "high" ? Math.max(...values) : Math.min(...values)) : null;
  });
  let sort = sorts.get(place) ?? null;
  if (sort && columns[sort.column]?.title !== sort.title) sort = null;
  const head = element("tr", {}, ...columns.map((c, k) => {
    const button = element("button", { type: "button" }, c.title);
    button.addEventListener("click", () => {
      const first = c.best === "high" ? -1 : 1;
      sorts.set(place, { column: k, title: c.title, sign: sort && sort.column === k ? -sort.sign : first });
      table(place, caption, columns, rows);
      place.querySelectorAll("thead button")[k].focus();
    });
    const sorted = sort && sort.column === k ? { "aria-sort": sort.sign > 0 ? "ascending" : "descending" } : {};
    return element("th", { scope: "col", ...(c.words ? { class: "words" } : {}), ...sorted }, button);
  }));
  const body = ordered(cells, sort).map((i) => element("tr", rows[i].reference ? { class: "reference" } : {}, ...cells[i].map((cell, k) => {
    const wins = best[k] !== null && cell.value === best[k] && !rows[i].reference && !cell.outside;
    const content = wins ? element("strong", {}, cell.text, element("span", { class: "spoken" }, " (best)")) : cell.text;
    if (k === 0) return element("th", { scope: "row" }, content);
    return element("td", columns[k].words ? { class: "words" } : {}, content);
  })));
  const whole = element("table", {}, element("caption", {}, element("span", {}, caption)), element("thead", {}, head), element("tbody", {}, ...body));
  const region = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole);
  place.append(element("div", { class: "wide" }, region, element("p", { class: "hint", "aria-hidden": "true" }, "more columns: scroll sideways →")));
  region.addEventListener("scroll", () => hint(region), { passive: true });
  hints.observe(region);
}
