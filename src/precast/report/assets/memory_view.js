// Memory over the steps: lifetimes, places in the arena, and the composition of the peak.

import { HELD, memoryOver, peakOf } from "./data.js";
import { card, h, replaceContent, svg, table } from "./dom.js";
import { byteTicks, bytes, count, shortened } from "./format.js";
import { graphChoice, stepLink, tip } from "./pieces.js";

const NAMES = { state: "parameters and buffers", input: "inputs", tangent: "incoming gradients", "passed on": "between segments", saved: "saved for the backward", gradient: "gradients", result: "results", temporary: "temporaries" };
const COLOURS = { state: "var(--state)", input: "var(--input)", tangent: "var(--tangent)", "passed on": "var(--passed)", saved: "var(--saved)", gradient: "var(--gradient)", result: "var(--result)", temporary: "var(--temporary)" };
const LEFT = 66;

export const memoryView = {
  id: "memory",
  title: "Memory",
  isShown: (report) => report.graphs.some((graph) => graph.buffers.length),
  badge: (report) => bytes(Math.max(0, ...report.graphs.map((graph) => peakOf(graph).size))),
  render: (context, main) => new MemoryPage(context, main),
};

class MemoryPage {
  constructor(context, main) {
    this.context = context;
    this.graph = context.graph.buffers.length ? context.graph : context.report.graphs.find((graph) => graph.buffers.length);
    this.rows = memoryOver(this.graph);
    this.peak = peakOf(this.graph);
    this.kinds = HELD.filter((kind) => this.rows.some((row) => row[kind]));
    // If parameters are most of it, nothing else would be visible beside them.
    this.hidden = new Set(this.rows[this.peak.step].state > this.peak.size * 0.6 ? ["state"] : []);
    this.step = this.peak.step;
    this.tip = tip();
    this.area = svg("svg", { class: "chart", height: 210, tabindex: 0, role: "slider", "aria-label": "Memory over the steps; arrow keys move", "aria-valuemin": 0, "aria-valuemax": this.rows.length - 1 });
    this.arena = svg("svg", { class: "chart", height: 270, role: "img", "aria-label": "Places in the arena over the steps" });
    this.alive = h("div");
    this.legend = h("div", { class: "legend" });
    const arenas = Math.max(0, ...this.graph.arenas);
    main.append(
      h("header", {}, h("h1", {}, "Memory"), graphChoice(context), h("p", {}, `The peak is ${bytes(this.peak.size)} in step ${this.peak.step}; temporaries share an arena of ${bytes(arenas)}. Point at a step, or use arrow keys.`)),
      h("div", { class: "cards" },
        h("div", { class: "two-thirds" }, card("Live memory at each step", this.legend, this.area, h("h2", { style: { margin: "14px 0 6px" } }, "The arena: offsets and lifetimes"), this.arena)),
        h("div", { class: "third" }, card(null, this.alive))), this.tip.element);
    this.area.addEventListener("keydown", (event) => this.onkey(event));
    for (const chart of [this.area, this.arena]) {
      chart.addEventListener("mousemove", (event) => this.point(event));
      chart.addEventListener("mouseleave", () => this.tip.hide());
    }
    new ResizeObserver(() => this.draw()).observe(this.area);
    this.draw();
    this.tell();
  }

  scale() { return d3.scaleLinear([0, Math.max(1, this.rows.length)], [LEFT, (this.area.clientWidth || 800) - 8]); }

  point(event) {
    const x = event.clientX - this.area.getBoundingClientRect().left;
    const step = Math.floor(this.scale().invert(x));
    if (step >= 0 && step < this.rows.length && step !== this.step) this.choose(step);
  }

