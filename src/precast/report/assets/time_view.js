// Where the time goes: a flame chart of one step, by module, and every step against the machine's roofline.

import { roofShare } from "./data.js";
import { bar, card, chip, h, kindOf, svg, table } from "./dom.js";
import { bytes, count, operations, percent, rate, seconds, shortened } from "./format.js";
import { legend, tip } from "./pieces.js";

const FRAME_ROW = 21;
const colour = (kind) => `var(--${["kernel", "library", "torch"].includes(kindOf(kind)) ? kindOf(kind) : "other"})`;

export const timeView = {
  id: "time",
  title: "Time",
  isShown: (report) => report.seconds > 0,
  badge: (report) => seconds(report.seconds),
  render(context, main) {
    const { report } = context;
    const shown = tip();
    const flame = new FlameChart(report, shown);
    main.append(
      h("header", {}, h("h1", {}, "Time"), h("p", {}, `${seconds(report.seconds)} in ${count(report.steps.length)} steps, each at its fastest of ${report.timing?.calls ?? 1} calls. Click to zoom, double-click a step to see its code; with the keyboard, arrows move, + and − zoom, 0 shows all.`)),
      h("div", { class: "cards" },
        card("Flame chart", flame.element, legend([["kernel", "var(--kernel)"], ["library call", "var(--library)"], ["torch", "var(--torch)"], ["module", "var(--other-soft)"]])),
        h("div", { class: "half" }, card("Against the roofline", roofline(report, shown))),
        h("div", { class: "half" }, card("Steps, the slowest first", slowSteps(report)))),
      shown.element);
    flame.draw();
  },
};

// Frames of modules around those of steps, side by side in execution order.
export function flameFrames(report) {
  const frames = [];
  let start = 0;
  for (const graph of report.graphs) {
    if (!graph.seconds) continue;
    frames.push({ name: graph.title, depth: 0, start, seconds: graph.seconds });
    const open = [];
    for (const step of graph.steps) {
      const names = step.module ? step.module.split(".") : [];
      let same = 0;
      while (same < open.length && same < names.length && open[same].name === names[same]) same += 1;
      open.length = same;
      for (const name of names.slice(same)) {
        const frame = { name, path: names.slice(0, open.length + 1).join("."), kind: report.modules[names.slice(0, open.length + 1).join(".")], depth: open.length + 1, start: start + step.started, seconds: 0 };
        open.push(frame);
        frames.push(frame);
      }
      for (const frame of open) frame.seconds += step.seconds;
      frames.push({ name: step.title, step, depth: open.length + 1, start: start + step.started, seconds: step.seconds });
    }
    start += graph.seconds;
  }
  return frames;
}

class FlameChart {
  constructor(report, shown) {
    this.report = report;
    this.tip = shown;
    this.frames = flameFrames(report);
    this.domain = [0, report.seconds];
    this.rows = 1 + Math.max(...this.frames.map((frame) => frame.depth));
    this.svg = svg("svg", { class: "chart flame", height: this.rows * FRAME_ROW + 26, tabindex: 0, role: "img", "aria-label": "Flame chart of the time of one step" });
    this.svg.addEventListener("keydown", (event) => this.onkey(event));
    this.svg.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, (event.offsetX / this.width()) * (this.domain[1] - this.domain[0]) + this.domain[0]);
    }, { passive: false });
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.element = h("div", {}, this.svg);
  }

  width() { return this.svg.clientWidth || 1000; }

  zoom(factor, around = (this.domain[0] + this.domain[1]) / 2) {
    const [first, last] = this.domain;
    this.show(around - (around - first) * factor, around + (last - around) * factor);
  }

  show(first, last) {
    const whole = this.report.seconds;
    const length = Math.min(whole, Math.max(last - first, whole / 1e5));
    const start = Math.max(0, Math.min(first, whole - length));
    this.domain = [start, start + length];
    this.draw();
  }

  onkey(event) {
    const length = this.domain[1] - this.domain[0];
    const moves = { ArrowLeft: -0.2, ArrowRight: 0.2 };
    if (event.key in moves) this.show(this.domain[0] + moves[event.key] * length, this.domain[1] + moves[event.key] * length);
    else if (event.key === "+" || event.key === "=") this.zoom(0.6);
    else if (event.key === "-") this.zoom(1 / 0.6);
    else if (event.key === "0" || event.key === "Escape") this.show(0, this.report.seconds);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  draw() {
    const scale = d3.scaleLinear(this.domain, [0, this.width()]);
    const [first, last] = this.domain;
    const seen = this.frames.filter((frame) => frame.start < last && frame.start + frame.seconds > first && scale(frame.start + frame.seconds) - scale(frame.start) > 0.4);
    const axis = svg("g", { class: "axis", transform: `translate(0,${this.rows * FRAME_ROW + 4})` });
    d3.select(axis).call(d3.axisBottom(scale).ticks(8).tickFormat((value) => seconds(value)));
    this.svg.replaceChildren(...seen.map((frame) => this.frame(frame, scale)), axis);
  }

  frame(frame, scale) {
    const left = Math.max(0, scale(frame.start));
    const width = Math.min(this.width(), scale(frame.start + frame.seconds)) - left;
    const text = frame.kind ? `${frame.name} ${frame.kind}` : frame.name;
    const element = svg("g", { class: frame.step ? "frame" : "frame module", transform: `translate(${left},${frame.depth * FRAME_ROW})` },
      svg("rect", { width: Math.max(0.5, width), height: FRAME_ROW - 1, rx: 3, fill: frame.step ? colour(frame.step.kind) : null }),
      width > 34 && svg("text", { x: 6, y: 14 }, shortened(text, Math.max(2, Math.floor((width - 10) / 6.4)))));
    element.addEventListener("click", () => this.show(frame.start, frame.start + frame.seconds));
    if (frame.step) element.addEventListener("dblclick", () => { location.hash = `#kernels/${frame.step.graph.place}.${frame.step.number}`; });
    element.addEventListener("mousemove", (event) => this.tip.show(event, h("b", {}, frame.path ?? frame.name), h("div", {}, `${seconds(frame.seconds)}, ${percent(frame.seconds / this.report.seconds)} of the step`), frame.step && stepFacts(this.report, frame.step)));
    element.addEventListener("mouseleave", () => this.tip.hide());
    return element;
  }
}

