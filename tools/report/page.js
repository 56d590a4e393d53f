"use strict";
// Draws the report from the JSON in #data. Text from files only ever enters as text nodes.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// Okabe and Ito's palette, told apart by every common form of colour blindness.
const CATEGORY_COLORS = { weight: "#0072b2", gradient: "#d55e00", optimizer: "#e69f00", activation: "#009e73",
  workspace: "#56b4e9", communication: "#cc79a7", external: "#999999" };
// From the bottom of a stack up: what stays as it is first, so that what moves is seen to move.
const STACK_ORDER = ["external", "workspace", "communication", "weight", "optimizer", "gradient", "activation"];
const OP_GROUPS = [
  { name: "forward", color: "#0072b2", match: /^(Forward|External)$/ },
  { name: "recompute", color: "#56b4e9", match: /^Recompute$/ },
  { name: "backward", color: "#009e73", match: /^Backward/ },
  { name: "upload, fetch", color: "#e69f00", match: /^(Upload|FetchActivation)$/ },
  { name: "download, spill", color: "#f0e442", match: /^(Download|SpillActivation)$/ },
  { name: "storage read", color: "#d55e00", match: /^StorageRead$/ },
  { name: "storage write, commit", color: "#cc79a7", match: /^(StorageWrite|Commit)$/ },
  { name: "optimizer", color: "#3d3d5c", match: /^OptimizerStep$/ },
  { name: "gradient sums and norm", color: "#8b5fbf", match: /^(AccumulateGrad|FoldGrad|GradNorm|ClipFactor)$/ },
  { name: "communication", color: "#8c6d31", match: /^(Gather|ReduceScatter|AllReduce|Send.*|Recv.*)$/ },
  { name: "other", color: "#9aa4ae", match: /./ },
];
const opGroup = (op) => OP_GROUPS.find((group) => group.match.test(op));

function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

// ---- numbers for people -------------------------------------------------------------------------
function digits(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-3) return value.toExponential(2);
  return String(Number(value.toPrecision(size >= 1000 ? Math.ceil(Math.log10(size)) : 4)));
}
function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit + 1 < units.length) { bytes /= 1024; ++unit; }
  return Number(bytes.toPrecision(4)) + " " + units[unit];
}
function timeText(ns) {
  if (ns === 0) return "0";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (Math.abs(ns) >= size) return Number((ns / size).toPrecision(4)) + " " + unit;
  }
  return Number(ns.toPrecision(3)) + " ns";
}
function countText(count) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["K", 1e3]]) {
    if (count >= size) return Number((count / size).toPrecision(3)) + " " + unit;
  }
  return String(count);
}
const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + "%";
const present = (value) => value !== null && value !== undefined;

// Three to six round values that span [low, high]; `base` 1024 for bytes.
function ticks(low, high, wanted, binary) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const scale = binary ? 2 ** Math.floor(Math.log2(rough)) : 10 ** Math.floor(Math.log10(rough));
  const step = (binary ? [1, 2] : [1, 2, 5, 10]).map((m) => m * scale).find((s) => s >= rough);
  const out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; ++k) out.push(k * step);
  return out;
}

// ---- tooltip ------------------------------------------------------------------------------------
function showTip(event, text) {
  const tip = $("tip");
  tip.textContent = text;
  tip.hidden = false;
  const x = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 16;
  const y = below + tip.offsetHeight > innerHeight ? event.clientY - tip.offsetHeight - 10 : below;
  tip.style.left = x + "px";
  tip.style.top = y + "px";
}
const hideTip = () => { $("tip").hidden = true; };

// ---- header and tables --------------------------------------------------------------------------
function fact(label, value, wide) {
  if (!present(value) || value === "") return;
  $("facts").append(element("div", { class: wide ? "fact wide" : "fact" },
    element("div", { class: "label" }, label), element("div", { class: "value" }, value)));
}
function lastFinite(values) {
  for (let i = values.length - 1; i >= 0; --i) if (present(values[i])) return values[i];
  return null;
}
function header() {
  $("name").textContent = data.name;
  document.title = "Sluice report " + data.name;
  const steps = data.steps;
  const first = steps.loss.find(present), last = lastFinite(steps.loss);
  fact("Parameters", present(data.parameters) ? countText(data.parameters) : null);
  fact("Model state", present(data.state_bytes) ? bytesText(data.state_bytes) : null);
  for (const tier of data.memory) {
    if (present(tier.budget)) fact("Budget: " + tier.tier, bytesText(tier.budget));
  }
  fact("Steps", steps.step.length ? String(steps.step[steps.step.length - 1]) : "none");
  fact("Loss", present(last) ? digits(first) + " → " + digits(last) : null);
  fact("Tokens/s, last", present(lastFinite(steps.tokens_per_s)) ? digits(lastFinite(steps.tokens_per_s)) : null);
  fact("Bound by (plan)", data.bound_by);
  fact("Stalled, last step", present(lastFinite(steps.stalled)) ? percent(lastFinite(steps.stalled)) : null);
  const redone = data.redone;
  fact("Updates redone (logged steps)", present(redone)
    ? redone.steps + " of " + redone.of + ", " + timeText(redone.seconds * 1e9) : null);
  fact("Hash of the final weights", data.weights_hash ?? "none: the run did not end by itself", true);
  $("config").textContent = data.config;
}

