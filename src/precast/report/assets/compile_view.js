// How the time of the compilation was spent: stages on their threads, and the files that were built.

import { bar, card, chip, h, svg, table } from "./dom.js";
import { count, percent, plural, seconds, shortened } from "./format.js";
import { tip } from "./pieces.js";

const STAGE_ROW = 20;
const WORDS_OF_STAGES = {
  prepare: "capture: a flat function over fake inputs", analyze: "functionalize: what mutates, what aliases", trace_joint: "trace forward and gradients",
  trace_inference: "trace the forward", native_partition: "partition: what to save", rewrite_graph: "rewrite the graph", split_graph: "split into native and torch segments",
  lower_graph: "lower operators to loops", run_loop_passes: "fuse loops", plan: "plan memory", verify_loops: "verify loops", verify_plan: "verify the plan", generate: "generate code",
  build: "build: compile and link C++", "CallParts.assemble": "assemble the call",
};

export const compileView = {
  id: "compile",
  title: "Compile time",
  isShown: (report) => report.stages.length > 0,
  badge: (report) => seconds(report.variants.reduce((sum, each) => sum + each.seconds, 0)),
  render(context, main) {
    const { report } = context;
    const shown = tip();
    const units = report.stages.filter((each) => each.detail);
    const stages = report.stages.filter((each) => !each.detail);
    const built = units.filter((each) => each.detail === "compiled");
    main.append(h("header", {}, h("h1", {}, "Compile time"), h("p", {}, units.length ? `${plural(built.length, "file")} compiled, ${count(units.length - built.length)} found in the cache.` : "Stages of the compilation, with nested ones inside.")),
      h("div", { class: "cards" }, card("Timeline", timeline(report, shown)), h("div", { class: "half" }, card("By stage", byStage(stages))), units.length > 0 && h("div", { class: "half" }, card("Built files", unitTable(units)))), shown.element);
  },
};

// Nest the stages of a thread: inner ones start later and end earlier.
function nested(stages) {
  const open = [];
  return [...stages].sort((a, b) => a.started - b.started || b.seconds - a.seconds).map((stage) => {
    while (open.length && open[open.length - 1].started + open[open.length - 1].seconds <= stage.started + 1e-9) open.pop();
    const placed = { ...stage, depth: open.length, own: stage.seconds, around: open[open.length - 1] };
    if (placed.around) placed.around.own -= stage.seconds;
    open.push(placed);
    return placed;
  });
}

function threads(stages) {
  const lanes = new Map();
  for (const stage of stages) lanes.set(stage.thread, [...(lanes.get(stage.thread) ?? []), stage]);
  return [...lanes.entries()].sort((a, b) => a[0] - b[0]).map(([thread, own]) => [thread, nested(own)]);
}

function timeline(report, shown) {
  const end = Math.max(...report.stages.map((each) => each.started + each.seconds));
  const lanes = threads(report.stages);
  const rows = lanes.map(([, own]) => 1 + Math.max(...own.map((each) => each.depth)));
  const height = rows.reduce((sum, each) => sum + each * STAGE_ROW + 10, 0);
  const chart = svg("svg", { class: "chart", height: height + 26, role: "img", "aria-label": "Timeline of the compilation" });
  const draw = () => {
    const width = chart.clientWidth || 1000;
    const x = d3.scaleLinear([0, end], [70, width - 8]);
    const axis = svg("g", { class: "axis", transform: `translate(0,${height})` });
    d3.select(axis).call(d3.axisBottom(x).ticks(8).tickFormat((value) => seconds(value)));
    const parts = [axis];
    let top = 0;
    lanes.forEach(([thread, own], place) => {
      parts.push(svg("text", { x: 0, y: top + 14 }, place ? `thread ${thread}` : "main"));
      for (const stage of own) {
        const wide = Math.max(1, x(stage.started + stage.seconds) - x(stage.started));
        const kind = stage.detail ? "torch" : stage.name === "build" ? "library" : "kernel";
        const frame = svg("g", { class: "frame", transform: `translate(${x(stage.started)},${top + stage.depth * STAGE_ROW})` }, svg("rect", { width: wide, height: STAGE_ROW - 2, rx: 3, fill: `var(--${kind})` }), wide > 40 && svg("text", { x: 5, y: 13 }, shortened(stage.name, Math.floor((wide - 8) / 6.2))));
        frame.addEventListener("mousemove", (event) => shown.show(event, h("b", {}, WORDS_OF_STAGES[stage.name] ?? stage.name), h("div", {}, seconds(stage.seconds)), h("div", { class: "muted" }, [stage.graph, stage.detail].filter(Boolean).join(" · "))));
        frame.addEventListener("mouseleave", () => shown.hide());
        parts.push(frame);
      }
      top += rows[place] * STAGE_ROW + 10;
    });
    chart.replaceChildren(...parts);
  };
  new ResizeObserver(draw).observe(chart);
  return chart;
}

export function stageTotals(stages) {
  const totals = new Map();
  for (const [, own] of threads(stages)) {
    for (const stage of own) {
      const known = totals.get(stage.name) ?? { name: stage.name, number: 0, seconds: 0 };
      known.number += 1;
      known.seconds += stage.own;
      totals.set(stage.name, known);
    }
  }
  return [...totals.values()].sort((a, b) => b.seconds - a.seconds);
}

function byStage(stages) {
  const totals = stageTotals(stages);
  const whole = totals.reduce((sum, each) => sum + each.seconds, 0);
  return table(["Stage", "#times", "#time", "share"], totals.map((each) => [[h("code", {}, each.name), h("div", { class: "faint", style: { "font-size": "12px" } }, WORDS_OF_STAGES[each.name] ?? "")], count(each.number), seconds(each.seconds), [bar(each.seconds / whole), " ", percent(each.seconds / whole)]]));
}

function unitTable(units) {
  const rows = [...units].sort((a, b) => b.seconds - a.seconds);
  return table(["File", "#time", ""], rows.map((each) => [h("code", {}, each.name), seconds(each.seconds), chip(each.detail === "compiled" ? "torch" : "good", each.detail)]));
}
