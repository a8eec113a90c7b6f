// A virtual list, which draws only visible rows: thousands of rows stay fast. Arrow keys move, Enter selects.

import { h } from "./dom.js";

export function virtualList({ rowHeight, render, onselect, label, role = "listbox" }) {
  const spacer = h("div", { class: "v-spacer" });
  const element = h("div", { class: "v-list", role, tabindex: 0, "aria-label": label }, spacer);
  let items = [];
  let selected = -1;

  function draw() {
    const height = element.clientHeight || 400;
    const first = Math.max(0, Math.floor(element.scrollTop / rowHeight) - 4);
    const last = Math.min(items.length, Math.ceil((element.scrollTop + height) / rowHeight) + 4);
    spacer.style.height = `${items.length * rowHeight}px`;
    const rows = [];
    for (let place = first; place < last; place += 1) {
      const row = render(items[place], place);
      row.classList.add("v-row");
      row.id = `${element.id || label.replace(/\W/g, "-")}-row-${place}`;
      row.setAttribute("role", role === "tree" ? "treeitem" : "option");
      row.setAttribute("aria-selected", place === selected);
      row.style.top = `${place * rowHeight}px`;
      row.style.height = `${rowHeight}px`;
      row.addEventListener("click", (event) => choose(place, event));
      if (place === selected) element.setAttribute("aria-activedescendant", row.id);
      rows.push(row);
    }
    spacer.replaceChildren(...rows);
  }

  function choose(place, event) {
    if (!items.length) return;
    selected = Math.max(0, Math.min(items.length - 1, place));
    reveal(selected);
    draw();
    onselect?.(items[selected], event);
  }

  function reveal(place) {
    const top = place * rowHeight;
    if (top < element.scrollTop) element.scrollTop = top;
    else if (top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top + rowHeight - element.clientHeight;
  }

  element.addEventListener("scroll", draw, { passive: true });
  element.addEventListener("keydown", (event) => {
    const page = Math.floor(element.clientHeight / rowHeight) - 1;
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -items.length, End: items.length };
    if (event.key in moves && !event.altKey && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      choose(selected + moves[event.key], event);
    }
  });
  new ResizeObserver(draw).observe(element);
  return {
    element,
    draw,
    get items() { return items; },
    setItems(next, select = -1) {
      items = next;
      selected = select;
      // Set its full height before it can be scrolled to a row.
      spacer.style.height = `${items.length * rowHeight}px`;
      if (select >= 0) reveal(select);
      draw();
    },
    select(place) {
      selected = place;
      reveal(place);
      draw();
    },
  };
}
