// The graph by module: an outline with folding, and a drawing of what is unfolded. Only visible parts are drawn.

import { h, kindOf, replaceContent, svg } from "./dom.js";
import { bytes, count, operations, shortOperator } from "./format.js";
import { labelsOf, layOut } from "./graph_layout.js";
import { ancestorsOf, groupTree, unfoldedAtFirst } from "./graph_tree.js";
import { virtualList } from "./list.js";
import { graphChoice, placeLink, stepLink } from "./pieces.js";

const VIEW_OPERATORS = new Set(["t", "view", "_unsafe_view", "permute", "transpose", "expand", "slice", "select", "unsqueeze", "squeeze", "split", "getitem", "alias", "detach"]);
const OUTLINE_ROW = 26;

export const graphView = {
  id: "graph",
  title: "Graph",
  isFull: true,
  isShown: (report) => report.graphs.length > 0,
  badge: (report) => count(report.graphs.reduce((sum, graph) => sum + graph.nodes.length, 0)),
  render: (context, main) => new GraphPage(context, main),
};

class GraphPage {
  constructor(context, main) {
    this.context = context;
    this.report = context.report;
    this.graph = context.graph;
    this.withState = false;
    this.selected = null;
    this.list = virtualList({
      rowHeight: OUTLINE_ROW, role: "tree", label: "Outline of the graph",
      render: (row) => this.outlineRow(row), onselect: (row, event) => this.chooseRow(row, event),
    });
    this.list.element.addEventListener("keydown", (event) => this.foldByKey(event));
    this.filter = h("input", { class: "filter", type: "search", placeholder: "Find a node, operator or module", "aria-label": "Find in the graph", oninput: () => this.find() });
    this.filter.addEventListener("keydown", (event) => { if (event.key === "Enter") this.nextFound(event.shiftKey ? -1 : 1); });
    this.detail = h("aside", { class: "detail", "aria-live": "polite" });
    this.canvas = this.drawing();
    main.append(
      h("header", {}, h("h1", {}, "Graph"), graphChoice(context), this.foundText = h("p", { role: "status" })),
      h("div", { class: "split" },
        h("section", { class: "pane", style: { width: "310px", flex: "none" } }, h("div", { class: "pane-head" }, this.filter), this.list.element, this.detail),
        this.canvas));
    this.build();
    this.fit();
    if (context.target !== undefined) this.reveal(Number(context.target));
  }

  build() {
    this.tree = groupTree(this.report, this.graph, { withState: this.withState });
    this.open = unfoldedAtFirst(this.tree.root, 26);
    this.cache = new Map();
    this.found = [];
    this.foundIn = new Set();
    this.refresh();
    this.describe(null);
  }

  // Update the rows of the outline and the positions of boxes, after folding.
  refresh() {
    const rows = [];
    const visit = (item, depth) => item.children.forEach((child) => {
      rows.push({ item: child, depth });
      if (child.isGroup && this.open.has(child.id)) visit(child, depth + 1);
    });
    visit(this.tree.root, 0);
    this.rows = rows;
    this.list.setItems(rows, rows.findIndex((row) => row.item === this.selected));
    this.layout = layOut(this.graph, this.tree, this.open, this.cache);
    this.draw();
  }

  outlineRow({ item, depth }) {
    const indent = { "padding-left": `${10 + depth * 14}px` };
    if (!item.isGroup) {
      const [first, second] = labelsOf(item);
      return h("div", { class: "tree-row leaf", style: indent, "aria-level": depth + 1 }, h("span", { class: "fold" }), this.dot(item), h("span", { class: "grow" }, first, " ", h("span", { class: "faint" }, second)));
    }
    const isOpen = this.open.has(item.id);
    return h("div", { class: "tree-row", style: indent, "aria-level": depth + 1, "aria-expanded": isOpen, title: item.name },
      h("span", { class: "fold", "data-fold": item.id }, isOpen ? "▼" : "▶"),
      h("span", { class: "grow" }, item.name, " ", h("span", { class: "kind" }, item.kind)), h("span", { class: "faint number" }, item.size));
  }

  dot(item) {
    const colour = { kernel: "--kernel", library: "--library", torch: "--torch" }[this.kindOf(item.node)] ?? "--faint";
    return h("i", { style: { width: "7px", height: "7px", "border-radius": "50%", background: `var(${colour})`, flex: "none" } });
  }

  chooseRow({ item }, event) {
    if (event?.type === "click" && event.target.closest?.("[data-fold]")) return this.toggle(item);
    return this.choose(item);
  }

  foldByKey(event) {
    const item = this.selected;
    if (!item || !["ArrowLeft", "ArrowRight", "Enter", " "].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "ArrowLeft" && !(item.isGroup && this.open.has(item.id))) return void (item.parent?.parent && this.choose(item.parent));
    if (!item.isGroup || this.open.has(item.id) === (event.key === "ArrowRight")) return;
    this.toggle(item);
  }

