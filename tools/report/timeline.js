"use strict";
// Draws the lanes of plan and run on a canvas, which can be moved and zoomed. Uses page.js.

// Operations are coloured by group, from the palette of Okabe and Ito and some colours of our own.
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
    const GAP = 6, FULL_ROW = 17;
    let y = 26;
    for (const [title, side] of [["Plan", data.plan], ["Run", data.run]]) {
      this.labels.push({ y: y + 12, text: title, strong: true });
      y += 20;
      for (const track of side.tracks) {
        this.labels.push({ y: y + 13, text: track.rows > 6 ? track.name + " (" + track.rows + " at once)" : track.name });
        const rows = Array.from({ length: track.rows }, () => []);
        for (const span of track.spans) rows[span[0]].push(span);
        for (const spans of rows) {
          // Rows of a lane with many are thin, so that no lane is higher than six full rows.
          this.rows.push({ y, height: Math.max(track.row_pixels - (track.row_pixels === FULL_ROW ? 1 : 0), 0.5), spans, side, track });
          y += track.row_pixels;
        }
        y += GAP + Math.max(0, FULL_ROW - track.rows * track.row_pixels);
      }
      y += 8;
    }
    this.height = y;
    this.end = Math.max(data.plan.end, data.run.end, 1);
    this.canvas.style.height = this.height + "px";
  }
  fit() { this.from = 0; this.until = this.end * 1.01; this.draw(); }
  zoom(factor, anchor = (this.from + this.until) / 2) {
    // The page shows at least a microsecond, and at most the whole trace.
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
      // Spans thinner than a pixel share it: each pixel is filled once for each colour.
      if (end - x < 1) {
        if (Math.floor(x) === drawnTo && color === drawnColor) continue;
        drawnTo = Math.floor(x); drawnColor = color;
      }
      g.fillStyle = color;
      g.fillRect(x, row.y, Math.max(end - x - (end - x > 4 ? 0.7 : 0), 0.8), row.height);
      if (end - x > 34 && row.height >= 12) {
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

lanes();
