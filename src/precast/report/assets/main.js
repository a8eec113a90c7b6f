// The frame: navigation, keyboard shortcuts, and the theme.

import { backwardView } from "./backward_view.js";
import { breaksView } from "./breaks_view.js";
import { compareView } from "./compare_view.js";
import { compileView } from "./compile_view.js";
import { unpack } from "./data.js";
import { h, replaceContent } from "./dom.js";
import { graphView } from "./graph_view.js";
import { guardsView } from "./guards_view.js";
import { brandMark, icon } from "./icons.js";
import { kernelsView } from "./kernels_view.js";
import { memoryView } from "./memory_view.js";
import { overviewView } from "./overview_view.js";
import { packageView } from "./package_view.js";
import { passesView } from "./passes_view.js";
import { searchBox } from "./search.js";
import { timeView } from "./time_view.js";

const VIEWS = [overviewView, packageView, compareView, graphView, kernelsView, timeView, memoryView, backwardView, breaksView, guardsView, passesView, compileView];

class Page {
  constructor(report, previous) {
    this.report = report;
    this.previous = previous;
    this.graph = report.graphs[0];
    this.settings = {};
    this.views = VIEWS.filter((view) => view.isShown(report, previous));
    this.main = h("main", { class: "view", tabindex: -1 });
    this.links = this.views.map((view, place) => this.navigation(view, place));
    this.search = searchBox(this);
    this.help = this.helpDialog();
    document.body.prepend(h("div", { class: "app" }, this.header(), h("nav", { class: "side", "aria-label": "Sections" }, this.links, this.footer()), this.main), this.help);
    window.addEventListener("hashchange", () => this.show());
    document.addEventListener("keydown", (event) => this.onkey(event));
    this.show();
  }

  header() {
    return h("header", { class: "top" }, h("div", { class: "brand" }, brandMark(), "Precast report"),
      h("div", { class: "title" }, this.report.title, this.previous && h("span", { class: "muted" }, ` compared with ${this.previous.title}`)), h("div", { class: "grow" }), this.search,
      h("button", { class: "icon-button", title: "Light or dark (t)", "aria-label": "Light or dark", onclick: () => changeTheme() }, icon("theme")),
      h("button", { class: "icon-button", title: "Keys (?)", "aria-label": "Keys", onclick: () => this.help.showModal() }, icon("help")));
  }

  navigation(view, place) {
    const badge = view.badge?.(this.report, this.previous);
    return h("a", { href: `#${view.id}`, title: `${view.title} (${place + 1})` }, icon(view.id), view.title,
      badge ? h("span", { class: view.isAlert?.(this.report) ? "badge alert" : "badge" }, badge) : null);
  }

  footer() {
    const { precast, torch } = this.report.made_with;
    return h("footer", {}, `precast ${precast}`, torch && ` · torch ${torch}`, h("br"), this.report.created.slice(0, 16).replace("T", " "));
  }

  helpDialog() {
    const keys = [["/", "search"], [`1 … ${Math.min(9, this.views.length)}`, "go to a section"], ["[ ]", "previous, next section"], ["↑ ↓", "move in lists and the outline"], ["← →", "fold and unfold"], ["+ − 0", "zoom in, out, fit"], ["t", "light or dark"], ["?", "these keys"]];
    return h("dialog", { "aria-label": "Keys", onclick: (event) => event.target === this.help && this.help.close() }, h("h2", {}, "Keys"), h("table", {}, keys.map(([key, text]) => h("tr", {}, h("td", {}, h("kbd", {}, key)), h("td", {}, text)))));
  }

  // The address determines the view: #kernels/1.27 is step 27 of graph 1.
  show() {
    const [id, target] = location.hash.slice(1).split("/");
    if (target !== undefined && `${id}/${target}` === this.remembered) return;
    const view = this.views.find((each) => each.id === id) ?? this.views[0];
    const [graph, item] = (target ?? "").split(".");
    if (graph !== "" && this.report.graphs[Number(graph)]) this.graph = this.report.graphs[Number(graph)];
    this.target = item;
    this.view = view;
    this.remembered = undefined;
    this.links.forEach((link, place) => {
      if (this.views[place] === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    });
    this.main.className = view.isFull ? "view full" : "view";
    replaceContent(this.main);
    this.main.scrollTop = 0;
    view.render(this, this.main);
    document.title = `${view.title} · ${this.report.title} · Precast report`;
  }

  chooseGraph(graph) {
    this.graph = graph;
    this.go(`#${this.view.id}/${graph.place}`);
  }

  go(address) {
    if (location.hash !== address) history.pushState(null, "", address);
    this.show();
  }

  // Record the selection in the address, without showing it again.
  remember(target) {
    this.remembered = `${this.view.id}/${target}`;
    history.replaceState(null, "", `#${this.remembered}`);
  }

  onkey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = event.target.matches?.("input, textarea, select");
    if (event.key === "Escape" && isTyping) event.target.blur();
    if (isTyping || this.help.open) return;
    const place = this.views.indexOf(this.view);
    if (event.key === "/") this.search.querySelector("input").focus();
    else if (event.key === "t") changeTheme();
    else if (event.key === "?") this.help.showModal();
    else if (event.key === "[" || event.key === "]") this.go(`#${this.views[(place + (event.key === "]" ? 1 : -1) + this.views.length) % this.views.length].id}`);
    else if (/^[1-9]$/.test(event.key) && this.views[event.key - 1]) this.go(`#${this.views[event.key - 1].id}`);
    else return;
    event.preventDefault();
  }
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
}

function changeTheme() {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  applyTheme(theme);
  try {
    localStorage.setItem("precast-theme", theme);
  } catch { /* Pages opened from a file may have no storage. */ }
}

function wantedTheme() {
  let kept = null;
  try {
    kept = localStorage.getItem("precast-theme");
  } catch { /* The same. */ }
  return kept ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
}

applyTheme(wantedTheme());
const [report, previous] = await Promise.all([unpack("report"), unpack("previous")]);
window.precastPage = new Page(report, previous);
document.documentElement.dataset.ready = "true";
performance.mark("ready");
