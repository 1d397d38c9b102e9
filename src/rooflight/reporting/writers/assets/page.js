"use strict";
// One page, no framework: theme, charts, the tree of layers, and the panel behind its rows. Data comes from the JSON
// block and reaches the page only as text: nothing here writes HTML from strings, and nothing writes numbers.
(() => {
const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (selector, root = document) => root.querySelector(selector);
const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, text, cls) => {
  const made = document.createElement(tag);
  if (text !== undefined && text !== null) made.textContent = text;
  if (cls) made.className = cls;
  return made;
};

// Theme: as the system says, or as the reader chose; charts are drawn again when it changes.
const dark = matchMedia("(prefers-color-scheme: dark)");
let chosen = "auto";
try { chosen = localStorage.getItem("rooflight-theme") || "auto"; } catch { /* a file:// page may have no storage */ }
const mode = () => chosen === "auto" ? (dark.matches ? "dark" : "light") : chosen;
function applyTheme() {
  document.documentElement.dataset.theme = mode();
  $("#theme span").textContent = chosen;
  redraw();
}
$("#theme").addEventListener("click", () => {
  chosen = { auto: "light", light: "dark", dark: "auto" }[chosen] || "auto";
  try { localStorage.setItem("rooflight-theme", chosen); } catch { /* then for this page only */ }
  applyTheme();
});
dark.addEventListener("change", applyTheme);

// Charts: each is drawn when it comes near the screen, as wide as its place.
const drawn = new Map();
const copy = (value) => JSON.parse(JSON.stringify(value));
// As wide as there is room for: single views take the width of their place, those beside each other share it, and on a
// phone they stand below each other.
const VIEWS = ["vconcat", "hconcat", "concat"];
const AXIS = 92;
function fitted(spec, width) {
  const made = copy(spec);
  if (!VIEWS.some((key) => made[key])) {
    if (made.facet || made.spec || (made.encoding && (made.encoding.facet || made.encoding.row || made.encoding.column))) return made;
    made.width = "container";
    made.autosize = { type: "fit-x", contains: "padding" };
    return made;
  }
  const axis = (width >= 640 && made.usermeta && made.usermeta.axis) || AXIS;
  const share = (node, room) => {
    if (width < 640 && node.hconcat) { node.vconcat = node.hconcat; delete node.hconcat; }
    if (width < 640 && node.concat) node.columns = 1;
    const key = VIEWS.find((one) => node[one]);
    if (!key) { if (!node.facet && !node.spec && typeof node.width !== "object") node.width = Math.max(room - axis, 140); return; }
    const beside = key === "hconcat" ? node.hconcat.length : key === "concat" ? Math.min(node.columns || node.concat.length, node.concat.length) : 1;
    node[key].forEach((one) => share(one, room / beside - (beside > 1 ? 12 : 0)));
  };
  share(made, width);
  return made;
}
async function draw(place) {
  const spec = DATA.charts[place.dataset.chart];
  const width = place.clientWidth;
  const key = `${mode()} ${width}`;
  if (!spec || !width || drawn.get(place) === key) return;
  drawn.set(place, key);
  const result = await window.vegaEmbed(place, fitted(spec, width), {
    mode: "vega-lite", renderer: "canvas", config: DATA.themes[mode()], tooltip: { theme: mode() === "dark" ? "dark" : "custom" },
    actions: { export: { svg: true, png: true }, source: false, compiled: false, editor: false },
    downloadFileName: `rooflight-${place.dataset.chart}`,
  });
  place.dataset.ready = "yes";
  place.view = result.view;
}
const near = new IntersectionObserver((entries) => entries.forEach((entry) => {
  entry.target.dataset.near = entry.isIntersecting ? "yes" : "";
  if (entry.isIntersecting) draw(entry.target);
}), { rootMargin: "300px" });
function redraw() {
  $$(".plot").forEach((place) => { if (place.dataset.near || place.dataset.ready) draw(place); });
}
let waiting = 0;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(redraw, 200); });

