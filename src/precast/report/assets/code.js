// Code with line numbers and syntax colours, whose names respond to the pointer.

import { h } from "./dom.js";

const COMMENTS = { cpp: "\\/\\/.*", python: "#.*" };
const tokens = (language) => new RegExp(`(?<comment>${COMMENTS[language]}|…)|` + REST, "g");
const REST = /(?<directive>#(?:include|pragma).*)|(?<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')|(?<number>\b\d[\w.]*(?:e[+-]\d+\w*)?)|(?<name>[A-Za-z_]\w*)/.source;
const WORDS = new Set(("for if else while return const auto void float double int int32_t int64_t bool static namespace kernel " +
  "call group fallback check run repeat program then first over def class in not and or None True False lambda with as import " +
  "from self yield raise try except is sum max min prod").split(" "));

// familyOf: a name → the node that it belongs to, or undefined.
export function codeLines(text, { language = "python", familyOf = () => undefined } = {}) {
  const pattern = tokens(language);
  return text.split("\n").map((line) => {
    const parts = [];
    let end = 0;
    for (const match of line.matchAll(pattern)) {
      if (match.index > end) parts.push(line.slice(end, match.index));
      parts.push(token(match, familyOf));
      end = match.index + match[0].length;
    }
    if (end < line.length) parts.push(line.slice(end));
    return parts;
  });
}

function token(match, familyOf) {
  const [kind, text] = Object.entries(match.groups).find(([, value]) => value !== undefined);
  if (kind !== "name") return h("span", { class: `t-${kind}` }, text);
  const family = familyOf(text);
  if (family !== undefined) return h("span", { class: "t-family", "data-family": family }, text);
  return WORDS.has(text) ? h("span", { class: "t-word" }, text) : text;
}

// One <ol> of lines; decorate(element, number) may mark a line.
export function codeView(lines, { start = 1, decorate = () => {}, label = "code" } = {}) {
  const list = h("ol", { class: "code", "aria-label": label, style: { "counter-reset": `line ${start - 1}` } });
  lines.forEach((parts, place) => {
    const indent = /^ */.exec(typeof parts[0] === "string" ? parts[0] : "")[0].length + 2;
    const line = h("li", {}, h("code", { style: { "--indent": `${indent}ch` } }, parts.length ? parts : " "));
    const families = new Set([...line.querySelectorAll("[data-family]")].map((each) => each.dataset.family));
    if (families.size) line.dataset.families = ` ${[...families].join(" ")} `;
    decorate(line, start + place);
    list.append(line);
  });
  return list;
}