  onkey(event) {
    const moves = { ArrowLeft: -1, ArrowRight: 1, PageUp: -20, PageDown: 20, Home: -1e9, End: 1e9 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    this.choose(Math.max(0, Math.min(this.rows.length - 1, this.step + moves[event.key])));
  }

  choose(step) {
    this.step = step;
    this.area.setAttribute("aria-valuenow", step);
    const x = this.scale()(step + 0.5);
    for (const line of [this.areaCross, this.arenaCross]) {
      line?.setAttribute("x1", x);
      line?.setAttribute("x2", x);
    }
    this.tell();
  }

  tell() {
    const row = this.rows[this.step];
    const total = this.kinds.reduce((sum, kind) => sum + row[kind], 0);
    const alive = this.graph.buffers.filter((each) => each.first <= this.step && this.step <= each.last && !this.hidden.has(each.kind)).sort((a, b) => b.size - a.size);
    const list = table(["", "#size"], alive.slice(0, 40).map((each) => [
      [h("i", { style: { display: "inline-block", width: "9px", height: "9px", "border-radius": "3px", background: COLOURS[each.kind], "margin-right": "7px" } }), h("span", { class: "mono", title: each.name }, shortened(each.name, 30)), h("div", { class: "faint mono", style: { "font-size": "11px", "padding-left": "16px" } }, each.value)], bytes(each.size)]));
    list.style.setProperty("--table-height", "330px");
    replaceContent(this.alive,
      h("h2", {}, `Step ${this.step}${this.step === this.peak.step ? " · the peak" : ""}`), h("p", { style: { margin: "2px 0 10px" } }, stepLink(this.context, this.graph.steps[this.step])),
      h("dl", { class: "facts", style: { "margin-bottom": "10px" } }, this.kinds.map((kind) => [h("dt", {}, NAMES[kind]), h("dd", { class: "number" }, bytes(row[kind]))]), h("dt", {}, h("b", {}, "together")), h("dd", { class: "number" }, h("b", {}, bytes(total)))),
      h("h3", { style: { margin: "6px 0" } }, `${count(alive.length)} live, the largest first`), list);
  }

  draw() {
    replaceContent(this.legend, this.kinds.map((kind) => h("button", { class: "tool", "aria-pressed": !this.hidden.has(kind), onclick: () => this.toggle(kind) }, h("i", { style: { background: COLOURS[kind] } }), NAMES[kind])));
    this.drawArea();
    this.drawArena();
  }

  toggle(kind) {
    if (this.hidden.has(kind)) this.hidden.delete(kind);
    else this.hidden.add(kind);
    this.draw();
    this.tell();
  }

  drawArea() {
    const kinds = this.kinds.filter((kind) => !this.hidden.has(kind));
    const x = this.scale();
    const height = 186;
    // Drawn as steps: memory changes between them, not within them.
    const rows = [...this.rows, this.rows[this.rows.length - 1] ?? {}];
    const stacked = d3.stack().keys(kinds)(rows);
    const y = d3.scaleLinear([0, d3.max(stacked.flat(), (each) => each[1]) || 1], [height, 8]);
    const area = d3.area().x((_, place) => x(place)).y0((each) => y(each[0])).y1((each) => y(each[1])).curve(d3.curveStepAfter);
    this.areaCross = this.cross(height);
    this.area.replaceChildren(this.axis(d3.axisLeft(y).tickValues(byteTicks(y.domain()[1], 4)).tickFormat(bytes), LEFT, 0), this.axis(d3.axisBottom(x).ticks(8), 0, height),
      ...stacked.map((each) => svg("path", { d: area(each), fill: COLOURS[each.key], "fill-opacity": 0.85 })), this.areaCross);
  }

  drawArena() {
    const x = this.scale();
    const height = 246;
    const placed = this.graph.buffers.filter((each) => each.offset !== null);
    const size = Math.max(1, ...this.graph.arenas);
    const y = d3.scaleLinear([0, size], [height, 8]);
    // One hue, since all of them are temporaries; shades distinguish neighbours.
    const shade = (place) => `color-mix(in srgb, var(--temporary) ${[85, 45, 65][place % 3]}%, var(--panel))`;
    this.arenaCross = this.cross(height);
    const boxes = placed.map((each, place) => {
      const width = Math.max(1, x(each.last + 1) - x(each.first) - 0.6);
      const box = svg("rect", { x: x(each.first), y: y(each.offset + each.size), width, height: Math.max(0.7, y(each.offset) - y(each.offset + each.size)), rx: 2, fill: shade(place) });
      box.addEventListener("mousemove", (event) => this.tip.show(event, h("b", { class: "mono" }, each.name), h("div", {}, `${each.value} · ${bytes(each.size)}`), h("div", { class: "muted" }, `steps ${each.first} to ${each.last}, at ${bytes(each.offset)}`)));
      box.addEventListener("mouseleave", () => this.tip.hide());
      return box;
    });
    this.arena.replaceChildren(this.axis(d3.axisLeft(y).tickValues(byteTicks(size, 5)).tickFormat(bytes), LEFT, 0), this.axis(d3.axisBottom(x).ticks(8), 0, height), ...boxes, this.arenaCross);
    if (!placed.length) this.arena.append(svg("text", { x: LEFT + 20, y: 60 }, "No temporaries: every step writes into results."));
  }

  cross(height) {
    const x = this.scale()(this.step + 0.5);
    return svg("line", { class: "cross", x1: x, x2: x, y1: 6, y2: height });
  }

  axis(axis, x, y) {
    const group = svg("g", { class: "axis", transform: `translate(${x},${y})` });
    d3.select(group).call(axis);
    return group;
  }
}