// columns: [heading, "number" or ""]; cells are text or nodes.
function table(caption, columns, rows) {
  const head = element("tr", {}, ...columns.map(([text, kind]) => element("th", kind ? { class: kind } : {}, text)));
  const body = rows.map((cells) => element("tr", {}, ...cells.map((cell, i) =>
    element("td", columns[i][1] ? { class: columns[i][1] } : {}, cell))));
  const out = element("table", {}, element("thead", {}, head), element("tbody", {}, ...body));
  if (caption) out.prepend(element("caption", {}, caption));
  return out;
}
function comparison() {
  const rows = data.comparison.map((row) => {
    const show = (value) => !present(value) ? "–" : row.unit === "bytes" ? bytesText(value) : timeText(value * 1e9);
    let verdict = "–";
    if (present(row.plan) && present(row.run)) {
      if (row.plan === row.run) {
        verdict = element("span", { class: "same" }, "equal");
      } else {
        const off = row.plan === 0 ? "plan is 0" : (row.run > row.plan ? "+" : "") + (100 * (row.run / row.plan - 1)).toFixed(1) + "%";
        // Bytes are promised exactly; times are predicted within 15%.
        const good = row.unit === "s" && Math.abs(row.run / row.plan - 1) <= 0.15;
        verdict = element("span", { class: good ? "same" : "differs" }, off);
      }
      verdict.title = "plan " + row.plan + ", run " + row.run + " " + row.unit;
    }
    return [row.what, show(row.plan), show(row.run), verdict];
  });
  $("comparison").append(table("", [["", ""], ["Plan", "number"], ["Run", "number"], ["Run against plan", "number"]], rows));
}
function busy() {
  const names = [];
  for (const side of [data.plan, data.run]) {
    for (const track of side.tracks) if (!names.includes(track.name)) names.push(track.name);
  }
  const share = (side, name) => {
    const track = side.tracks.find((candidate) => candidate.name === name);
    return track && side.end > 0 ? track.busy / side.end : 0;
  };
  const cell = (side, name) => {
    const value = share(side, name);
    const bar = element("div", { class: "hbar", title: percent(value) }, element("div", { style: "width:" + 100 * value + "%" }));
    return element("div", {}, percent(value), bar);
  };
  $("busy").append(table("", [["Lane busy, share of the trace", ""], ["Plan", "number"], ["Run", "number"]],
    names.map((name) => [name, cell(data.plan, name), cell(data.run, name)])));
}

// ---- charts -------------------------------------------------------------------------------------
const CHART = { width: 580, height: 190, left: 62, right: 12, top: 8, bottom: 24 };

