// Elements of the page, canvases and axes. Text is only ever set as text.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const many = (count) => count.toLocaleString("en");
const networks = (count) => `${many(count)} ${count === 1 ? "network" : "networks"}`;
const note = (text) => element("p", {class: "note"}, text);

// Palette of Okabe and Ito, safe for colour blindness; then again with other markers.
const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"];
const MARKS = ["circle", "square", "triangle", "diamond"];
const GREY = "#b4b4b4", FAINT = "#e6e6e6", INK = "#222", LIMIT = "#AA3377";

const look = (model, group) => {
  const colour = COLOURS[group % COLOURS.length];
  const mark = MARKS[Math.floor(group / COLOURS.length) % MARKS.length];
  return model.groups.length === 1
    ? {mark, searched: "#0072B2", verified: "#009E73", near: "#E69F00", left: "#D55E00"}
    : {mark, searched: colour, verified: colour, near: `${colour}66`, left: colour};
};

const NEAR = "not significantly off the front";
// The state of a member after verification: a key of `look`.
const outcome = (model, member) => {
  const note = model.notes[member];
  return note === NEAR ? "near" : note ? "left" : "verified";
};

function trace(context, mark, x, y, r) {
  context.beginPath();
  if (mark === "circle") context.arc(x, y, r, 0, 2 * Math.PI);
  else if (mark === "square") context.rect(x - 0.9 * r, y - 0.9 * r, 1.8 * r, 1.8 * r);
  else if (mark === "cross") {
    context.moveTo(x - r, y - r); context.lineTo(x + r, y + r);
    context.moveTo(x - r, y + r); context.lineTo(x + r, y - r);
  } else {
    context.moveTo(x, y - 1.2 * r); context.lineTo(x + 1.1 * r, y + (mark === "diamond" ? 0 : r));
    if (mark === "diamond") context.lineTo(x, y + 1.2 * r);
    context.lineTo(x - 1.1 * r, y + (mark === "diamond" ? 0 : r));
    context.closePath();
  }
}

// Two layered canvases: static content, and what follows the pointer.
class Layers {
  constructor(host, label) {
    this.base = element("canvas", {role: "img", "aria-label": label});
    this.top = element("canvas", {class: "top"});
    this.box = element("div", {class: "canvas"}, this.base, this.top);
    host.append(this.box);
  }

  size(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.box.style.width = `${width}px`;
    this.box.style.height = `${height}px`;
    return [this.base, this.top].map((canvas) => {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      return context;
    });
  }
}

// A scale from values to pixels, linear or logarithmic.
function scale(low, high, from, to, log) {
  const f = log ? Math.log : (v) => v, inverse = log ? Math.exp : (v) => v;
  const a = f(low), b = f(high) === f(low) ? f(low) + 1 : f(high);
  const at = (value) => from + (f(value) - a) / (b - a) * (to - from);
  at.invert = (pixel) => inverse(a + (pixel - from) / (to - from) * (b - a));
  return at;
}

function ticks(low, high, log, most) {
  if (log && high / low > 10) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
      for (const digit of high / low > 1000 ? [1] : [1, 2, 5]) found.push(digit * 10 ** power);
    }
    return found.filter((tick) => tick >= low && tick <= high);
  }
  const rough = (high - low || 1) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((m) => m * power >= rough) * power;
  const first = Math.ceil(low / step - 1e-9), found = [];
  for (let i = first; i * step <= high + 1e-9 * step; i++) found.push(i * step);
  return found;
}

const tickText = (value, column) =>
  column.percent ? `${clean(100 * value)}%` : String(Number(value.toPrecision(10)));

// The tooltip with the figures of a point.
const tooltip = element("div", {class: "tooltip", hidden: true, role: "status"});

function describe(model, i) {
  const lines = [element("b", {}, model.id(i))];
  const add = (text, name = "div") => lines.push(element(name, {}, text));
  const run = model.run(i), member = model.member[i];
  if (model.runs.length > 1) add(run.group === run.name ? run.name : `${run.name} (${run.group})`);
  if (!Number.isNaN(model.trials[i])) add(`trial ${model.trials[i]}`);
  if (model.stopped[i]) add("evaluation stopped early: dominated");
  const checked = member >= 0 && model.checked[member];
  const words = (figures, at, column) => {
    if (Number.isNaN(figures.value[at])) return "";
    const ends = interval(figures, at, column);
    return [shown(figures.value[at], column), column.unit, ends && `(${ends})`,
            `[${sourceOf(figures, at)}]`].filter(Boolean).join(" ");
  };
  const heads = ["", "searched", "verified"].map((text) => element("th", {}, text));
  const rows = checked ? [element("tr", {}, ...heads)] : [];
  for (const column of model.columns) {
    const found = [words(column.searched, i, column)];
    if (checked) found.push(words(column.verified, member, column));
    if (!found.some(Boolean)) continue;
    const cells = [column.label, ...found].map((text) => element("td", {}, text));
    rows.push(element("tr", {}, ...cells));
  }
  lines.push(element("table", {}, ...rows));
  if (checked) add(model.verdict(i), "i");
  const options = element("div", {class: "options"});
  for (const choice of model.choices) {
    if (!choice.codes[i]) continue;
    options.append(element("div", {}, `${choice.name} = ${choice.options[choice.codes[i] - 1]}`));
  }
  tooltip.replaceChildren(...lines, options);
}

function showTooltip(model, i, x, y) {
  if (tooltip.dataset.point !== String(i) || tooltip.hidden) describe(model, i);
  tooltip.dataset.point = i;
  tooltip.hidden = false;
  const {offsetWidth: width, offsetHeight: height} = tooltip;
  const left = x + 16 + width > innerWidth ? x - 16 - width : x + 16;
  tooltip.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
  tooltip.style.top = `${Math.max(4, Math.min(y + 12, innerHeight - height - 4))}px`;
}

function hideTooltip() { tooltip.hidden = true; tooltip.dataset.point = ""; }
