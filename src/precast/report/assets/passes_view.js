// Passes in order: how long each took, and what it removed and added.

import { codeLines, codeView } from "./code.js";
import { chip, empty, h, replaceContent } from "./dom.js";
import { count, plural, seconds } from "./format.js";
import { virtualList } from "./list.js";

const LARGEST = 400;

export const passesView = {
  id: "passes",
  title: "Passes",
  isFull: true,
  isShown: (report) => report.passes.length > 0,
  badge: (report) => count(report.passes.filter((each) => each.is_changing).length),
  render: (context, main) => new PassesPage(context, main),
};

class PassesPage {
  constructor(context, main) {
    this.report = context.report;
    this.onlyChanging = true;
    this.longest = Math.max(...this.report.passes.map((each) => each.seconds), 1e-12);
    this.list = virtualList({ rowHeight: 44, label: "Passes", render: (each) => this.row(each), onselect: (each) => this.choose(each) });
    this.changes = h("div", { class: "columns" });
    this.head = h("div", { class: "step-head" });
    const toggle = h("button", { class: "tool", "aria-pressed": true, onclick: () => {
      this.onlyChanging = !this.onlyChanging;
      toggle.setAttribute("aria-pressed", this.onlyChanging);
      this.fill();
    } }, "Only passes that changed something");
    const total = this.report.passes.reduce((sum, each) => sum + each.seconds, 0);
    main.append(h("header", {}, h("h1", {}, "Passes"), toggle, h("p", {}, `${plural(this.report.passes.length, "run")} of passes in ${seconds(total)}`)),
      h("div", { class: "split" }, h("section", { class: "pane", style: { width: "330px", flex: "none" } }, this.list.element), h("section", { class: "pane", style: { flex: 1 } }, this.head, this.changes)));
    this.fill();
  }

  fill() {
    const shown = this.report.passes.filter((each) => each.is_changing || !this.onlyChanging);
    this.list.setItems(shown, shown.length ? 0 : -1);
    if (shown.length) this.choose(shown[0]);
    else replaceContent(this.changes, empty("No pass changed anything."));
  }

  row(each) {
    const kind = /_(joint|forward|backward|inference)_/.exec(each.graph)?.[1] ?? each.graph;
    return h("div", {}, h("span", { class: "grow" }, h("span", { class: each.is_changing ? "mono" : "mono faint" }, each.name), h("br"), h("span", { class: "faint", style: { "font-size": "11.5px" } }, `${kind} · ${each.level === "loops" ? "loop program" : "graph"}`)),
      h("span", { style: { "text-align": "right" } }, h("span", { class: "number muted" }, seconds(each.seconds)), h("br"), h("span", { class: "number faint", style: { "font-size": "11.5px" } }, each.before === each.after ? (each.is_changing ? `${count(each.new)} rewritten` : "") : `${count(each.before)} → ${count(each.after)}`)),
      h("i", { style: { position: "absolute", left: 0, bottom: 0, height: "2px", width: `${(each.seconds / this.longest) * 100}%`, background: "var(--accent)" } }));
  }

  choose(each) {
    const what = each.level === "loops" ? "step" : "node";
    replaceContent(this.head, h("h2", {}, each.name), h("span", { class: "fact" }, "time ", h("b", {}, seconds(each.seconds))), h("span", { class: "fact" }, `${plural(each.before, what)} before, ${plural(each.after, what)} after`), h("span", { class: "fact" }, `${count(each.gone)} gone, ${count(each.new)} new`));
    const side = (title, texts, number, kind) => h("section", { class: "pane", "aria-label": title }, h("div", { class: "pane-head" }, h("h3", {}, title), chip(kind === "removed" ? "bad" : "good", count(number))), h("div", { class: "pane-body", tabindex: 0 }, texts.length ? [this.texts(texts, kind), number > texts.length && empty(`… and ${count(number - texts.length)} more`)] : empty("Nothing.")));
    replaceContent(this.changes, side("Before", each.removed, each.gone, "removed"), side("After", each.added, each.new, "added"));
  }

  texts(numbers, kind) {
    const lines = [];
    for (const number of numbers) {
      lines.push(...this.report.texts[number].split("\n"), "");
      if (lines.length > LARGEST) break;
    }
    const shown = lines.slice(0, LARGEST);
    const view = codeView(codeLines(shown.join("\n")), { decorate: (element, number) => shown[number - 1] && element.classList.add(kind) });
    view.classList.add("plain");
    return [view, lines.length > LARGEST && h("p", { class: "empty" }, "… and more")];
  }
}
