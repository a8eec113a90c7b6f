// Two reports side by side: what became faster or slower, what was added and removed.

import { stageTotals } from "./compile_view.js";
import { card, chip, empty, h, kindOf, table } from "./dom.js";
import { bytes, count, percent, plural, seconds, shortOperator } from "./format.js";
import { headline } from "./overview_view.js";
import { longTable } from "./pieces.js";

export const compareView = {
  id: "compare",
  title: "Compare",
  isShown: (report, previous) => Boolean(previous),
  render(context, main) {
    const { report, previous } = context;
    main.append(h("header", {}, h("h1", {}, "Compare"), h("p", {}, `${report.title} (${report.created.slice(0, 16).replace("T", " ")}) compared with ${previous.title} (${previous.created.slice(0, 16).replace("T", " ")})`)),
      h("div", { class: "cards" },
        h("div", { class: "half" }, card("Numbers", numbers(report, previous))), h("div", { class: "half" }, card("Versions and options", settings(report, previous))),
        card("Steps", steps(report, previous)), h("div", { class: "half" }, card("Operators", operators(report, previous))),
        h("div", { class: "half" }, card("Compile time by stage", stages(report, previous))),
        h("div", { class: "half" }, card("Guards", texts(report, previous, guardsOf))), h("div", { class: "half" }, card("Breaks and fallbacks", texts(report, previous, (each) => each.breaks.map((found) => `${found.kind}: ${found.name} ${found.at}`)))),
        (report.package || previous.package) && card("Package", packages(report, previous))));
  },
};

// Less is better.
export function delta(now, before, format) {
  if (before === now) return h("span", { class: "delta same" }, "same");
  const share = before ? now / before - 1 : null;
  const sign = now > before ? "+" : "−";
  return h("span", { class: `delta ${now > before ? "bad" : "good"}` }, `${sign}${format(Math.abs(now - before))}`, share === null ? "" : ` (${sign}${percent(Math.abs(share))})`);
}

function numbers(report, previous) {
  const [now, before] = [headline(report), headline(previous)];
  const kinds = (each, kind) => each.steps.filter((step) => kindOf(step.kind) === kind).length;
  const moved = (each) => each.steps.reduce((sum, step) => sum + step.moved, 0);
  const rows = [
    ["One call", report.timing?.compiled, previous.timing?.compiled, seconds], ["Time in steps", report.seconds, previous.seconds, seconds], ["Eager", report.timing?.eager, previous.timing?.eager, seconds],
    ["Compile time", now.compile, before.compile, seconds], ["Peak memory", now.peak, before.peak, bytes], ["Arena", now.arena, before.arena, bytes], ["Saved for the backward", now.saved, before.saved, bytes], ["Bytes moved", moved(report), moved(previous), bytes],
    ["Kernels", kinds(report, "kernel"), kinds(previous, "kernel"), count], ["Library calls", kinds(report, "library"), kinds(previous, "library"), count], ["Not native", report.breaks.length, previous.breaks.length, count],
    ["Graph nodes", report.graphs.reduce((sum, graph) => sum + graph.nodes.length, 0), previous.graphs.reduce((sum, graph) => sum + graph.nodes.length, 0), count]];
  return table(["", "#before", "#now", "#change"], rows.filter(([, one, other]) => typeof one === "number" && typeof other === "number" && (one || other)).map(([name, one, other, format]) => [name, format(other), format(one), delta(one, other, format)]));
}

function settings(report, previous) {
  const rows = [["model", report.title, previous.title], ...pairs(report.made_with, previous.made_with), ...pairs(report.options, previous.options)];
  const differing = rows.filter(([, now, before]) => now !== before);
  return differing.length ? table(["", "before", "now"], differing.map(([name, now, before]) => [name, h("code", {}, before ?? "–"), h("code", {}, now ?? "–")])) : empty("The same.");
}

const pairs = (now, before) => [...new Set([...Object.keys(now), ...Object.keys(before)])].map((name) => [name, now[name], before[name]]);

// Steps that do the same in the same place are matched in order.
function keyed(report) {
  const found = new Map();
  for (const step of report.steps) {
    const key = [step.graph.kind, kindOf(step.kind), step.title, step.module].join(" · ");
    const known = found.get(key) ?? { step, number: 0, seconds: 0, moved: 0 };
    known.number += 1;
    known.seconds += step.seconds;
    known.moved += step.moved;
    found.set(key, known);
  }
  return found;
}