  toggle(group) {
    const anchor = this.layout.boxes.find((box) => box.item === group);
    if (this.open.has(group.id)) this.open.delete(group.id);
    else this.open.add(group.id);
    this.selected = group;
    this.refresh();
    // The folded group stays under the pointer.
    const now = this.layout.boxes.find((box) => box.item === group);
    if (anchor && now) this.moveBy(anchor.x + anchor.width / 2 - (now.x + now.width / 2), anchor.y - now.y);
    this.describe(group);
  }

  choose(item, { move = true } = {}) {
    this.selected = item;
    for (const group of ancestorsOf(item)) this.open.add(group.id);
    this.refresh();
    this.describe(item);
    if (move) this.centre(item);
  }

  reveal(number) {
    let item = this.tree.leaves.get(number);
    if (!item) {
      this.withState = true;
      this.build();
      item = this.tree.leaves.get(number);
    }
    if (item) this.choose(item);
  }

  kindOf(node) {
    if (node.kind !== "operator") return node.kind;
    if (node.steps.length) return kindOf(this.graph.steps[node.steps[0]].kind);
    return VIEW_OPERATORS.has(shortOperator(node.operator)) ? "view" : "other";
  }

  find() {
    const words = this.filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const text = (node) => `${node.name} ${node.operator} ${node.module} ${node.label} ${node.value}`.toLowerCase();
    this.found = words.length ? [...this.tree.leaves.values()].filter(({ node }) => words.every((word) => text(node).includes(word))) : [];
    this.foundAt = -1;
    this.foundIn = new Set(this.found.flatMap(ancestorsOf));
    replaceContent(this.foundText, words.length ? `${count(this.found.length)} found; Enter goes to the next` : "");
    this.draw();
  }

  nextFound(step) {
    if (!this.found.length) return;
    this.foundAt = (this.foundAt + step + this.found.length) % this.found.length;
    this.choose(this.found[this.foundAt]);
    replaceContent(this.foundText, `${this.foundAt + 1} of ${count(this.found.length)}`);
  }