// Axes, grid and the maps from values to pixels.
function frame(x, y, options = {}) {
  const box = { ...CHART, ...options };
  const px = (v) => box.left + (v - x[0]) / (x[1] - x[0] || 1) * (box.width - box.left - box.right);
  const py = (v) => box.height - box.bottom - (v - y[0]) / (y[1] - y[0] || 1) * (box.height - box.top - box.bottom);
  const root = svg("svg", { viewBox: `0 0 ${box.width} ${box.height}`, role: "img" });
  for (const v of ticks(y[0], y[1], 4, box.binary)) {
    root.append(svg("line", { x1: box.left, x2: box.width - box.right, y1: py(v), y2: py(v), stroke: "#e7ebef" }));
    root.append(svg("text", { x: box.left - 6, y: py(v) + 4, "text-anchor": "end" }, box.yText(v)));
  }
  for (const v of ticks(x[0], x[1], 6)) {
    root.append(svg("text", { x: px(v), y: box.height - 7, "text-anchor": "middle" }, box.xText(v)));
  }
  root.append(svg("line", { x1: box.left, x2: box.width - box.right, y1: py(y[0]), y2: py(y[0]), stroke: "#8c959f" }));
  return { root, box, px, py };
}
// A vertical line under the pointer; describe(value of x) gives the tooltip.
function hover(chart, x, describe) {
  const { root, box, px } = chart;
  const line = svg("line", { y1: box.top, y2: box.height - box.bottom, stroke: "#57606a", "stroke-dasharray": "2 2", visibility: "hidden" });
  root.append(line);
  root.addEventListener("pointermove", (event) => {
    const rect = root.getBoundingClientRect();
    const pixel = (event.clientX - rect.left) / rect.width * box.width;
    const value = x[0] + (pixel - box.left) / (box.width - box.left - box.right) * (x[1] - x[0]);
    const found = value >= x[0] && value <= x[1] ? describe(value) : null;
    line.setAttribute("visibility", found ? "visible" : "hidden");
    if (!found) return hideTip();
    line.setAttribute("x1", px(found.at));
    line.setAttribute("x2", px(found.at));
    showTip(event, found.text);
  });
  root.addEventListener("pointerleave", () => { line.setAttribute("visibility", "hidden"); hideTip(); });
}
// series: [{name, x, y, color, dots}]; gaps where y is null.
function lineChart(title, series, yText, options = {}) {
  const all = series.flatMap((s) => s.y.filter(present));
  const holder = element("div", {}, element("h3", {}, title));
  $("curves").append(holder);
  if (!all.length) return holder.append(element("p", { class: "note" }, "Not recorded in this run."));
  const xs = series.flatMap((s) => s.x);
  const x = [Math.min(...xs), Math.max(...xs)];
  const low = options.zero ? 0 : Math.min(...all), high = options.top ?? Math.max(...all);
  const pad = (high - low || Math.abs(high) || 1) * 0.06;
  const y = [options.zero ? 0 : low - pad, options.top ?? high + pad];
  const chart = frame(x, y, { yText, xText: (v) => Number.isInteger(v) ? String(v) : "" });
  for (const s of series) {
    let path = "", pen = "M";
    s.x.forEach((step, i) => {
      if (!present(s.y[i])) { pen = "M"; return; }
      path += pen + chart.px(step).toFixed(1) + " " + chart.py(s.y[i]).toFixed(1);
      pen = "L";
      if (s.dots || s.x.length === 1) {
        chart.root.append(svg("circle", { cx: chart.px(step), cy: chart.py(s.y[i]), r: 3.5, fill: s.color, stroke: "#fff" }));
      }
    });
    chart.root.prepend(svg("path", { d: path, fill: "none", stroke: s.color, "stroke-width": 1.7, "stroke-linejoin": "round" }));
  }
  if (series.length > 1) {
    holder.append(element("div", { class: "legend" }, ...series.map((s) => element("span", {},
      element("span", { class: "swatch", style: "background:" + s.color }), s.name))));
  }
  hover(chart, x, (value) => {
    const steps = series[0].x;
    let best = 0;
    steps.forEach((step, i) => { if (Math.abs(step - value) < Math.abs(steps[best] - value)) best = i; });
    const lines = ["step " + steps[best]];
    for (const s of series) {
      const at = s.x.indexOf(steps[best]);
      if (at >= 0 && present(s.y[at])) lines.push(s.name + ": " + yText(s.y[at]));
    }
    return { at: steps[best], text: lines.join("\n") };
  });
  holder.append(chart.root);
}
function curves() {
  const s = data.steps;
  const loss = [{ name: "training loss", x: s.step, y: s.loss, color: "#0072b2" }];
  if (data.evaluations.step.length) {
    loss.push({ name: "evaluation loss", x: data.evaluations.step, y: data.evaluations.loss, color: "#d55e00", dots: true });
  }
  const one = (name, y, color) => [{ name, x: s.step, y, color }];
  lineChart("Loss", loss, digits);
  lineChart("Gradient norm, before clipping", one("gradient norm", s.grad_norm, "#009e73"), digits, { zero: true });
  lineChart("Tokens per second", one("tokens/s", s.tokens_per_s, "#0072b2"), digits, { zero: true });
  lineChart("Share of the step that compute stood still", one("stalled", s.stalled, "#d55e00"), percent, { zero: true, top: 1 });
}

