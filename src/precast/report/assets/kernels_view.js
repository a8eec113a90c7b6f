// Every kernel and library call: the user's lines, the ATen nodes, the loop program and the generated code, side by side.
// Pointing at one of them highlights what belongs to it in the others.

import { codeLines, codeView } from "./code.js";
import { roofShare } from "./data.js";
import { bar, chip, empty, h, kindOf, replaceContent } from "./dom.js";
import { bytes, count, fileName, operations, percent, rate, seconds } from "./format.js";
import { virtualList } from "./list.js";
import { graphChoice } from "./pieces.js";

const STEP_ROW = 46;
const COLUMNS = [["source", "Your code"], ["nodes", "ATen"], ["loops", "Loop program"], ["code", "Generated code"]];

export const kernelsView = {
  id: "kernels",
  title: "Kernels",
  isFull: true,
  isShown: (report) => report.steps.length > 0,
  badge: (report) => count(report.steps.length),
  render: (context, main) => new KernelsPage(context, main),
};

class KernelsPage {
  constructor(context, main) {
    this.context = context;
    this.report = context.report;
    this.order = context.settings.order ?? "run";
    this.hidden = (context.settings.hidden ??= new Set());
    this.list = virtualList({ rowHeight: STEP_ROW, label: "Steps", render: (step) => this.row(step), onselect: (step) => this.choose(step) });
    this.filter = h("input", { class: "filter", type: "search", placeholder: "Filter by operator, module, line", "aria-label": "Filter steps", oninput: () => this.fill() });
    this.head = h("div", { class: "step-head" });
    const lit = (event) => this.light(event.target);
    this.columns = h("div", { class: "columns", onmouseover: lit, onfocusin: lit, onmouseleave: () => this.light(null) });
    const choice = h("div", { class: "segmented", role: "group", "aria-label": "Order" }, [["run", "As run"], ["time", "Slowest first"], ["bytes", "Most bytes"]].map(([order, text]) =>
      h("button", { "aria-pressed": order === this.order, onclick: (event) => this.sort(order, event) }, text)));
    const toggles = COLUMNS.map(([id, text]) => h("button", { class: "tool", "aria-pressed": !this.hidden.has(id), onclick: (event) => this.toggle(id, event) }, text));
    main.append(
      h("header", {}, h("h1", {}, "Kernels"), graphChoice(context), choice, h("span", { style: { flex: 1 } }), toggles),
      h("div", { class: "split" },
        h("section", { class: "pane", style: { width: "264px", flex: "none" } }, h("div", { class: "pane-head" }, this.filter), this.list.element),
        h("section", { class: "pane", style: { flex: 1 } }, this.head, this.columns)));
    this.slowest = Math.max(...context.graph.steps.map((step) => step.seconds), 1e-12);
    this.fill(context.target === undefined ? slowestOf(context.graph.steps) : context.graph.steps[Number(context.target)]);
  }

  fill(wanted) {
    const words = this.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = (step) => `${step.name} ${step.kind} ${step.title} ${step.module} ${step.lines.map((each) => this.report.lines[each].code)}`.toLowerCase();
    const steps = this.context.graph.steps.filter((step) => words.every((word) => text(step).includes(word)));
    if (this.order === "time") steps.sort((a, b) => b.seconds - a.seconds);
    if (this.order === "bytes") steps.sort((a, b) => b.moved - a.moved);
    const place = Math.max(0, steps.indexOf(wanted ?? this.step));
    this.list.setItems(steps, steps.length ? place : -1);
    if (steps.length) this.choose(steps[place]);
    else replaceContent(this.columns, empty("No step matches."));
  }

  sort(order, event) {
    this.order = this.context.settings.order = order;
    for (const each of event.target.parentElement.children) each.setAttribute("aria-pressed", each === event.target);
    this.fill();
  }

