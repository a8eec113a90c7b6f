// What the forward saves for the backward, what the backward recomputes, and why.

import { bar, card, h, table } from "./dom.js";
import { bytes, count, operations, percent, plural } from "./format.js";
import { longTable, placeLink } from "./pieces.js";

export const backwardView = {
  id: "backward",
  title: "Backward",
  isShown: (report) => report.partitions.length > 0,
  badge: (report) => bytes(report.partitions.reduce((sum, each) => sum + each.saved_bytes, 0)),
  render(context, main) {
    const { report } = context;
    main.append(h("header", {}, h("h1", {}, "Backward"), h("p", {}, "A minimum cut over bytes decides what the forward saves; the backward recomputes everything else, where that is cheap.")));
    for (const [place, partition] of report.partitions.entries()) main.append(h("div", { class: "cards", style: { "margin-bottom": "22px" } }, partitionSummary(partition, report.partitions.length > 1 ? `Variant ${place}: ` : ""), saved(context, partition), recomputed(context, partition)));
  },
};

function partitionSummary(partition, title) {
  const most = Math.max(partition.default_bytes, partition.saved_bytes, partition.allowed_bytes, 1);
  const line = (name, size, kind) => [name, bytes(size), h("span", { class: "bar", style: { width: "260px" } }, h("i", { style: { width: `${(size / most) * 100}%`, background: kind } }))];
  const less = partition.default_bytes ? 1 - partition.saved_bytes / partition.default_bytes : 0;
  return card(`${title}${less > 0 ? `Saves ${percent(less)} less than eager` : "Saves as much as eager"}`, table(["", "#bytes", ""], [
    line("saved", partition.saved_bytes, "var(--saved)"), line("saved by the default partition, as in eager", partition.default_bytes, "var(--other)"), line("allowed by the budget", partition.allowed_bytes, "var(--good)")]),
    h("p", { class: "muted", style: { "margin-top": "8px" } }, `${plural(partition.recomputed.length, "operator")} recomputed: ${operations(partition.recomputed.reduce((sum, each) => sum + each.flops, 0))}.`));
}

function saved(context, partition) {
  const rows = [...partition.saved].sort((a, b) => b.size - a.size);
  const own = rows.filter((each) => each.size);
  const most = Math.max(1, ...own.map((each) => each.size));
  const held = rows.length - own.length;
  return h("div", { class: "half" }, card(`Saved: ${plural(own.length, "tensor")}`, longTable(["Tensor", "#size", "", "Why", "Line"], own.map((each) => [
    h("code", { class: "name" }, each.name), bytes(each.size), bar(each.size / most), each.reason, placeLink(context, each.line, { withCode: false })])),
    held > 0 && h("p", { class: "muted", style: { "margin-top": "8px" } }, `${count(held)} more are inputs or views of inputs, which are live anyway.`)));
}

function recomputed(context, partition) {
  const rows = [...partition.recomputed].sort((a, b) => b.flops - a.flops);
  return h("div", { class: "half" }, card(`Recomputed: ${plural(rows.length, "operator")}`, longTable(["Node", "#work", "Why", "Line"], rows.map((each) => [
    [h("code", {}, each.name), h("div", { class: "faint mono sub" }, each.operator.replace("aten::", ""))], operations(each.flops), each.reason, placeLink(context, each.line, { withCode: false })]))));
}
