// Places boxes and arrows. Each unfolded group is laid out by dagre on its own, the innermost first, and then counts
// as one box of its parent: no layout is large, however large the graph.

import { plural, shortOperator, shortened } from "./format.js";

const HEAD = 26;
const MOST_ARROWS = 16;
const MARGIN = 14;

export function layOut(graph, tree, open, cache) {
  const { root } = tree;
  place(graph, tree, root, open, cache);
  const boxes = [];
  const edges = [];
  collect(root, 0, 0, boxes, edges, open, cache);
  return { boxes, edges, width: cache.get(root.id).width, height: cache.get(root.id).height };
}

function signature(group, open) {
  return group.children.filter((each) => each.isGroup && open.has(each.id)).map((each) => `${each.id}(${signature(each, open)})`).join();
}

function place(graph, tree, group, open, cache) {
  const inner = group.children.filter((each) => each.isGroup && open.has(each.id));
  inner.forEach((each) => place(graph, tree, each, open, cache));
  const mark = signature(group, open);
  const known = cache.get(group.id);
  if (known?.mark === mark) return;
  const layout = new dagre.graphlib.Graph({ multigraph: false });
  layout.setGraph({ rankdir: "TB", nodesep: 22, ranksep: 34, marginx: MARGIN, marginy: MARGIN, ranker: group.children.length > 60 ? "longest-path" : "network-simplex" });
  layout.setDefaultEdgeLabel(() => ({}));
  for (const item of group.children) layout.setNode(item.id, sizeOf(item, open, cache));
  for (const [from, to] of edgesWithin(graph, tree, group)) layout.setEdge(from, to);
  dagre.layout(layout);
  const { width, height } = layout.graph();
  cache.set(group.id, {
    mark,
    width: Math.max(width || 0, 60),
    height: Math.max(height || 0, 40),
    places: new Map(group.children.map((item) => [item.id, layout.node(item.id)])),
    edges: layout.edges().map((edge) => ({ from: edge.v, to: edge.w, points: layout.edge(edge).points })),
  });
}

function sizeOf(item, open, cache) {
  if (item.isGroup && open.has(item.id)) {
    const { width, height } = cache.get(item.id);
    return { width: Math.max(width, 8 * item.name.length + 60), height: height + HEAD };
  }
  const [first, second] = labelsOf(item);
  return { width: Math.max(64, 7.4 * first.length, 6.5 * second.length) + 26, height: second ? 42 : 28 };
}

export function labelsOf(item) {
  if (item.isGroup) return [shortened(item.name, 40), shortened([item.kind, plural(item.size, "node")].filter(Boolean).join(" · "), 40)];
  const { node } = item;
  if (node.kind === "input" || node.kind === "constant") return [shortened(node.label || node.name, 36), node.value];
  if (node.kind === "output") return ["output", ""];
  return [shortened(shortOperator(node.operator), 36), shortened(node.value, 36)];
}

// Edges between children of one group, each once: those of all nodes inside them.
function edgesWithin(graph, tree, group) {
  const found = new Map();
  const childIn = (item) => {
    while (item && item.parent !== group) item = item.parent;
    return item;
  };
  const visit = (item) => {
    if (item.isGroup) return item.children.forEach(visit);
    const to = childIn(item);
    for (const source of sourcesOf(graph, tree, item.node)) {
      const from = childIn(tree.leaves.get(source));
      if (from && from !== to) found.set(`${from.id} ${to.id}`, [from.id, to.id]);
    }
    return undefined;
  };
  visit(group);
  return found.values();
}

// Nodes with many readers are drawn without arrows, which would hide all others.
function sourcesOf(graph, tree, node) {
  const isDrawn = (source) => source.users.length <= MOST_ARROWS && !(source.kind === "input" && node.kind === "output");
  return node.inputs.filter((each) => tree.shown.has(each) && isDrawn(graph.nodes[each]));
}

function collect(group, x, y, boxes, edges, open, cache) {
  const layout = cache.get(group.id);
  for (const edge of layout.edges) {
    const points = edge.points.map((point) => [point.x + x, point.y + y]);
    edges.push({ key: `${edge.from}>${edge.to}`, from: edge.from, to: edge.to, points, ...bounds(points) });
  }
  for (const item of group.children) {
    const at = layout.places.get(item.id);
    const isOpen = item.isGroup && open.has(item.id);
    const box = { item, isOpen, x: at.x - at.width / 2 + x, y: at.y - at.height / 2 + y, width: at.width, height: at.height };
    boxes.push(box);
    if (isOpen) {
      const inner = cache.get(item.id);
      collect(item, box.x + (box.width - inner.width) / 2, box.y + HEAD, boxes, edges, open, cache);
    }
  }
}

function bounds(points) {
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return { x: left, y: top, width: Math.max(...xs) - left, height: Math.max(...ys) - top };
}
