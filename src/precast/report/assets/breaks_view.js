// What does not run as native code: graph breaks and eager fallbacks, each with its line, the reason and a fix.

import { card, chip, h } from "./dom.js";
import { count, plural } from "./format.js";
import { icon } from "./icons.js";

const TITLES = { "graph break": "Runs in Python", fallback: "Native code calls torch", torch: "Torch runs it between native segments" };

export const breaksView = {
  id: "breaks",
  title: "Breaks",
  isShown: (report) => report.graphs.some((graph) => graph.steps.length) || report.breaks.length > 0,
  isAlert: (report) => report.breaks.length > 0,
  badge: (report) => (report.breaks.length ? count(report.breaks.length) : "none"),
  render(context, main) {
    const { report } = context;
    main.append(h("header", {}, h("h1", {}, "Breaks and fallbacks"), h("p", {}, "What of the program does not run as native code, and how to change that.")));
    if (!report.breaks.length) {
      main.append(h("div", { class: "card all-well" }, icon("check"), h("h2", {}, "All of it runs as native code"), h("p", { class: "muted" }, "No graph breaks, no calls back into torch.")));
      return;
    }
    if (report.regions.length) main.append(regions(report));
    main.append(h("div", { class: "cards" }, alike(report.breaks).map(breakCard)));
  },
};

// The same operator on the same line is listed once.
function alike(breaks) {
  const found = new Map();
  for (const each of breaks) {
    const key = [each.kind, each.name, each.at, each.why].join("|");
    const known = found.get(key) ?? { ...each, number: 0, graphs: new Set() };
    known.number += 1;
    if (each.graph) known.graphs.add(each.graph);
    found.set(key, known);
  }
  return [...found.values()];
}

function breakCard(each) {
  return h("section", { class: "card break", "data-kind": each.kind },
    h("h2", {}, chip(each.kind), " ", h("span", { class: "mono" }, each.name), each.number > 1 ? ` ${each.number}×` : "", " ", h("span", { class: "faint" }, [...each.graphs].join(", "))),
    h("dl", { class: "facts" }, each.at && [h("dt", {}, "at"), h("dd", { class: "mono" }, each.at)], h("dt", {}, "what"), h("dd", {}, TITLES[each.kind]), h("dt", {}, "why"), h("dd", {}, each.why), h("dt", {}, h("b", {}, "fix")), h("dd", {}, h("b", {}, each.fix))));
}

function regions(report) {
  const python = report.regions.filter((each) => each.is_in_python);
  return h("div", { style: { "margin-bottom": "16px" } }, card(`Runs in pieces: ${plural(python.length, "part")} in Python, ${plural(report.regions.length - python.length, "part")} compiled`,
    h("div", { style: { display: "flex", "flex-wrap": "wrap", gap: "6px" } }, report.regions.map((each) => chip(each.is_in_python ? "bad" : "good", each.name)))));
}
