// The content of a package: entries with their signatures, code for which processors, files and weights.

import { bar, card, chip, h, table } from "./dom.js";
import { bytes, count, plural } from "./format.js";
import { facts } from "./overview_view.js";
import { virtualList } from "./list.js";

export const packageView = {
  id: "package",
  title: "Package",
  isShown: (report) => Boolean(report.package),
  badge: (report) => bytes(report.package.size),
  render(context, main) {
    const { package: held, made_with } = context.report;
    const stored = held.weights.reduce((sum, each) => sum + each.size, 0);
    const metric = (name, value, note) => h("div", { class: "metric" }, h("dt", {}, name), h("dd", { class: "value" }, value), note && h("dd", { class: "note" }, note));
    main.append(h("header", {}, h("h1", {}, context.report.title), chip("other", context.report.kind), held.is_signed ? chip("good", "signed") : chip("other", "not signed"), h("p", { class: "mono" }, held.path)),
      h("dl", { class: "metrics" }, metric("Size", bytes(held.size)), metric("Entries", count(held.entries.length)), metric("Weights", bytes(stored), plural(held.weights.length, "tensor")), metric("Targets", count(held.targets.length), held.targets.map((each) => each.name).join(", "))),
      h("div", { class: "cards" }, held.entries.map(entryCard),
        h("div", { class: "half" }, card("Targets", held.targets.length ? table(["Target", "#code", "Here", "Needs"], held.targets.map((each) => [h("b", {}, each.name), bytes(each.size), each.missing.length ? chip("bad", `lacks ${each.missing.join(", ")}`) : chip("good", "runs here"), h("span", { class: "faint mono" }, each.features.join(" "))])) : h("p", { class: "muted" }, "A program without native code.")), h("p", { style: { height: "16px" } }), card("Made with", facts({ ...made_with, libraries: held.libraries.join(", ") || "none beside" }))),
        h("div", { class: "half" }, card("Files", fileTable(held))),
        held.weights.length > 0 && card(`Weights: ${plural(held.weights.length, "tensor")}`, weightList(held.weights))));
  },
};

function entryCard(entry) {
  const tensors = (rows) => table(["Name", "Value"], rows.map((each) => [h("b", { class: "mono" }, each.name), h("code", {}, each.value)]));
  return card(h("span", {}, "Entry ", h("span", { class: "mono" }, entry.name)), h("p", { class: "mono muted", style: { "overflow-wrap": "anywhere", "margin-bottom": "12px" } }, entry.signature),
    h("div", { class: "cards" }, h("div", { class: "third" }, h("h3", {}, "Takes"), tensors(entry.inputs)), h("div", { class: "third" }, h("h3", {}, "Returns"), tensors(entry.outputs)),
      h("div", { class: "third" }, h("h3", {}, "Sizes"), entry.sizes.length ? h("ul", { class: "mono", style: { margin: "6px 0", "padding-left": "18px" } }, entry.sizes.map((each) => h("li", {}, each))) : h("p", { class: "muted" }, "All sizes are static."),
        h("p", { class: "muted" }, `Reads ${plural(entry.weights, "weight")}, updates ${count(entry.updates.length)}; ${plural(entry.samples, "sample")} for verification.`))));
}

function fileTable(held) {
  const most = Math.max(1, ...Object.values(held.files));
  return table(["File", "#size", ""], Object.entries(held.files).sort((a, b) => b[1] - a[1]).map(([name, size]) => [h("code", {}, name), bytes(size), bar(size / most)]));
}

function weightList(weights) {
  const most = Math.max(1, ...weights.map((each) => each.size));
  const row = (each) => h("div", {}, h("span", { class: "mono grow" }, each.name), h("span", { class: "mono faint" }, each.value), h("span", { class: "number", style: { width: "90px" } }, bytes(each.size)), bar(each.size / most));
  const list = virtualList({ rowHeight: 28, label: "Weights", render: row });
  const filter = h("input", { class: "filter", type: "search", placeholder: "Filter weights", "aria-label": "Filter weights", oninput: () => list.setItems(weights.filter((each) => each.name.toLowerCase().includes(filter.value.toLowerCase()))) });
  list.element.style.height = `${Math.min(460, weights.length * 28 + 4)}px`;
  queueMicrotask(() => list.setItems(weights));
  return [filter, list.element];
}