function steps(report, previous) {
  const [now, before] = [keyed(report), keyed(previous)];
  const isTimed = report.seconds > 0 && previous.seconds > 0;
  const [field, format] = isTimed ? ["seconds", seconds] : ["moved", bytes];
  const rows = [...new Set([...now.keys(), ...before.keys()])].map((key) => ({ now: now.get(key), before: before.get(key) }));
  const change = (row) => Math.abs((row.now?.[field] ?? 0) - (row.before?.[field] ?? 0));
  rows.sort((a, b) => change(b) - change(a));
  const gone = rows.filter((row) => !row.now).length;
  const fresh = rows.filter((row) => !row.before).length;
  const shown = rows.filter((row) => !row.now || !row.before || change(row) > 0);
  return [h("p", { class: "muted", style: { "margin-bottom": "8px" } }, `${plural(fresh, "step")} new, ${plural(gone, "step")} gone, ${plural(rows.length - fresh - gone, "step")} in both; the largest differences first.`),
    shown.length ? longTable(["", "Operators", "Module", isTimed ? "#time before" : "#bytes before", "#now", "#change"], shown.map((row) => {
      const { step } = row.now ?? row.before;
      const state = !row.before ? chip("good", "new") : !row.now ? chip("bad", "gone") : chip(step.kind, kindOf(step.kind));
      return [state, row.now ? h("a", { class: "mono", href: `#kernels/${step.graph.place}.${step.number}` }, step.title) : h("code", {}, step.title), h("span", { class: "place" }, `${step.graph.kind} · ${step.module || "top level"}`), row.before ? format(row.before[field]) : "–", row.now ? format(row.now[field]) : "–", row.now && row.before ? delta(row.now[field], row.before[field], format) : ""];
    })) : empty("The same steps.")];
}

function operators(report, previous) {
  const counts = (each) => d3.rollup(each.graphs.flatMap((graph) => graph.nodes.filter((node) => node.operator)), (nodes) => nodes.length, (node) => shortOperator(node.operator));
  const [now, before] = [counts(report), counts(previous)];
  const rows = [...new Set([...now.keys(), ...before.keys()])].map((name) => [name, now.get(name) ?? 0, before.get(name) ?? 0]).filter(([, one, other]) => one !== other).sort((a, b) => Math.abs(b[1] - b[2]) - Math.abs(a[1] - a[2]));
  return rows.length ? longTable(["Operator", "#before", "#now", "#change"], rows.map(([name, one, other]) => [h("code", {}, name), count(other), count(one), delta(one, other, count)])) : empty("The same operators.");
}

function stages(report, previous) {
  const totals = (each) => new Map(stageTotals(each.stages.filter((stage) => !stage.detail)).map((stage) => [stage.name, stage.seconds]));
  const [now, before] = [totals(report), totals(previous)];
  const rows = [...new Set([...now.keys(), ...before.keys()])].map((name) => [name, now.get(name) ?? 0, before.get(name) ?? 0]);
  return rows.length ? table(["Stage", "#before", "#now", "#change"], rows.map(([name, one, other]) => [h("code", {}, name), seconds(other), seconds(one), delta(one, other, seconds)])) : empty("No stages.");
}

const guardsOf = (report) => report.variants.flatMap((variant) => [...variant.inputs, ...variant.sizes, ...variant.guards]);

function texts(report, previous, of) {
  const [now, before] = [of(report), of(previous)];
  const [added, removed] = [now.filter((each) => !before.includes(each)), before.filter((each) => !now.includes(each))];
  if (!added.length && !removed.length) return empty("The same.");
  const line = (kind, sign) => (each) => h("li", { class: kind }, h("code", {}, `${sign} ${each}`));
  return h("ol", { class: "code plain" }, removed.slice(0, 200).map(line("removed", "−")), added.slice(0, 200).map(line("added", "+")));
}

function packages(report, previous) {
  const [now, before] = [report.package?.files ?? {}, previous.package?.files ?? {}];
  return table(["File", "#before", "#now", "#change"], [...new Set([...Object.keys(now), ...Object.keys(before)])].map((name) => [h("code", {}, name), bytes(before[name] ?? 0), bytes(now[name] ?? 0), delta(now[name] ?? 0, before[name] ?? 0, bytes)]));
}
