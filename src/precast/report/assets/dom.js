// Elements by function calls: h("button", { class: "chip", onclick: run }, "Run").

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || (value === false && !name.startsWith("aria-"))) continue;
    if (name.startsWith("aria-")) element.setAttribute(name, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") {
      for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    } else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);

export const svg = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

export function replaceContent(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

export function chip(kind, text = kind) {
  return h("span", { class: "chip", "data-kind": kindOf(kind) }, text);
}

// "library, packed" is a library call.
export const kindOf = (kind) => kind.split(",")[0];

export function bar(share, kind = "accent") {
  return h("span", { class: "bar", "aria-hidden": "true" },
    h("i", { "data-kind": kind, style: { width: `${Math.max(0, Math.min(1, share)) * 100}%` } }));
}

export function card(title, ...children) {
  return h("section", { class: "card" }, title && h("h2", {}, title), children);
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}

// A table with a sticky head; rows are arrays of cells, a cell is text or an element.
export function table(head, rows, properties = {}) {
  const cells = (tag, row) => row.map((each, place) =>
    h(tag, { class: head[place].startsWith("#") ? "number" : null, scope: tag === "th" ? "col" : null },
      tag === "th" ? each.replace("#", "") : each));
  return h("div", { class: "scroll" }, h("table", properties,
    h("thead", {}, h("tr", {}, cells("th", head))),
    h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row))))));
}
