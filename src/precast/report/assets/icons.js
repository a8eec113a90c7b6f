// Line icons, 24 by 24.

import { svg } from "./dom.js";

const PATHS = {
  overview: "M4 13h7V4H4zM13 20h7V11h-7zM4 20h7v-5H4zM13 9h7V4h-7z",
  graph: "M6 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4M18 10a2 2 0 1 0 0 4 2 2 0 0 0 0-4M6 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4M8 6h4a4 4 0 0 1 4 4v0M8 18h4a4 4 0 0 0 4-4v0",
  kernels: "M8 6 3 12l5 6M16 6l5 6-5 6M14 4l-4 16",
  time: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 7v5l3.5 2",
  memory: "M4 7h16v10H4zM8 7v10M12 7v10M16 7v10M7 4v3M12 4v3M17 4v3M7 17v3M12 17v3M17 17v3",
  backward: "M9 7 4 12l5 5M4 12h10a6 6 0 0 1 6 6",
  guards: "M12 3 5 6v5c0 4.5 3 8 7 10 4-2 7-5.5 7-10V6zM9 12l2 2 4-4",
  breaks: "M12 4 3 20h18zM12 10v4M12 17v.5",
  passes: "M4 6h16M4 12h10M4 18h13M18 10l2 2-2 2",
  compile: "M4 19V5M4 19h16M8 15v-4M12 15V8M16 15v-6",
  package: "M12 3 4 7v10l8 4 8-4V7zM4 7l8 4 8-4M12 11v10",
  compare: "M7 4v16M17 4v16M3 8l4-4 4 4M13 16l4 4 4-4",
  theme: "M12 4a8 8 0 1 0 8 8 6 6 0 0 1-8-8z",
  help: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M9.5 9.5a2.5 2.5 0 1 1 3.5 2.3c-.7.3-1 .8-1 1.7M12 16.5v.5",
  check: "M5 13l4 4L19 7",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", fill: "none", stroke: "currentColor", "stroke-width": 1.7, "stroke-linecap": "round", "stroke-linejoin": "round", "aria-hidden": "true" }, svg("path", { d: PATHS[name] }));
}

export function brandMark() {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true" },
    svg("rect", { x: 2, y: 13, width: 9, height: 8, rx: 2, fill: "var(--accent)" }), svg("rect", { x: 13, y: 13, width: 9, height: 8, rx: 2, fill: "var(--library)" }), svg("rect", { x: 7.5, y: 3, width: 9, height: 8, rx: 2, fill: "var(--torch)" }));
}