  toggle(id, event) {
    if (this.hidden.has(id)) this.hidden.delete(id);
    else this.hidden.add(id);
    event.target.setAttribute("aria-pressed", !this.hidden.has(id));
    this.choose(this.step);
  }

  row(step) {
    return h("div", { title: step.name },
      h("span", { class: "faint number", style: { width: "34px", flex: "none" } }, step.number),
      h("span", { class: "grow" }, h("span", { class: "mono" }, step.title), h("br"), h("span", { class: "faint", style: { "font-size": "11.5px" } }, step.module || "top level")),
      h("span", { style: { "text-align": "right" } }, chip(step.kind, kindOf(step.kind)), h("br"), step.seconds ? h("span", { class: "number muted", style: { "font-size": "11.5px" } }, seconds(step.seconds)) : h("span", { class: "number faint", style: { "font-size": "11.5px" } }, bytes(step.moved))),
      step.seconds ? h("i", { style: { position: "absolute", left: 0, bottom: 0, height: "2px", width: `${(step.seconds / this.slowest) * 100}%`, background: `var(--${kindOf(step.kind)}, var(--other))` } }) : null);
  }

  choose(step) {
    this.step = step;
    this.context.remember(`${step.graph.place}.${step.number}`);
    this.nodes = step.nodes.map((each) => this.context.graph.nodes[each]);
    this.describe(step);
    const makers = { source: () => this.source(step), nodes: () => this.aten(step), loops: () => this.code(step.loops, "python", "This step is not a loop program."), code: () => this.code(step.code, "cpp", "Torch runs this step.") };
    replaceContent(this.columns, COLUMNS.filter(([id]) => !this.hidden.has(id)).map(([id, text]) =>
      h("section", { class: "pane", "data-column": id, "aria-label": text }, h("div", { class: "pane-head" }, h("h3", {}, text)), h("div", { class: "pane-body", tabindex: 0 }, makers[id]()))));
  }

  describe(step) {
    const share = roofShare(this.report, step);
    const fact = (name, value) => Boolean(value) && h("span", { class: "fact" }, `${name} `, h("b", {}, value));
    replaceContent(this.head, chip(step.kind), h("h2", {}, step.title), step.times > 1 && chip("other", `${step.times} tensors as one`),
      fact("time", step.seconds && seconds(step.seconds)), fact("share", step.seconds && percent(step.seconds / step.graph.seconds)),
      fact("moves", bytes(step.moved)), fact("work", step.flops && operations(step.flops)),
      fact("reaches", step.seconds && (step.flops / step.seconds > step.moved / step.seconds ? rate(step.flops / step.seconds, "FLOP") : rate(step.moved / step.seconds, "B"))),
      Boolean(share) && h("span", { class: "fact", title: "Of what this machine can do; above 100 % where data stayed in a cache" }, "of roofline ", h("b", {}, percent(share)), " ", bar(share, kindOf(step.kind))),
      h("span", { class: "fact" }, h("a", { href: `#graph/${step.graph.place}.${step.nodes[0] ?? 0}` }, "show in graph")));
  }

  source(step) {
    const used = new Map(step.lines.map((each) => [`${this.report.lines[each].file}:${this.report.lines[each].number}`, each]));
    if (!used.size) return empty(step.module ? `No line of yours: ${step.module} is torch's own code.` : "No line of yours.");
    const parts = this.report.excerpts.filter((excerpt) => step.lines.some((each) => this.holds(excerpt, this.report.lines[each])));
    const known = parts.map((excerpt) => [h("div", { class: "file-name", title: excerpt.file }, fileName(excerpt.file)),
      codeView(codeLines(dedented(excerpt.lines).join("\n")), { start: excerpt.start, label: excerpt.file, decorate: (element, number) => {
        const line = used.get(`${excerpt.file}:${number}`);
        if (line === undefined) return;
        element.classList.add("used");
        element.tabIndex = 0;
        element.dataset.line = line;
      } })]);
    const shown = h("div", {}, known.length ? known : step.lines.map((each) => h("p", { class: "file-name" }, `${this.report.lines[each].file}:${this.report.lines[each].number}`, h("br"), this.report.lines[each].code)));
    requestAnimationFrame(() => shown.querySelector(".used")?.scrollIntoView({ block: "center" }));
    return shown;
  }