// ---- memory -------------------------------------------------------------------------------------
// Index of the last sample at or before `time`, -1 before the first.
function sampleAt(times, time) {
  let low = 0, high = times.length;
  while (low < high) { const mid = (low + high) >> 1; if (times[mid] <= time) low = mid + 1; else high = mid; }
  return low - 1;
}
function memoryChart(title, series, end, top, budget) {
  const holder = element("div", {}, element("h3", {}, title));
  if (!series.time.length) { holder.append(element("p", { class: "note" }, "No samples in this trace.")); return holder; }
  const x = [0, Math.max(end, 1)];
  const chart = frame(x, [0, top], { height: 170, binary: true, yText: bytesText, xText: timeText });
  const floor = new Array(series.time.length).fill(0);
  const stack = series.categories.map((category, c) => [category, c])
    .sort((a, b) => STACK_ORDER.indexOf(a[0]) - STACK_ORDER.indexOf(b[0]));
  for (const [category, c] of stack) {
    // Step function: up the top edge left to right, back along the floor.
    let upper = "", lower = "";
    series.time.forEach((time, i) => {
      const until = i + 1 < series.time.length ? series.time[i + 1] : end;
      const from = chart.px(time).toFixed(1), to = chart.px(until).toFixed(1);
      const low = chart.py(floor[i]).toFixed(1), high = chart.py(floor[i] + series.bytes[c][i]).toFixed(1);
      upper += `L${from} ${high}L${to} ${high}`;
      lower = `L${to} ${low}L${from} ${low}` + lower;
      floor[i] += series.bytes[c][i];
    });
    chart.root.append(svg("path", { d: "M" + upper.slice(1) + lower + "Z", fill: CATEGORY_COLORS[category] ?? "#999", "fill-opacity": 0.88 }));
  }
  if (present(budget)) {
    const inside = budget <= top;
    const y = inside ? chart.py(budget) : chart.box.top;
    if (inside) chart.root.append(svg("line", { x1: chart.box.left, x2: chart.box.width - chart.box.right, y1: y, y2: y, stroke: "#1c2128", "stroke-width": 1.4, "stroke-dasharray": "6 3" }));
    chart.root.append(svg("text", { x: chart.box.width - chart.box.right, y: inside ? y - 4 : y + 6, "text-anchor": "end", style: "fill:#1c2128" },
      "budget " + bytesText(budget) + (inside ? "" : ", above this chart")));
  }
  hover(chart, x, (time) => {
    const i = sampleAt(series.time, time);
    if (i < 0) return null;
    const lines = [timeText(time)];
    let total = 0;
    series.categories.forEach((category, c) => { total += series.bytes[c][i]; lines.push(category + ": " + bytesText(series.bytes[c][i])); });
    return { at: time, text: [...lines, "together: " + bytesText(total)].join("\n") };
  });
  holder.append(chart.root);
  return holder;
}
function memory() {
  const seen = new Set(data.memory.flatMap((tier) => [...tier.plan.categories, ...tier.run.categories]));
  $("categories").append(...[...seen].map((category) => element("span", {},
    element("span", { class: "swatch", style: "background:" + (CATEGORY_COLORS[category] ?? "#999") }), category)));
  for (const tier of data.memory) {
    const peak = Math.max(tier.plan.peak, tier.run.peak, tier.plan_peak ?? 0, tier.run_peak ?? 0);
    if (peak <= 0) continue;
    // The budget sets the scale unless the tier uses less than a quarter of it.
    const top = (present(tier.budget) && tier.budget <= 4 * peak ? Math.max(tier.budget, peak) : peak) * 1.12;
    const name = tier.tier[0].toUpperCase() + tier.tier.slice(1);
    $("memory").append(element("div", { class: "grid2 tier" },
      memoryChart(name + ", plan", tier.plan, data.plan.end, top, tier.budget),
      memoryChart(name + ", run", tier.run, data.run.end, top, tier.budget)));
  }
}

