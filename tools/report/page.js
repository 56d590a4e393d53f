"use strict";
// Draws the report from the JSON in #data, except the lanes (timeline.js). Text from files enters the
// page as text nodes only.
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);

// From the bottom of a stack up. Categories that stay constant come first, so that changes of the
// others are seen as they are.
const STACK_ORDER = ["external", "workspace", "communication", "weight", "optimizer", "gradient", "activation"];
const categoryColor = (category) => data.category_colors[category] ?? "#999999";

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

// ---- numbers as text -----------------------------------------------------------------------------
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

// Three to six round values that span [low, high]: powers of two if `binary`, for bytes.
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
  fact("Compute stood still, last step", present(lastFinite(steps.stalled)) ? percent(lastFinite(steps.stalled)) : null);
  const redone = data.redone;
  fact("Updates redone (logged steps)", present(redone)
    ? redone.steps + " of " + redone.of + ", " + timeText(redone.seconds * 1e9) : null);
  fact("Hash of the final weights", data.weights_hash ?? "none: the run did not finish", true);
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
        // The plan promises bytes exactly, and predicts times within 15%.
        const good = row.unit === "s" && Math.abs(row.run / row.plan - 1) <= 0.15;
        verdict = element("span", { class: good ? "same" : "differs" }, off);
      }
      verdict.title = "plan " + row.plan + ", run " + row.run + " " + row.unit;
    }
    return [row.quantity, show(row.plan), show(row.run), verdict];
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
// A horizontal line with its label; a value above the chart has only the label, at the top.
function memoryLine(chart, value, top, label, dash, anchor) {
  const inside = value <= top;
  const y = inside ? chart.py(value) : chart.box.top;
  const left = chart.box.left, right = chart.box.width - chart.box.right;
  if (inside) chart.root.append(svg("line", { x1: left, x2: right, y1: y, y2: y, stroke: "#1c2128", "stroke-width": 1.4, "stroke-dasharray": dash }));
  chart.root.append(svg("text", { x: anchor === "end" ? right : left + 4, y: inside ? y - 4 : y + 6, "text-anchor": anchor, style: "fill:#1c2128" },
    label + " " + bytesText(value) + (inside ? "" : ", above this chart")));
}
function memoryChart(title, series, end, top, budget, measuredPeak) {
  const holder = element("div", {}, element("h3", {}, title));
  if (!series.time.length) { holder.append(element("p", { class: "note" }, "No samples in this trace.")); return holder; }
  const x = [0, Math.max(end, 1)];
  const chart = frame(x, [0, top], { height: 170, binary: true, yText: bytesText, xText: timeText });
  const floor = new Array(series.time.length).fill(0);
  const stack = series.categories.map((category, c) => [category, c])
    .sort((a, b) => STACK_ORDER.indexOf(a[0]) - STACK_ORDER.indexOf(b[0]));
  for (const [category, c] of stack) {
    // A step function: the path follows the upper edge to the right and the lower edge back.
    let upper = "", lower = "";
    series.time.forEach((time, i) => {
      const until = i + 1 < series.time.length ? series.time[i + 1] : end;
      const from = chart.px(time).toFixed(1), to = chart.px(until).toFixed(1);
      const low = chart.py(floor[i]).toFixed(1), high = chart.py(floor[i] + series.bytes[c][i]).toFixed(1);
      upper += `L${from} ${high}L${to} ${high}`;
      lower = `L${to} ${low}L${from} ${low}` + lower;
      floor[i] += series.bytes[c][i];
    });
    chart.root.append(svg("path", { d: "M" + upper.slice(1) + lower + "Z", fill: categoryColor(category), "fill-opacity": 0.88 }));
  }
  if (present(budget)) memoryLine(chart, budget, top, "budget", "6 3", "end");
  if (present(measuredPeak)) memoryLine(chart, measuredPeak, top, "measured peak of the run", "2 3", "start");
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
    element("span", { class: "swatch", style: "background:" + categoryColor(category) }), category)));
  for (const tier of data.memory) {
    const peak = Math.max(tier.plan.peak, tier.run.peak, tier.plan_peak ?? 0, tier.measured_peak ?? 0);
    if (peak <= 0) continue;
    // The budget sets the scale unless the tier uses less than a quarter of it.
    const top = (present(tier.budget) && tier.budget <= 4 * peak ? Math.max(tier.budget, peak) : peak) * 1.12;
    const name = tier.tier[0].toUpperCase() + tier.tier.slice(1);
    $("memory").append(element("div", { class: "grid2 tier" },
      memoryChart(name + ", plan", tier.plan, data.plan.end, top, tier.budget),
      memoryChart(name + ", schedule at the run's times", tier.run, data.run.end, top, tier.budget, tier.measured_peak)));
  }
}

