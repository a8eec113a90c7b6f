// The most important facts at a glance.

import { peakOf, roofShare } from "./data.js";
import { bar, card, chip, h, kindOf, table } from "./dom.js";
import { bytes, count, operations, percent, plural, seconds } from "./format.js";
import { legend, placeText, stepLink } from "./pieces.js";

const KINDS = [["kernel", "kernels"], ["library", "library calls"], ["torch", "calls into torch"], ["other", "checks and control flow"]];

export const overviewView = {
  id: "overview",
  title: "Overview",
  isShown: (report) => report.graphs.some((graph) => graph.steps.length) || !report.package,
  render(context, main) {
    const { report } = context;
    main.append(
      h("header", {}, h("h1", {}, report.title), chip("other", report.kind), h("p", {}, summary(report))),
      metrics(report),
      h("div", { class: "cards" },
        report.seconds > 0 && h("div", { class: "two-thirds" }, card("Where the time goes", slowest(report))),
        report.seconds > 0 && h("div", { class: "third" }, card("By kind", byKind(report), h("p", { style: { height: "14px" } }), card2("By graph", byGraph(report)))),
        report.seconds === 0 && h("div", { class: "two-thirds" }, card("What moves the most bytes", heaviest(report))),
        h("div", { class: "half" }, card("Graphs", graphTable(report))),
        h("div", { class: "half" }, card("Made with", facts({ ...report.made_with, written: report.created })), h("p", { style: { height: "16px" } }), card("Options", facts(report.options)))));
  },
};

const card2 = (title, ...children) => h("div", {}, h("h2", { style: { margin: "4px 0 8px" } }, title), children);

function summary(report) {
  const nodes = report.graphs.reduce((sum, graph) => sum + graph.nodes.length, 0);
  const fused = report.steps.filter((step) => kindOf(step.kind) === "kernel").length;
  const library = report.steps.filter((step) => kindOf(step.kind) === "library").length;
  return `${plural(nodes, "graph node")} became ${plural(fused, "kernel")} and ${plural(library, "library call")}.`;
}

export function headline(report) {
  const arena = report.graphs.reduce((most, graph) => Math.max(most, ...graph.arenas, 0), 0);
  const peak = Math.max(0, ...report.graphs.map((graph) => peakOf(graph).size));
  const saved = report.partitions.reduce((sum, each) => sum + each.saved_bytes, 0);
  const compile = report.variants.reduce((sum, each) => sum + each.seconds, 0);
  return { arena, peak, saved, compile };
}

function metrics(report) {
  const { arena, peak, saved, compile } = headline(report);
  const { timing } = report;
  const torch = report.breaks.length;
  const metric = (name, value, note) => h("div", { class: "metric" }, h("dt", {}, name), h("dd", { class: "value" }, value), note && h("dd", { class: "note" }, note));
  const faster = timing?.eager ? timing.eager / timing.compiled : null;
  return h("dl", { class: "metrics" },
    timing && metric(report.kind === "training" ? "One step" : "One call", seconds(timing.compiled), `the best of ${timing.calls}, timers included`),
    faster && metric("Against eager", `${faster.toFixed(2)}×`, `eager takes ${seconds(timing.eager)}`),
    metric("Steps", count(report.steps.length), `of ${plural(report.graphs.reduce((sum, graph) => sum + graph.nodes.length, 0), "node")}`),
    metric("Peak memory", bytes(peak), `arena ${bytes(arena)}`),
    report.partitions.length > 0 && metric("Saved for the backward", bytes(saved), `as in eager: ${bytes(report.partitions.reduce((sum, each) => sum + each.default_bytes, 0))}`),
    compile > 0 && metric("Compiled in", seconds(compile), plural(report.variants.length, "variant")),
    metric("Not native", count(torch), torch ? "see breaks and fallbacks" : "all of it runs native"));
}

function slowest(report) {
  const rows = grouped(report).slice(0, 12).map((group) => [
    chip(group.step.kind, kindOf(group.step.kind)), h("a", { href: `#kernels/${group.step.graph.place}.${group.step.number}`, class: "mono" }, group.step.title),
    group.number > 1 ? `${group.number}×` : "", seconds(group.seconds), [bar(group.seconds / report.seconds, kindOf(group.step.kind)), " ", percent(group.seconds / report.seconds)],
    group.share === null ? "–" : percent(group.share), h("span", { class: "place" }, group.place)]);
  return table(["", "Operators", "#times", "#time", "share", "#roofline", "line"], rows);
}

// Steps that do the same for the same line, the costliest first.
function grouped(report) {
  const groups = new Map();
  for (const step of report.steps) {
    const key = [step.graph.kind, step.kind, step.title, step.lines, step.moved, step.flops].join("|");
    const group = groups.get(key) ?? { step, number: 0, seconds: 0 };
    group.number += 1;
    group.seconds += step.seconds;
    groups.set(key, group);
  }
  return [...groups.values()].sort((a, b) => b.seconds - a.seconds).map((group) => {
    const line = report.lines[group.step.lines[group.step.lines.length - 1]];
    const share = roofShare(report, { ...group.step, seconds: group.seconds / group.number });
    return { ...group, share, place: line ? placeText(line) : group.step.module };
  });
}

function heaviest(report) {
  const steps = [...report.steps].sort((a, b) => b.moved - a.moved).slice(0, 12);
  return table(["Step", "#moves", "#work"], steps.map((step) => [stepLink({ report }, step), bytes(step.moved), operations(step.flops)]));
}

function byKind(report) {
  const totals = KINDS.map(([kind, name]) => {
    const own = report.steps.filter((step) => (KINDS.some(([known]) => known === kindOf(step.kind)) ? kindOf(step.kind) : "other") === kind);
    return { kind, name, steps: own.length, seconds: own.reduce((sum, step) => sum + step.seconds, 0) };
  }).filter((each) => each.steps);
  return [h("div", { class: "stack" }, totals.map((each) => h("i", { style: { width: `${(each.seconds / report.seconds) * 100}%`, background: `var(--${each.kind})` } }))),
    table(["", "#steps", "#time", "#share"], totals.map((each) => [legend([[each.name, `var(--${each.kind})`]]), count(each.steps), seconds(each.seconds), percent(each.seconds / report.seconds)]))];
}

function byGraph(report) {
  return table(["", "#time", "#share"], report.graphs.map((graph) => [graph.title, seconds(graph.seconds), percent(graph.seconds / report.seconds)]));
}

function graphTable(report) {
  return table(["Graph", "#nodes", "#steps", "#moves", "#work", "#arena", "#peak"], report.graphs.map((graph) => [
    h("a", { href: `#graph/${graph.place}` }, graph.title), count(graph.nodes.length), count(graph.steps.length),
    bytes(graph.steps.reduce((sum, step) => sum + step.moved, 0)), operations(graph.steps.reduce((sum, step) => sum + step.flops, 0)),
    bytes(Math.max(0, ...graph.arenas)), bytes(peakOf(graph).size)]));
}

export function facts(values) {
  return h("dl", { class: "facts" }, Object.entries(values).map(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, String(value))]));
}