// ---- stalls -------------------------------------------------------------------------------------
function spanText(span) {
  let text = span.op;
  if (span.unit >= 0) text += " unit " + span.unit;
  if (span.microbatch >= 0) text += " micro-batch " + span.microbatch;
  return text;
}
function stallTables(side, end, title) {
  const causes = Object.entries(side.by_cause).sort((a, b) => b[1] - a[1]);
  const summary = `${title}: ${side.count} waits, ${timeText(side.total)}` + (end > 0 ? `, ${percent(side.total / end)} of the trace` : "");
  const holder = element("div", { style: "margin-bottom:18px" }, element("h3", {}, summary));
  if (!side.count) return holder;
  const longest = table("", [["At", "number"], ["Length", "number"], ["Waited for", ""], ["on lane", ""], ["Bytes", "number"], ["then ran", ""]],
    side.longest.map((stall) => {
      const cause = stall.waited_for;
      return [timeText(stall.begin), timeText(stall.end - stall.begin), cause ? spanText(cause) : "nothing on another lane",
        cause ? cause.lane : "–", cause && cause.bytes ? bytesText(cause.bytes) : "–", stall.next ? spanText(stall.next) : "end of the trace"];
    }));
  const grouped = table("", [["All waits, by what they waited for", ""], ["Time", "number"], ["Share", "number"]],
    causes.map(([cause, ns]) => [cause, timeText(ns), percent(ns / side.total)]));
  holder.append(element("div", { class: "columns" }, longest, grouped));
  return holder;
}

