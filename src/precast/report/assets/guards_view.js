// The guards of each compiled variant: calls for which they do not hold are recompiled.

import { card, h } from "./dom.js";
import { count, plural, seconds } from "./format.js";
import { virtualList } from "./list.js";

export const guardsView = {
  id: "guards",
  title: "Guards",
  isShown: (report) => report.variants.length > 0,
  badge: (report) => count(report.variants.reduce((sum, each) => sum + each.guards.length, 0)),
  render(context, main) {
    const { report } = context;
    main.append(h("header", {}, h("h1", {}, "Guards and sizes"), h("p", {}, "What the compiled code assumes about its inputs and Python's state. It is checked at every call; if it does not hold, another variant is compiled.")),
      h("div", { class: "cards" }, report.variants.map((variant, place) => variantCard(variant, report.variants.length > 1 ? `Variant ${place}` : "The compiled variant"))));
  },
};

function variantCard(variant, title) {
  return card(h("span", { title: variant.name }, title, " ", h("span", { class: "faint" }, `${variant.reason} · ${seconds(variant.seconds)}`)),
    h("div", { class: "cards", style: { "margin-top": "10px" } },
      h("div", { class: "half" }, h("h3", {}, "Inputs"), bullets(variant.inputs), h("h3", { style: { "margin-top": "12px" } }, "Sizes"), variant.sizes.length ? bullets(variant.sizes) : h("p", { class: "muted" }, "All sizes are static. Compile with dynamic=True for dynamic sizes.")),
      h("div", { class: "half" }, guardList(variant.guards))));
}

const bullets = (texts) => h("ul", { class: "mono", style: { margin: "6px 0", "padding-left": "18px" } }, texts.map((text) => h("li", {}, text)));

function guardList(guards) {
  const list = virtualList({ rowHeight: 26, label: "Guards", render: (guard) => h("div", { class: "mono", title: guard }, h("span", { class: "grow" }, guard)) });
  const filter = h("input", { class: "filter", type: "search", placeholder: `Filter ${plural(guards.length, "guard")}`, "aria-label": "Filter guards", oninput: () => list.setItems(guards.filter((each) => each.toLowerCase().includes(filter.value.toLowerCase()))) });
  list.element.style.height = `${Math.min(420, guards.length * 26 + 4)}px`;
  queueMicrotask(() => list.setItems(guards));
  return [h("h3", { style: { "margin-bottom": "6px" } }, "Python's state"), filter, list.element];
}
