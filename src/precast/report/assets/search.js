// One search over steps, nodes, modules, lines and guards.

import { h, replaceContent } from "./dom.js";
import { shortOperator } from "./format.js";

const MOST_RESULTS = 60;

export function searchBox(context) {
  const results = h("div", { class: "results", role: "listbox", id: "search-results", hidden: true });
  const input = h("input", { type: "search", placeholder: "Search nodes, kernels, lines, guards", "aria-label": "Search the report", role: "combobox", "aria-controls": "search-results", "aria-expanded": "false", autocomplete: "off" });
  let entries = null;
  let selected = 0;

  function show() {
    entries ??= index(context.report);
    const words = input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const found = [];
    for (const entry of words.length ? entries : []) {
      if (words.every((word) => entry.text.includes(word))) found.push(entry);
      if (found.length >= MOST_RESULTS) break;
    }
    selected = 0;
    results.hidden = !words.length;
    input.setAttribute("aria-expanded", !results.hidden);
    replaceContent(results, found.length ? found.map((entry, place) =>
      h("button", { role: "option", tabindex: -1, "aria-selected": place === 0, onclick: () => go(entry) }, h("span", { class: "chip" }, entry.kind), h("span", { class: "what" }, entry.title), h("span", { class: "where" }, entry.where)))
      : h("p", { class: "empty" }, "Nothing found."));
    results.entries = found;
  }

  function go(entry) {
    results.hidden = true;
    input.blur();
    location.hash = entry.href;
  }

  function move(step) {
    const options = [...results.querySelectorAll("button")];
    if (!options.length) return;
    selected = (selected + step + options.length) % options.length;
    options.forEach((each, place) => each.setAttribute("aria-selected", place === selected));
    options[selected].scrollIntoView({ block: "nearest" });
  }

  input.addEventListener("input", show);
  input.addEventListener("focus", () => input.value && show());
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") move(1);
    else if (event.key === "ArrowUp") move(-1);
    else if (event.key === "Enter") results.entries?.[selected] && go(results.entries[selected]);
    else if (event.key === "Escape") {
      results.hidden = true;
      input.blur();
    } else return;
    event.preventDefault();
  });
  document.addEventListener("click", (event) => { if (!event.target.closest(".search")) results.hidden = true; });
  return h("div", { class: "search", role: "search" }, input, h("kbd", {}, "/"), results);
}

function index(report) {
  const entries = [];
  const add = (kind, title, where, href) => entries.push({ kind, title, where, href, text: `${title} ${where}`.toLowerCase() });
  for (const graph of report.graphs) {
    for (const step of graph.steps) add(step.kind, step.title, `${graph.title} · ${step.module || step.name}`, `#kernels/${graph.place}.${step.number}`);
  }
  for (const graph of report.graphs) {
    for (const node of graph.nodes) add("node", node.label || `${node.name} = ${shortOperator(node.operator) || node.kind}`, `${graph.title} · ${node.module}`, `#graph/${graph.place}.${node.number}`);
  }
  for (const variant of report.variants) for (const guard of variant.guards) add("guard", guard, "", "#guards");
  for (const each of report.passes) if (each.is_changing) add("pass", each.name, each.graph, "#passes");
  for (const weight of report.package?.weights ?? []) add("weight", weight.name, weight.value, "#package");
  return entries;
}