  holds(excerpt, line) {
    return excerpt.file === line.file && line.number >= excerpt.start && line.number < excerpt.start + excerpt.lines.length;
  }

  aten(step) {
    const graph = this.context.graph;
    const inputs = [...new Set(this.nodes.flatMap((node) => node.inputs))].filter((each) => !step.nodes.includes(each)).map((each) => graph.nodes[each]);
    const row = (node, isInput) => h("button", { class: "node-row", "data-family": node.name, "data-line": isInput ? null : node.line, ondblclick: () => { location.hash = `#graph/${graph.place}.${node.number}`; } },
      isInput ? h("span", { class: "faint" }, "reads ") : "", h("b", {}, node.name), h("span", { class: "faint" }, `: ${node.value}`),
      h("span", { class: "sub" }, isInput ? originOf(this.rootOf(node), node) : `${node.operator.replace(/^aten\./, "")}(${node.arguments})`));
    return [this.nodes.map((node) => row(node, false)), inputs.map((node) => row(node, true))];
  }

  // The base of a view, which no step computes.
  rootOf(node) {
    while (node.kind === "operator" && !node.steps.length && node.inputs.length) node = this.context.graph.nodes[node.inputs[0]];
    return node;
  }

  code(number, fallback, nothing) {
    if (number === null) return empty(nothing);
    // Kernels for GPUs are written in Triton.
    const language = this.report.texts[number].includes("@triton.jit") ? "python" : fallback;
    const inputs = this.nodes.flatMap((node) => node.inputs.map((each) => this.context.graph.nodes[each]));
    // Code reads the base of a view: it is highlighted with the view here.
    const families = new Map([...inputs.map((node) => [this.rootOf(node).name, node.name]), ...[...inputs, ...this.nodes].map((node) => [node.name, node.name])]);
    const known = [...families.keys()].sort((a, b) => b.length - a.length);
    const familyOf = (name) => families.get(name) ?? families.get(known.find((each) => name.startsWith(`${each}_`)));
    return codeView(codeLines(this.report.texts[number], { language, familyOf }), { label: "code" });
  }

  // A name highlights its family; a line of source all nodes that come from it; a node its line too.
  light(target) {
    const at = target?.closest?.("[data-family], [data-line]");
    const families = new Set();
    const lines = new Set();
    if (at) {
      if (at.dataset.family) families.add(at.dataset.family);
      else for (const node of this.nodes) if (String(node.line) === at.dataset.line) families.add(node.name);
      if (at.dataset.line) lines.add(at.dataset.line);
      for (const node of this.nodes) if (families.has(node.name) && node.line !== null) lines.add(String(node.line));
    }
    for (const element of this.columns.querySelectorAll("[data-family], [data-line], [data-families]")) {
      const { family, line, families: inside } = element.dataset;
      const isLit = family ? families.has(family) : line ? lines.has(line) : [...families].some((each) => inside.includes(` ${each} `));
      element.classList.toggle("lit", isLit);
    }
  }
}

// The default selection: the most expensive step, in time or, if nothing was timed, in bytes.
function slowestOf(steps) {
  return d3.greatest(steps, (step) => step.seconds || step.moved / 1e15);
}

function dedented(lines) {
  const depths = lines.filter((line) => line.trim()).map((line) => /^ */.exec(line)[0].length);
  const depth = Math.min(...depths, 40);
  return lines.map((line) => line.slice(depth));
}

function originOf(root, node) {
  const name = root.label || (root === node ? "" : root.name);
  return root === node || !name ? name : `of ${name}`;
}
