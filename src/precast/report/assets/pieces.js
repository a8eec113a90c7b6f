// Small elements that several views share.

import { chip, h, replaceContent, table } from "./dom.js";
import { count, fileName } from "./format.js";

// The choice of the graph to show: a row of buttons.
export function graphChoice(context) {
  const { graphs } = context.report;
  if (graphs.length < 2) return null;
  return h("div", { class: "segmented", role: "group", "aria-label": "Graph" }, graphs.map((graph) =>
    h("button", { "aria-pressed": graph === context.graph, onclick: () => context.chooseGraph(graph) }, graph.title)));
}

export function stepLink(context, step) {
  return h("a", { href: `#kernels/${step.graph.place}.${step.number}`, title: step.name }, chip(step.kind), " ", h("span", { class: "mono" }, step.title));
}

export function placeText(line) {
  return `${fileName(line.file)}:${line.number}`;
}

export function placeLink(context, number, { withCode = true } = {}) {
  const line = context.report.lines[number];
  return line ? h("span", { class: "place", title: `${line.file}:${line.number} in ${line.function}: ${line.code}` }, placeText(line), withCode && h("span", { class: "faint" }, ` ${line.code}`)) : "";
}

export function legend(entries) {
  return h("div", { class: "legend" }, entries.map(([name, colour]) => h("span", {}, h("i", { style: { background: colour } }), name)));
}

// A tooltip beside the pointer; returns functions that show and hide it.
export function tip() {
  const element = h("div", { class: "tip", role: "tooltip", hidden: true });
  return {
    element,
    show(event, ...content) {
      element.replaceChildren(...content.flat().filter(Boolean));
      element.hidden = false;
      const { width, height } = element.getBoundingClientRect();
      element.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
      element.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
    },
    hide() { element.hidden = true; },
  };
}

// A table that shows its first rows, and all on demand.
export function longTable(head, rows, first = 100) {
  const holder = h("div");
  const more = h("button", { class: "tool", style: { "margin-top": "8px" }, onclick: () => replaceContent(holder, table(head, rows)) }, `Show all ${count(rows.length)}`);
  replaceContent(holder, table(head, rows.slice(0, first)), rows.length > first && more);
  return holder;
}