// ---- timeline -----------------------------------------------------------------------------------
class Timeline {
  constructor(canvas) {
    this.canvas = canvas;
    this.gutter = 128;
    this.rows = [];   // {y, height, track, side, row}
    this.labels = []; // {y, text, strong}
    this.layout();
    this.fit();
    this.listen();
  }
  layout() {
    const ROW = 17, GAP = 6;
    let y = 26;
    for (const [title, side] of [["Plan", data.plan], ["Run", data.run]]) {
      this.labels.push({ y: y + 12, text: title, strong: true });
      y += 20;
      for (const track of side.tracks) {
        this.labels.push({ y: y + 13, text: track.name });
        const rows = Array.from({ length: track.rows }, () => []);
        for (const span of track.spans) rows[span[0]].push(span);
        for (const spans of rows) {
          this.rows.push({ y, height: ROW - 1, spans, side, track });
          y += ROW;
        }
        y += GAP;
      }
      y += 8;
    }
    this.height = y;
    this.end = Math.max(data.plan.end, data.run.end, 1);
    this.canvas.style.height = this.height + "px";
  }
  fit() { this.from = 0; this.until = this.end * 1.01; this.draw(); }
  zoom(factor, anchor = (this.from + this.until) / 2) {
    // Not closer than a microsecond across the page, not wider than the trace.
    const width = Math.min(Math.max((this.until - this.from) * factor, 1000), this.end * 1.01);
    const share = (anchor - this.from) / (this.until - this.from);
    this.move(anchor - share * width, width);
  }
  move(from, width = this.until - this.from) {
    this.from = Math.min(Math.max(from, 0), Math.max(this.end * 1.01 - width, 0));
    this.until = this.from + width;
    this.draw();
  }
  width() { return this.canvas.clientWidth - this.gutter - 10; }
  px(time) { return this.gutter + (time - this.from) / (this.until - this.from) * this.width(); }
  time(pixel) { return this.from + (pixel - this.gutter) / this.width() * (this.until - this.from); }
  draw() {
    const ratio = devicePixelRatio || 1;
    this.canvas.width = this.canvas.clientWidth * ratio;
    this.canvas.height = this.height * ratio;
    const g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    g.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    const right = this.gutter + this.width();
    for (const time of ticks(this.from, this.until, 8)) {
      const x = Math.round(this.px(time)) + 0.5;
      g.strokeStyle = "#e7ebef";
      g.beginPath(); g.moveTo(x, 20); g.lineTo(x, this.height); g.stroke();
      g.fillStyle = "#57606a";
      g.textAlign = "center";
      g.fillText(timeText(time), x, 14);
    }
    g.textAlign = "left";
    for (const label of this.labels) {
      g.fillStyle = label.strong ? "#1c2128" : "#57606a";
      g.font = (label.strong ? "600 12px" : "11px") + " system-ui, 'DejaVu Sans', sans-serif";
      g.fillText(label.text, label.strong ? 10 : 20, label.y);
    }
    g.font = "10px system-ui, 'DejaVu Sans', sans-serif";
    g.save();
    g.beginPath(); g.rect(this.gutter, 20, this.width(), this.height); g.clip();
    for (const row of this.rows) this.drawRow(g, row, right);
    g.restore();
  }
  drawRow(g, row, right) {
    g.fillStyle = "#f4f6f8";
    g.fillRect(this.gutter, row.y, this.width(), row.height);
    let drawnTo = -1, drawnColor = "";
    for (const span of row.spans) {
      if (span[2] + span[3] < this.from || span[2] > this.until) continue;
      const x = Math.max(this.px(span[2]), this.gutter - 2), end = Math.min(this.px(span[2] + span[3]), right + 2);
      const op = row.side.names[span[1]], color = opGroup(op).color;
      // Spans thinner than a pixel share it: one fill per pixel and colour.
      if (end - x < 1) {
        if (Math.floor(x) === drawnTo && color === drawnColor) continue;
        drawnTo = Math.floor(x); drawnColor = color;
      }
      g.fillStyle = color;
      g.fillRect(x, row.y, Math.max(end - x - (end - x > 4 ? 0.7 : 0), 0.8), row.height);
      if (end - x > 34) {
        const unit = span[4] >= 0 ? " " + span[4] : "";
        const room = Math.floor((end - x - 6) / 5.8);
        const text = (op + unit).length <= room ? op + unit : unit && unit.length <= room ? unit.trim() : "";
        g.fillStyle = /#(f0e442|e69f00|56b4e9|9aa4ae|cc79a7)/.test(color) ? "#1c2128" : "#fff";
        if (text) g.fillText(text, x + 4, row.y + 12);
      }
    }
  }
  spanAt(x, y) {
    const row = this.rows.find((candidate) => y >= candidate.y && y < candidate.y + candidate.height);
    if (!row || x < this.gutter) return null;
    const time = this.time(x), slack = 2 / this.width() * (this.until - this.from);
    let best = null;
    for (const span of row.spans) {
      if (span[2] - slack > time) break;
      if (time <= span[2] + span[3] + slack) best = span;
    }
    return best && { span: best, row };
  }
  describe({ span, row }) {
    const [, op, begin, duration, unit, microbatch, bytes, step] = span;
    const lines = [`${row.side.names[op]} on ${row.track.name}, ${row.side === data.plan ? "plan" : "run"}`];
    if (unit >= 0) lines.push("unit " + unit + (microbatch >= 0 ? ", micro-batch " + microbatch : ""));
    else if (microbatch >= 0) lines.push("micro-batch " + microbatch);
    lines.push(`${timeText(duration)}, from ${timeText(begin)}, step ${step}`);
    if (bytes) lines.push(bytesText(bytes) + (duration > 0 ? ` at ${bytesText(bytes / (duration / 1e9))}/s` : ""));
    return lines.join("\n");
  }
  listen() {
    const canvas = this.canvas;
    let drag = null;
    const local = (event) => { const rect = canvas.getBoundingClientRect(); return [event.clientX - rect.left, event.clientY - rect.top]; };
    canvas.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, from: this.from }; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { drag = null; canvas.style.cursor = ""; });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        canvas.style.cursor = "grabbing";
        hideTip();
        return this.move(drag.from - (event.clientX - drag.x) / this.width() * (this.until - this.from));
      }
      const found = this.spanAt(...local(event));
      if (found) showTip(event, this.describe(found)); else hideTip();
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (event) => this.zoom(0.5, this.time(local(event)[0])));
    canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(Math.exp(event.deltaY * 0.002), this.time(local(event)[0]));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const width = this.until - this.from;
      if (event.key === "+" || event.key === "=") this.zoom(0.6);
      else if (event.key === "-") this.zoom(1 / 0.6);
      else if (event.key === "ArrowLeft") this.move(this.from - 0.15 * width);
      else if (event.key === "ArrowRight") this.move(this.from + 0.15 * width);
      else if (event.key === "0" || event.key === "Home") this.fit();
      else return;
      event.preventDefault();
    });
    $("zoom-in").addEventListener("click", () => this.zoom(0.5));
    $("zoom-out").addEventListener("click", () => this.zoom(2));
    $("zoom-fit").addEventListener("click", () => this.fit());
    addEventListener("resize", () => this.draw());
  }
}
function lanes() {
  const used = new Set([data.plan, data.run].flatMap((side) => side.tracks.flatMap((track) => track.spans.map((span) => opGroup(side.names[span[1]]).name))));
  $("ops").append(...OP_GROUPS.filter((group) => used.has(group.name)).map((group) => element("span", {},
    element("span", { class: "swatch", style: "background:" + group.color }), group.name)));
  const leftOut = data.plan.left_out + data.run.left_out;
  if (leftOut) $("left-out").textContent = leftOut + " of the shortest instructions are not drawn.";
  new Timeline($("timeline"));
}

header();
comparison();
busy();
curves();
lanes();
memory();
$("stalls").append(stallTables(data.stalls.run, data.run.end, "Run"), stallTables(data.stalls.plan, data.plan.end, "Plan"));