// The tree of layers.
class Grid {
  constructor(root, tree) {
    this.root = root; this.tree = tree;
    this.length = tree.names.length;
    this.columns = tree.columns;
    this.children = Array.from({ length: this.length }, () => []);
    this.depth = new Int32Array(this.length);
    this.roots = [];
    for (let i = 0; i < this.length; i += 1) {
      const parent = tree.parents[i];
      if (parent < 0) this.roots.push(i); else { this.children[parent].push(i); this.depth[i] = this.depth[parent] + 1; }
    }
    // What a module holds comes before the ops that it runs itself.
    const last = (i) => (tree.kinds[i] === "module" ? 0 : 1);
    this.children.forEach((own) => own.sort((a, b) => last(a) - last(b) || a - b));
    this.open = new Set(this.roots.slice(0, 1));
    this.sort = null; this.down = true; this.query = ""; this.view = "tree";
    this.rowHeight = 29; this.active = 0;
    this.scroll = $(".scroll", root); this.body = $("tbody", root);
    this.texts = tree.names.map((name, i) => `${tree.paths[i]} ${name} ${this.words(i)}`.toLowerCase());
    this.head(); this.bind(); this.update();
  }
  words(i) { return this.columns.filter((one) => !one.right).map((one) => one.texts[one.rows[i]] ?? "").join(" "); }
  head() {
    const thead = $("thead", this.root);
    const sides = make("tr"), keys = make("tr");
    const first = make("th", "", "first side"); sides.append(first);
    const layer = make("th", undefined, "first key"); layer.append(this.sorter("layer or op", null)); keys.append(layer);
    let last = null;
    for (const column of this.columns) {
      if (last && last.side === column.side) last.cell.colSpan += 1;
      else {
        const cell = make("th", { estimate: "estimate", measurement: "measured", prediction: "predicted", both: "" }[column.side], "side");
        cell.colSpan = 1; last = { side: column.side, cell }; sides.append(cell);
      }
      const cell = make("th", undefined, `key${column.right ? " r" : ""}`);
      cell.title = column.about; cell.append(this.sorter(column.title, column)); keys.append(cell);
    }
    const grouped = this.columns.some((one) => one.side !== "both");
    if (grouped) thead.append(sides); else keys.classList.add("alone");
    thead.append(keys);
    this.keys = keys;
    const table = $("table", this.root), group = make("colgroup");
    const widths = [innerWidth < 640 ? 170 : 260, ...this.columns.map((one) => this.width(one))];
    widths.forEach((width) => { const col = make("col"); col.style.width = `${width}px`; group.append(col); });
    table.prepend(group); table.style.width = `${widths.reduce((a, b) => a + b, 0)}px`;
    table.setAttribute("aria-colcount", widths.length);
  }
  width(column) {
    const longest = column.texts.reduce((most, text) => Math.max(most, text.length), column.title.length);
    return Math.min(Math.max(8 * longest + 26, 78), 250);
  }
  sorter(title, column) {
    const button = make("button", title); button.type = "button";
    button.addEventListener("click", () => {
      if (column === null) { this.sort = null; this.down = true; }
      else if (this.sort === column) { if (this.down) this.down = false; else { this.sort = null; this.down = true; } }
      else { this.sort = column; this.down = column.right; }
      this.marks(); this.update();
    });
    button.column = column;
    return button;
  }
  marks() {
    $$("button", this.keys).forEach((button) => {
      const on = button.column !== null && button.column === this.sort;
      const cell = button.parentElement;
      if (on) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending"); else cell.removeAttribute("aria-sort");
      button.textContent = (button.column ? button.column.title : "layer or op") + (on ? (this.down ? " ▾" : " ▴") : "");
    });
  }
  compare() {
    const column = this.sort;
    if (!column) return null;
    const sign = this.down ? -1 : 1;
    return (a, b) => {
      const x = column.rows[a], y = column.rows[b];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;  // unknown last, either way
      return sign * (x - y) || a - b;
    };
  }
  order() {
    const compare = this.compare(), query = this.query;
    const fits = query ? this.texts.map((text) => query.every((word) => text.includes(word))) : null;
    if (this.view !== "tree") {
      const wanted = (i) => (this.view === "module" ? this.tree.kinds[i] === "module" : this.tree.kinds[i] !== "module");
      const found = [];
      for (let i = 0; i < this.length; i += 1) if (wanted(i) && (!fits || fits[i])) found.push(i);
      return compare ? found.sort(compare) : found;
    }
    let keep = null;
    if (fits) {
      keep = new Uint8Array(this.length);
      for (let i = 0; i < this.length; i += 1) if (fits[i]) for (let at = i; at >= 0 && !keep[at]; at = this.tree.parents[at]) keep[at] = 1;
    }
    const found = [], stack = [];
    const push = (rows) => {
      const sorted = compare ? [...rows].sort(compare) : rows;
      for (let n = sorted.length - 1; n >= 0; n -= 1) if (!keep || keep[sorted[n]]) stack.push(sorted[n]);
    };
    push(this.roots);
    while (stack.length) {
      const i = stack.pop();
      found.push(i);
      if (this.children[i].length && (keep || this.open.has(i))) push(this.children[i]);
    }
    return found;
  }
  update() {
    this.rows = this.order();
    this.active = Math.min(this.active, Math.max(this.rows.length - 1, 0));
    $(".count", this.root).textContent = `${this.rows.length} of ${this.length} rows`;
    $("table", this.root).setAttribute("aria-rowcount", this.rows.length + 2);
    this.shown = null; this.render();
  }
  render(all = false) {
    const height = this.scroll.clientHeight || 600;
    const start = all ? 0 : Math.max(0, Math.floor(this.scroll.scrollTop / this.rowHeight) - 12);
    const end = all ? Math.min(this.rows.length, 400) : Math.min(this.rows.length, start + Math.ceil(height / this.rowHeight) + 24);
    const key = `${start} ${end}`;
    if (this.shown === key && !all) return;
    this.shown = key;
    const focused = this.body.contains(document.activeElement);
    const rows = [this.spacer(start)];
    for (let n = start; n < end; n += 1) rows.push(this.row(n));
    if (all && end < this.rows.length) rows.push(this.rest(this.rows.length - end));
    rows.push(this.spacer(this.rows.length - end));
    this.body.replaceChildren(...rows);
    if (focused) $(`tr[data-n="${this.active}"]`, this.body)?.focus({ preventScroll: true });
  }
  spacer(rows) {
    const row = make("tr", undefined, "spacer"), cell = make("td");
    row.setAttribute("aria-hidden", "true");
    cell.colSpan = this.columns.length + 1; cell.style.height = `${rows * this.rowHeight}px`; row.append(cell);
    return row;
  }
  rest(count) {
    const row = make("tr"), cell = make("td", `${count} more rows are not printed`);
    cell.colSpan = this.columns.length + 1; row.append(cell);
    return row;
  }
  row(n) {
    const i = this.rows[n], kind = this.tree.kinds[i], holds = this.children[i].length > 0, tree = this.view === "tree";
    const row = make("tr", undefined, kind);
    row.dataset.n = n; row.tabIndex = n === this.active ? 0 : -1;
    row.setAttribute("aria-rowindex", n + 3);
    const first = make("td", undefined, "first");
    if (tree) {
      row.setAttribute("aria-level", this.depth[i] + 1);
      if (holds) row.setAttribute("aria-expanded", this.query ? "true" : String(this.open.has(i)));
      first.style.paddingLeft = `${0.5 + 0.85 * Math.min(this.depth[i], 12)}rem`;
      const twist = make("span", holds ? (this.query || this.open.has(i) ? "▾" : "▸") : "", "twist");
      twist.setAttribute("aria-hidden", "true");
      first.append(twist);
    }
    first.append(make("span", tree ? this.tree.names[i] : this.tree.paths[i] || this.tree.names[i], "name"));
    first.title = this.tree.paths[i] || this.tree.names[i];
    row.append(first);
    for (const column of this.columns) {
      const at = column.rows[i], text = column.texts[at] ?? "–", cell = make("td", undefined, column.right ? "r" : "");
      if (column.bars?.[at]) {
        const bar = make("span", text, "bar"), fill = make("i");
        fill.style.width = `${column.bars[at]}%`; bar.append(fill); cell.append(bar);
      } else cell.textContent = text;
      if (at !== null) cell.title = column.right ? `${column.title}: ${column.exact?.[at] ?? text}` : text;
      row.append(cell);
    }
    return row;
  }
  toggle(i, open = !this.open.has(i)) {
    if (!this.children[i].length || this.query || this.view !== "tree") return;
    if (open) this.open.add(i); else this.open.delete(i);
    this.update();
  }
  focusRow(n) {
    this.active = Math.max(0, Math.min(n, this.rows.length - 1));
    const top = this.active * this.rowHeight, head = $("thead", this.root).offsetHeight;
    if (top < this.scroll.scrollTop) this.scroll.scrollTop = top;
    else if (top + this.rowHeight + head > this.scroll.scrollTop + this.scroll.clientHeight) this.scroll.scrollTop = top + this.rowHeight + head - this.scroll.clientHeight;
    this.shown = null; this.render();
    $(`tr[data-n="${this.active}"]`, this.body)?.focus({ preventScroll: true });
  }
  bind() {
    let frame = 0;
    this.scroll.addEventListener("scroll", () => { cancelAnimationFrame(frame); frame = requestAnimationFrame(() => this.render()); }, { passive: true });
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-n]");
      if (!row) return;
      const n = Number(row.dataset.n), i = this.rows[n];
      this.active = n;
      if (event.target.classList.contains("twist") && this.children[i].length) this.toggle(i); else showDetail(this, i);
    });
    this.body.addEventListener("keydown", (event) => {
      const i = this.rows[this.active], page = Math.floor(this.scroll.clientHeight / this.rowHeight) - 2;
      const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page };
      if (event.key in moves) this.focusRow(this.active + moves[event.key]);
      else if (event.key === "Home") this.focusRow(0);
      else if (event.key === "End") this.focusRow(this.rows.length - 1);
      else if (event.key === "ArrowRight") { if (!this.open.has(i)) this.toggle(i, true); else this.focusRow(this.active + 1); }
      else if (event.key === "ArrowLeft") {
        if (this.open.has(i) && this.children[i].length) this.toggle(i, false);
        else if (this.tree.parents[i] >= 0) { const at = this.rows.indexOf(this.tree.parents[i]); if (at >= 0) this.focusRow(at); }
      } else if (event.key === "Enter" || event.key === " ") showDetail(this, i);
      else return;
      event.preventDefault();
    });
    const input = $("input", this.root);
    input.addEventListener("input", () => {
      const words = input.value.trim().toLowerCase();
      this.query = words ? words.split(/\s+/) : ""; this.scroll.scrollTop = 0; this.update();
    });
    $(".view", this.root).addEventListener("change", (event) => { this.view = event.target.value; this.scroll.scrollTop = 0; this.update(); });
    $(".unfold", this.root).addEventListener("click", () => { this.children.forEach((own, i) => { if (own.length) this.open.add(i); }); this.update(); });
    $(".fold", this.root).addEventListener("click", () => { this.open = new Set(); this.update(); });
    addEventListener("beforeprint", () => this.render(true));
    addEventListener("afterprint", () => { this.shown = null; this.render(); });
  }
}