  describe(item) {
    if (!item) return replaceContent(this.detail, h("p", { class: "muted" }, "Select a box. Arrow keys move in the outline, left and right fold, plus and minus zoom."));
    if (item.isGroup) {
      return replaceContent(this.detail, h("h3", {}, item.name), h("dl", { class: "facts" },
        h("dt", {}, "Module"), h("dd", {}, item.kind || "–"), h("dt", {}, "Nodes"), h("dd", {}, count(item.size))));
    }
    const { node } = item;
    const links = (numbers) => numbers.map((each, place) => [place ? ", " : "", h("button", { class: "link mono", onclick: () => this.reveal(each) }, this.graph.nodes[each].label || this.graph.nodes[each].name)]);
    const rows = [
      ["Operator", node.operator && h("code", {}, node.operator)],
      ["Value", h("code", {}, node.value)],
      ["Name", node.label && h("code", {}, node.label)],
      ["Module", node.module && h("code", {}, node.module)],
      ["Line", node.line !== null && placeLink(this.context, node.line)],
      ["Runs in", node.steps.length > 0 && node.steps.map((each) => [stepLink(this.context, this.graph.steps[each]), " "])],
      ["Derivative of", node.forward && h("code", {}, node.forward)],
      ["Size", node.size > 0 && bytes(node.size)],
      ["Work", node.flops > 0 && operations(node.flops)],
      ["Reads", node.inputs.length > 0 && links(node.inputs)],
      ["Read by", node.users.length > 0 && links(node.users.slice(0, 30))],
    ];
    return replaceContent(this.detail, h("h3", {}, node.name), h("dl", { class: "facts" }, rows.filter(([, value]) => value).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])));
  }

  drawing() {
    this.layer = svg("g");
    this.edgeLayer = svg("g");
    this.boxLayer = svg("g");
    this.backLayer = svg("g");
    this.layer.append(this.backLayer, this.edgeLayer, this.boxLayer);
    const arrow = (id, colour) => svg("marker", { id, viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0,0 L8,4 L0,8 z", fill: colour }));
    this.svg = svg("svg", { tabindex: 0, role: "application", "aria-label": "Drawing of the graph" }, svg("defs", {}, arrow("arrow", "var(--line-strong)"), arrow("arrow-on", "var(--accent)")), this.layer);
    this.zoom = d3.zoom().scaleExtent([0.04, 2.5]).on("zoom", ({ transform }) => {
      this.layer.setAttribute("transform", transform);
      this.drawSoon();
    });
    d3.select(this.svg).call(this.zoom).on("dblclick.zoom", null);
    this.svg.addEventListener("keydown", (event) => this.panByKey(event));
    const tool = (text, title, run) => h("button", { class: "tool", title, onclick: run }, text);
    this.stateButton = tool("Weights", "Show parameters and buffers", () => {
      this.withState = !this.withState;
      this.stateButton.setAttribute("aria-pressed", this.withState);
      this.build();
      this.fit();
    });
    const legend = h("div", { class: "graph-legend legend" }, ["kernel", "library", "torch"].map((kind) => h("span", {}, h("i", { style: { background: `var(--${kind})` } }), { kernel: "in a kernel", library: "library call", torch: "run by torch" }[kind])));
    new ResizeObserver(() => this.drawSoon()).observe(this.svg);
    return h("div", { class: "graph-canvas" }, this.svg, legend, h("div", { class: "graph-tools" }, this.stateButton,
      tool("Unfold all", "Unfold every module", () => this.unfoldAll(true)), tool("Fold all", "Fold every module", () => this.unfoldAll(false)),
      tool("−", "Zoom out (-)", () => this.zoomBy(1 / 1.4)), tool("+", "Zoom in (+)", () => this.zoomBy(1.4)), tool("Fit", "Show everything (0)", () => this.fit())));
  }

  unfoldAll(isOpen) {
    const visit = (item) => {
      if (!item.isGroup) return;
      if (isOpen || item === this.tree.root) this.open.add(item.id);
      else this.open.delete(item.id);
      item.children.forEach(visit);
    };
    visit(this.tree.root);
    this.refresh();
    this.fit();
  }

  panByKey(event) {
    const moves = { ArrowLeft: [80, 0], ArrowRight: [-80, 0], ArrowUp: [0, 80], ArrowDown: [0, -80] };
    if (event.key in moves) d3.select(this.svg).call(this.zoom.translateBy, ...moves[event.key].map((each) => each / d3.zoomTransform(this.svg).k));
    else if (event.key === "+" || event.key === "=") this.zoomBy(1.4);
    else if (event.key === "-") this.zoomBy(1 / 1.4);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  zoomBy(factor) { d3.select(this.svg).call(this.zoom.scaleBy, factor); }

  moveBy(x, y) { d3.select(this.svg).call(this.zoom.translateBy, x, y); }

  size() { return [this.svg.clientWidth || 900, this.svg.clientHeight || 600]; }

  fit() {
    const [width, height] = this.size();
    const scale = Math.min(1.1, Math.max(0.35, width / (this.layout.width + 40)), Math.max(0.8, height / (this.layout.height + 60)));
    d3.select(this.svg).call(this.zoom.transform, d3.zoomIdentity.translate((width - this.layout.width * scale) / 2, 56).scale(scale));
  }

  centre(item) {
    const box = this.layout.boxes.find((each) => each.item === item);
    if (!box) return;
    const [width, height] = this.size();
    const scale = Math.max(0.7, d3.zoomTransform(this.svg).k);
    d3.select(this.svg).call(this.zoom.transform, d3.zoomIdentity.translate(width / 2 - (box.x + box.width / 2) * scale, height / 2 - (box.y + Math.min(box.height, height / scale) / 2) * scale).scale(scale));
  }

  drawSoon() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.draw();
    });
  }

  draw() {
    if (!this.layout) return;
    const transform = d3.zoomTransform(this.svg);
    const [width, height] = this.size();
    const [left, top] = transform.invert([-60, -60]);
    const [right, bottom] = transform.invert([width + 60, height + 60]);
    const isSeen = (each) => each.x <= right && each.x + each.width >= left && each.y <= bottom && each.y + each.height >= top;
    this.svg.classList.toggle("far-away", transform.k < 0.32);
    const found = new Set(this.found);
    const selected = this.selected?.id;
    const seen = this.layout.boxes.filter(isSeen);
    this.backLayer.replaceChildren(...seen.filter((box) => box.isOpen).map((box) => this.box(box, found)));
    this.boxLayer.replaceChildren(...seen.filter((box) => !box.isOpen).map((box) => this.box(box, found)));
    this.edgeLayer.replaceChildren(...this.layout.edges.filter(isSeen).map((edge) =>
      svg("path", { class: edge.from === selected || edge.to === selected ? "edge on" : "edge", d: curve(edge.points) })));
  }

  box({ item, isOpen, x, y, width, height }, found) {
    const [first, second] = labelsOf(item);
    const holds = item.isGroup ? !isOpen && this.foundIn.has(item) : found.has(item);
    const classes = ["box", item.isGroup && "group", isOpen && "open", item === this.selected && "selected", holds && "found"];
    const element = svg("g", { class: classes.filter(Boolean).join(" "), "data-kind": item.isGroup ? null : this.kindOf(item.node), "data-id": item.id, transform: `translate(${x},${y})` },
      svg("rect", { width, height }),
      isOpen ? svg("text", { x: 12, y: 15 }, `▾ ${first}`) : svg("text", { class: "name", x: width / 2, y: second ? height / 2 - 8 : height / 2 }, item.isGroup ? `▸ ${first}` : first),
      !isOpen && second && svg("text", { class: "second", x: width / 2, y: height / 2 + 9 }, second),
      svg("title", {}, item.isGroup ? `${item.name} ${item.kind}` : `${item.node.name}: ${item.node.value} = ${item.node.operator}(${item.node.arguments})`));
    element.addEventListener("click", (event) => {
      event.stopPropagation();
      if (item.isGroup) this.toggle(item);
      else this.choose(item, { move: false });
    });
    return element;
  }
}

const curve = d3.line().curve(d3.curveBasis);