function stepFacts(report, step) {
  const share = roofShare(report, step);
  return h("div", { class: "muted" }, `${step.kind} · moves ${bytes(step.moved)}`, step.flops ? ` · ${operations(step.flops)}` : "", share ? ` · ${percent(share)} of roofline` : "", h("div", { class: "mono" }, step.module));
}

function roofline(report, shown) {
  const { peak } = report;
  const points = report.steps.filter((step) => step.flops && step.seconds && step.moved).map((step) => ({ step, x: step.flops / step.moved, y: step.flops / step.seconds }));
  if (!peak || !points.length) return h("p", { class: "empty" }, "No step computes enough to be placed.");
  const [width, height, left, bottom] = [620, 330, 46, 40];
  const ridge = peak.flops_a_second / peak.bytes_a_second;
  const x = d3.scaleLog([Math.min(d3.min(points, (each) => each.x), ridge / 8) / 1.5, Math.max(d3.max(points, (each) => each.x), ridge * 4) * 1.5], [left, width - 12]);
  const y = d3.scaleLog([d3.min(points, (each) => each.y) / 2, Math.max(peak.flops_a_second, d3.max(points, (each) => each.y)) * 2], [height - bottom, 12]);
  const radius = d3.scaleSqrt([0, d3.max(points, (each) => each.step.seconds)], [2.5, 13]);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Steps against the roofline" });
  const axes = [[d3.axisBottom(x).ticks(6, "~g"), `translate(0,${height - bottom})`], [d3.axisLeft(y).ticks(5, "~s"), `translate(${left},0)`]];
  for (const [axis, transform] of axes) {
    const group = svg("g", { class: "axis", transform });
    d3.select(group).call(axis);
    chart.append(group);
  }
  const roof = [[x.domain()[0], x.domain()[0] * peak.bytes_a_second], [ridge, peak.flops_a_second], [x.domain()[1], peak.flops_a_second]];
  chart.append(svg("path", { class: "roof", d: d3.line((each) => x(each[0]), (each) => y(Math.max(each[1], y.domain()[0])))(roof) }),
    svg("text", { x: width - 14, y: y(peak.flops_a_second) - 7, "text-anchor": "end" }, `${rate(peak.flops_a_second, "FLOP")} · ${rate(peak.bytes_a_second, "B")} · ${peak.threads} thread${peak.threads === 1 ? "" : "s"}`),
    svg("text", { x: (width + left) / 2, y: height - 4, "text-anchor": "middle" }, "operations per byte moved"), svg("text", { x: left + 8, y: 12 }, "FLOP/s"));
  for (const { step, x: at, y: reached } of points.sort((a, b) => b.step.seconds - a.step.seconds)) {
    const dot = svg("circle", { class: "dot", cx: x(at), cy: y(reached), r: radius(step.seconds), fill: colour(step.kind), "fill-opacity": 0.75 });
    dot.addEventListener("mousemove", (event) => shown.show(event, h("b", {}, step.title), h("div", {}, `${seconds(step.seconds)} · ${rate(reached, "FLOP")}`), stepFacts(report, step)));
    dot.addEventListener("mouseleave", () => shown.hide());
    dot.addEventListener("click", () => { location.hash = `#kernels/${step.graph.place}.${step.number}`; });
    chart.append(dot);
  }
  return [chart, h("p", { class: "faint", style: { "font-size": "12px" } }, "Above the roof: its data stayed in a cache. Size: time.")];
}

function slowSteps(report) {
  const steps = [...report.steps].sort((a, b) => b.seconds - a.seconds).slice(0, 60);
  const element = table(["Step", "#time", "share", "#roofline"], steps.map((step) => [
    h("a", { href: `#kernels/${step.graph.place}.${step.number}` }, chip(step.kind, kindOf(step.kind)), " ", h("span", { class: "mono" }, shortened(step.title, 40)), h("div", { class: "faint sub", style: { "font-size": "11.5px" } }, `${step.graph.title} · ${step.module || "top level"}`)),
    seconds(step.seconds), [bar(step.seconds / report.seconds, kindOf(step.kind)), " ", percent(step.seconds / report.seconds)], percent(roofShare(report, step) ?? 0)]));
  element.style.setProperty("--table-height", "380px");
  return element;
}