// What is behind a row: all its figures, its derivation, its kernels, its causes.
function opsBelow(grid, i) {
  const found = [...grid.tree.ops[i]];
  if (grid.tree.kinds[i] !== "module") return found;
  const stack = grid.children[i].filter((one) => grid.tree.kinds[one] === "module");
  while (stack.length) { const at = stack.pop(); found.push(...grid.tree.ops[at]); stack.push(...grid.children[at].filter((one) => grid.tree.kinds[one] === "module")); }
  return found.sort((a, b) => a - b);
}
function listed(rows, left) {
  const wrap = make("div", undefined, "wide"), table = make("table");
  rows.forEach((row, at) => {
    const line = make("tr");
    rows[0].forEach((_, n) => line.append(make(at ? "td" : "th", row[n], left.includes(n) ? "" : "r")));
    table.append(line);
  });
  wrap.append(table);
  return wrap;
}
function showDetail(grid, i) {
  const dialog = $("#detail"), body = $(".body", dialog), details = DATA.details || {};
  $("#detail-title").textContent = grid.tree.paths[i] || grid.tree.names[i];
  const parts = [];
  const ops = opsBelow(grid, i);
  const texts = new Map();
  for (const op of ops) { const at = details.derivation_of?.[op]; if (at !== undefined) texts.set(at, (texts.get(at) || 0) + 1); }
  if (texts.size) {
    parts.push(make("h3", "By pen and paper"));
    let n = 0;
    for (const [at, times] of texts) {
      if (n === 60) { parts.push(make("p", `and ${texts.size - n} more kinds of ops: open a layer below this one`, "small")); break; }
      if (times > 1) parts.push(make("p", `${times} ops like this; figures are for one:`, "small"));
      parts.push(make("pre", details.derivations[at])); n += 1;
    }
  }
  const said = (line) => details.lines[line].map((cell) => details.texts[cell]);
  const causes = ops.flatMap((op) => details.causes_of?.[op] || []);
  if (causes.length && grid.tree.kinds[i] !== "module") {
    parts.push(make("h3", "Why it took what it took"), ...causes.map((lines) => listed(lines.map(said), [0, 2])));
  }
  const kernels = ops.flatMap((op) => details.kernels_of?.[op] || []).sort((a, b) => a - b);
  if (kernels.length) {
    const most = kernels.slice(0, 40);
    parts.push(make("h3", `Kernels (${kernels.length})`));
    parts.push(listed([["kernel", "time", "blocks", "threads", "tile"], ...most.map(said)], [0, 4]));
    if (kernels.length > most.length) parts.push(make("p", `the ${most.length} longest`, "small"));
  }
  parts.push(make("h3", "All its figures"));
  const figures = grid.columns.map(({ title, about, texts, exact, rows }) => [title, texts[rows[i]], exact?.[rows[i]], about]);
  parts.push(listed([["", "", ""], ...figures.filter(([, text]) => text !== undefined).map(([title, text, exact, about]) =>
    [title, exact ? `${text} (${exact})` : text, about])], [0, 2]));
  body.replaceChildren(...parts);
  dialog.showModal(); dialog.scrollTop = 0;
}
$("#detail").addEventListener("click", (event) => { if (event.target.id === "detail") event.target.close(); });