// ---- the traced step ----------------------------------------------------------------------------
// The causes of a stall, as the engine names them (engine/runtime/stall_causes.hpp).
const CAUSES = {
  upload: "copies to the device", download: "copies from the device", storage_read: "reads from storage",
  storage_write: "writes to storage", optimizer: "optimizer updates on the host", comm: "communication",
  hand_over: "a thread to wake, after the work before it had ended",
  update_pass: "an update in a pass of its own (before a commit, or a redo)", unexplained: "an unknown cause: no instruction explains it",
};
function tracedStepText() {
  const traced = data.traced_step;
  if (!traced) {
    return data.run.tracks.length ? "The run's side is its traced step."
      : "The run has no traced step: it ended before its third step. Only the plan is shown.";
  }
  const text = "The run's side is step " + traced.step + ".";
  return traced.commits ? text + " This step also made the state durable (checkpoint.every): it moves more bytes than an"
    + " ordinary step, and a pending update is made before it. The plan is of an ordinary step." : text;
}
function stalls() {
  $("traced").textContent = tracedStepText();
  const traced = data.traced_step;
  if (!traced || !present(traced.compute_s) || !present(traced.stalled_s)) {
    return $("stalls").append(element("p", { class: "note" }, data.traced_step || data.run.tracks.length
      ? "The events of this run have no account of its stalls." : "No step was traced, so there is no account of stalls."));
  }
  const total = traced.compute_s + traced.stalled_s;
  const rows = [["compute ran", traced.compute_s], ...traced.by_cause.map((entry) => [CAUSES[entry.cause] ?? entry.cause, entry.seconds])];
  const share = (seconds, whole) => whole > 0 ? percent(seconds / whole) : "–";
  $("stalls").append(element("h3", {}, "Step " + traced.step + ": " + timeText(total * 1e9) + ", of which the compute lane stood still "
    + timeText(traced.stalled_s * 1e9) + " (" + share(traced.stalled_s, total) + ")"),
  table("", [["The compute lane", ""], ["Time", "number"], ["Share of the step", "number"], ["Share of the stalls", "number"]],
    rows.map(([cause, seconds], i) => [i === 0 ? cause : "waited for " + cause, timeText(seconds * 1e9), share(seconds, total),
      i === 0 ? "" : share(seconds, traced.stalled_s)])));
}

function ranks() {
  const rows = data.ranks;
  if (!rows) return;
  $("ranks-section").hidden = false;
  const slowest = rows.reduce((a, b) => (b.own_s ?? 0) > (a.own_s ?? 0) ? b : a);
  const why = slowest.cause ? "; besides computing it waited longest for " + (CAUSES[slowest.cause] ?? slowest.cause) : "";
  const time = (seconds) => present(seconds) ? timeText(seconds * 1e9) : "–";
  $("ranks").append(element("h3", {}, "Rank " + slowest.rank + " is the slowest: " + time(slowest.own_s) + " of its own" + why),
    table("", [["Rank", ""], ["Step", "number"], ["Time", "number"], ["Computed", "number"], ["Waited for other ranks", "number"]],
      rows.map((row) => [String(row.rank), String(row.step), time(row.total_s), time(row.compute_s), time(row.waited_s)])));
}

// A row for each rank, as papers draw pipelines.
function pipeline() {
  if (!data.pipeline) return;
  $("pipeline-section").hidden = false;
  if (!data.pipeline.one_clock) $("pipeline-note").append(" The ranks have different clocks, so each row begins at its own first pass.");
  const COLORS = { forward: "#0072b2", recompute: "#56b4e9", "backward input": "#009e73", "backward weight": "#e69f00" };
  const rows = data.pipeline.rows, ROW = 24, LEFT = 60, WIDTH = 960;
  const end = Math.max(1, ...rows.map((row) => row.passes.length ? row.passes.at(-1)[4] + row.passes.at(-1)[5] : 0));
  const x = (ns) => LEFT + (ns / end) * (WIDTH - LEFT);
  const picture = svg("svg", { viewBox: "0 0 " + WIDTH + " " + rows.length * ROW, role: "img", "aria-label": "Passes of each rank" });
  rows.forEach((row, i) => {
    picture.append(svg("text", { x: 0, y: i * ROW + 15 }, "rank " + row.rank));
    for (const [kind, first, last, microbatch, begin, duration] of row.passes) {
      const width = Math.max(x(begin + duration) - x(begin), 0.5);
      const units = first === last ? "unit " + first : "units " + first + " to " + last;
      picture.append(svg("rect", { x: x(begin), y: i * ROW + 2, width, height: ROW - 5, fill: COLORS[kind] },
        svg("title", {}, kind + " of micro-batch " + microbatch + ", " + units + ": " + timeText(duration))));
      if (width > 14) picture.append(svg("text", { x: x(begin) + width / 2, y: i * ROW + 15, "text-anchor": "middle", style: "fill:#fff;pointer-events:none" }, String(microbatch)));
    }
  });
  const legend = element("p", { class: "note" });
  for (const [kind, color] of Object.entries(COLORS)) {
    legend.append(element("span", { style: "display:inline-block;width:0.8em;height:0.8em;margin:0 0.3em 0 1em;background:" + color }), kind);
  }
  const worst = rows.reduce((a, b) => b.bubble > a.bubble ? b : a);
  $("pipeline").append(element("h3", {}, "The largest bubble is rank " + worst.rank + "'s: " + timeText(worst.bubble) + ", "
      + (worst.span > 0 ? percent(worst.bubble / worst.span) : "–") + " of its span"), picture, legend,
    table("", [["Rank", ""], ["Span", "number"], ["Computed", "number"], ["Bubble", "number"], ["Share", "number"]],
      rows.map((row) => [String(row.rank), timeText(row.span), timeText(row.compute), timeText(row.bubble), row.span > 0 ? percent(row.bubble / row.span) : "–"])));
}

header();
comparison();
busy();
curves();
memory();
stalls();
ranks();
pipeline();
