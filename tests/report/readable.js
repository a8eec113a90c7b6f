// Texts in sight that contrast with what is behind them by less than 4.5, WCAG's bound for small print; and what is cut off.
const channels = (text) => {
  const numbers = text.match(/[\d.]+/g).map(Number);
  const scale = text.startsWith("color(") ? 255 : 1;
  return [...numbers.slice(0, 3).map((each) => each * scale), numbers[3] ?? 1];
};
const over = (front, back) => [0, 1, 2].map((each) => front[each] * front[3] + back[each] * (1 - front[3])).concat(1);
const light = (colour) => {
  const [red, green, blue] = colour.map((each) => (each / 255 <= 0.03928 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
function behind(element) {
  const layers = [];
  for (let each = element; each; each = each.parentElement) layers.push(channels(getComputedStyle(each).backgroundColor));
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255, 1]);
}
function contrast(element) {
  const style = getComputedStyle(element);
  let below = behind(element);
  const box = element.closest("svg g")?.querySelector(":scope > rect");
  if (box) below = over(channels(getComputedStyle(box).fill), below);
  const [low, high] = [light(below), light(over(channels(box || element.closest("svg") ? style.fill : style.color), below))].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
}
const found = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const text = walker.currentNode.textContent.trim();
  if (!text || element.closest("script, style, .visually-hidden, dialog:not([open])") || !element.getBoundingClientRect().width) continue;
  if (contrast(element) < 4.5) found.push(`${text.slice(0, 40)}: ${contrast(element).toFixed(2)}`);
}
for (const element of document.querySelectorAll("main .scroll, main .card, main > header")) {
  if (element.scrollWidth > element.clientWidth + 1) found.push(`${element.className || element.tagName} is ${element.scrollWidth - element.clientWidth} px too wide`);
}
return found;