const grids = $$(".tree").map((root) => new Grid(root, DATA.trees[root.dataset.tree]));
addEventListener("keydown", (event) => {
  if (event.key === "/" && grids.length && !/INPUT|SELECT|TEXTAREA/.test(document.activeElement.tagName) && !$("#detail").open) {
    event.preventDefault(); $("input", grids[0].root).focus();
  }
});

// Which section is being read.
const links = new Map($$(".top nav a").map((link) => [link.hash.slice(1), link]));
const reading = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (entry.isIntersecting) { links.forEach((link) => link.classList.remove("here")); links.get(entry.target.id)?.classList.add("here"); }
}), { rootMargin: "-10% 0px -80% 0px" });
$$("main section").forEach((section) => reading.observe(section));
// On paper everything is light, drawn and unfolded: nobody can click there.
let chosenBefore = chosen, opened = [];
addEventListener("beforeprint", () => {
  chosenBefore = chosen; chosen = "light"; applyTheme(); $$(".plot").forEach(draw);
  opened = $$("section > details:not([open])");
  opened.forEach((one) => { one.open = true; });
});
addEventListener("afterprint", () => {
  chosen = chosenBefore; applyTheme();
  opened.forEach((one) => { one.open = false; });
});

applyTheme();
$$(".plot").forEach((place) => near.observe(place));
document.documentElement.dataset.loaded = "yes";
})();
