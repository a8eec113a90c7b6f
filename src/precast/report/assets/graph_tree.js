// Groups the nodes of a graph by module; long flat stretches are cut into runs, so that every level stays small.

import { fileName } from "./format.js";

const MOST_CHILDREN = 90;
const RUN = 24;

export function groupTree(report, graph, { withState = false } = {}) {
  const root = newGroup("", report.title, "", null);
  const groups = new Map([["", root]]);
  const shown = graph.nodes.filter((node) => isShown(graph, node, withState));
  const paths = pathsOf(graph, new Set(shown));
  for (const node of shown) {
    const home = groupAt(groups, paths.get(node), report.modules);
    home.children.push({ node, parent: home, id: `n${node.number}` });
  }
  sortByFirst(root);
  cutLongRuns(root, report);
  countNodes(root);
  return { root, leaves: leavesOf(root), shown: new Set(shown.map((node) => node.number)) };
}

const isWeight = (node) => (node.kind === "input" || node.kind === "constant") && node.label.includes(".") && !node.module;

function isShown(graph, node, withState) {
  if (node.kind === "output") return true;
  if (isWeight(node) || (node.kind === "constant" && !withState)) return withState;
  return true;
}

// A node without a module (a seed, a constant) belongs to the common module of its readers.
function pathsOf(graph, shown) {
  const paths = new Map();
  for (const node of [...graph.nodes].reverse()) {
    const readers = node.users.map((each) => graph.nodes[each]).filter((each) => shown.has(each));
    if (node.module) paths.set(node, node.module);
    else if (isWeight(node)) paths.set(node, node.label.split(".").slice(0, -1).join("."));
    else paths.set(node, node.line === null && node.kind === "operator" ? commonPath(readers.map((each) => paths.get(each) ?? "")) : "");
  }
  return paths;
}

function commonPath(paths) {
  const parts = paths.map((path) => path.split("."));
  const [first = []] = parts;
  let length = 0;
  while (length < first.length && parts.every((each) => each[length] === first[length])) length += 1;
  return first.slice(0, length).join(".");
}

function newGroup(id, name, kind, parent) {
  return { id: `g${id}`, name, kind, parent, children: [], isGroup: true };
}

function groupAt(groups, path, modules) {
  if (groups.has(path)) return groups.get(path);
  const cut = path.lastIndexOf(".");
  const parent = groupAt(groups, cut < 0 ? "" : path.slice(0, cut), modules);
  const group = newGroup(path, path.slice(cut + 1), modules[path] ?? "", parent);
  parent.children.push(group);
  groups.set(path, group);
  return group;
}

function firstNumber(item) {
  if (item.node) return item.node.number;
  return (item.first ??= Math.min(...item.children.map(firstNumber)));
}

function sortByFirst(group) {
  group.children.filter((each) => each.isGroup).forEach(sortByFirst);
  group.children.sort((a, b) => firstNumber(a) - firstNumber(b));
}

function cutLongRuns(group, report) {
  group.children.filter((each) => each.isGroup).forEach((each) => cutLongRuns(each, report));
  while (group.children.length > MOST_CHILDREN) {
    const runs = [];
    for (let start = 0; start < group.children.length; start += RUN) {
      const members = group.children.slice(start, start + RUN);
      const run = newGroup(`${group.id}/${runs.length}/${members[0].id}`, runName(members, report), "", group);
      run.isRun = true;
      run.children = members;
      members.forEach((each) => { each.parent = run; });
      runs.push(run);
    }
    group.children = runs;
  }
}

function runName(members, report) {
  const lines = members.map((each) => each.node && report.lines[each.node.line]).filter(Boolean);
  if (!lines.length) return `${members[0].node?.name ?? members[0].name} …`;
  const [first, last] = [lines[0], lines[lines.length - 1]];
  const numbers = first.number === last.number ? first.number : `${first.number}–${last.number}`;
  return first.file === last.file ? `${fileName(first.file)}:${numbers}` : `${fileName(first.file)}:${first.number} …`;
}

function countNodes(item) {
  item.size = item.isGroup ? item.children.reduce((sum, each) => sum + countNodes(each), 0) : 1;
  return item.size;
}

function leavesOf(root) {
  const found = new Map();
  const visit = (item) => (item.isGroup ? item.children.forEach(visit) : found.set(item.node.number, item));
  visit(root);
  return found;
}

export function ancestorsOf(item) {
  const found = [];
  for (let group = item.parent; group; group = group.parent) found.push(group);
  return found;
}

// Groups to unfold first: the outermost, as long as few boxes are visible.
export function unfoldedAtFirst(root, most = 34) {
  const open = new Set([root.id]);
  let waiting = root.children.filter((each) => each.isGroup);
  let shown = root.children.length;
  while (waiting.length) {
    const next = waiting.shift();
    if (next.isRun || next.size < 3 || shown + next.children.length > most) continue;
    open.add(next.id);
    shown += next.children.length;
    waiting = [...waiting, ...next.children.filter((each) => each.isGroup)];
  }
  return open;
}
