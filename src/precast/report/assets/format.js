// Numbers for display.

const SPACE = "\u00a0";

const rounded = (value, digits = 3) => {
  if (value === 0) return "0";
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.abs(value))));
  return value.toFixed(Math.min(places, 6));
};

function scaled(value, base, units) {
  let place = 0;
  while (Math.abs(value) >= base && place < units.length - 1) {
    value /= base;
    place += 1;
  }
  return `${rounded(value)}${SPACE}${units[place]}`;
}

export const bytes = (count) => (count < 1024 ? `${count}${SPACE}B` : scaled(count, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]));

// Round numbers of bytes for an axis up to `most`.
export function byteTicks(most, wanted) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log(Math.max(1, most)) / Math.log(1024)));
  return d3.ticks(0, most / unit, wanted).map((each) => each * unit);
}

export const count = (value) => value.toLocaleString("en-US");

export const operations = (value) => (value ? scaled(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]) : "–");

export const rate = (value, unit) => scaled(value, 1000, ["", "k", "M", "G", "T"].map((prefix) => `${prefix}${unit}/s`));

export const percent = (share) => `${share >= 0.0995 || share === 0 ? Math.round(share * 100) : (share * 100).toFixed(1)}${SPACE}%`;

export function seconds(value) {
  if (value >= 1) return `${rounded(value)}${SPACE}s`;
  if (value >= 1e-3) return `${rounded(value * 1e3)}${SPACE}ms`;
  return value ? `${rounded(value * 1e6)}${SPACE}µs` : "0";
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : noun.endsWith("s") ? "es" : "s"}`;

export const fileName = (path) => path.split(/[\\/]/).pop();

// aten.add.Tensor → add
export const shortOperator = (name) => name.replace(/^(aten|prims|prim|precast|operator)(\.|::)/, "").split(".")[0];

export const shortened = (text, length) => (text.length <= length ? text : `${text.slice(0, length - 1)}…`);
