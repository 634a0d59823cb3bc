// An explorer: visible runs, limits and selection, and the views that draw them.

const HIDDEN = 0, OVER = 1, FITS = 2;
const ENOUGH = 20; // networks on a front, whose fractions say something

class App {
  constructor(host, model) {
    this.model = model;
    this.hidden = new Set(); // numbers of groups
    this.selection = null; // indices of points
    this.hovered = -1;
    this.status = new Uint8Array(model.n).fill(FITS);
    this.bars = model.front.length <= 400;
    this.log = model.plots.some(({x}) => { // costs of very different sizes
      const [low, high] = extent(model.columns[x].searched.value, () => true);
      return low > 0 && high > 10 * low;
    });
    this.zoomed = false;
    this.beside = Boolean(model.beside); // whether it is shown
    this.limits = model.columns
      .filter((column) => column.searched.known && column.limit !== null)
      .map((column) => this.#limit(column));
    this.#controls(host);
    const grid = element("div", {class: "plots"});
    host.append(grid);
    this.scatters = model.plots.map((plot) => {
      const box = element("div", {class: "plot"});
      grid.append(box);
      return new Scatter(box, this, plot);
    });
    this.chosen = element("p", {class: "picked", role: "status"});
    host.append(this.chosen);
    this.views = [...this.scatters];
    const section = (title, ...texts) => {
      const made = element("div", {class: "part"}, element("h3", {}, title), ...texts.map(note));
      host.append(made);
      return made;
    };
    const folded = (title, ...texts) => {
      const made = element("details", {class: "part", ontoggle: () => this.changed()},
        element("summary", {}, element("h3", {}, title)), ...texts.map(note));
      host.append(made);
      return made;
    };
    const table = folded(
      model.runs.length > 1 ? "Members of the fronts" : "Members of the front",
      `Members within the limits above. Small figures: 95 % intervals${model.verified
        ? "; with a sign: difference of verified and searched figures" : ""}. Click a heading to `
      + `sort. The CSV file has all figures with intervals${model.choices.length ? ", and the choices" : ""}.`);
    this.members = new Members(table, this);
    this.views.push(this.members);
    if (model.choices.length) {
      if (model.front.length >= ENOUGH) {
        const preferred = section(model.runs.length > 1 ? "What the fronts prefer" : "What the front prefers");
        this.views.push(new Preferences(preferred, this));
      }
      const sampled = model.n - model.front.length > BEHIND
        ? ` ${BEHIND} of the other networks are drawn in grey.` : "";
      const wide = folded(
        "Choices of each network",
        `A line is a network; coloured: the front${model.runs.length > 1 ? "s" : ""}. Drag along axes to `
        + "filter networks; click an axis to remove its filter. “–”: inactive choice, for example of "
        + `a block beyond the depth.${sampled}`);
      const scroll = element("div", {class: "scroll"});
      wide.append(scroll);
      this.parallel = new Parallel(scroll, this);
      this.views.push(this.parallel);
    }
    this.changed();
  }

  limitOf(column) {
    const found = this.limits.find((limit) => limit.column === column);
    return found ? found.value : Infinity;
  }

  #limit(column) {
    const judged = this.model.judged(column);
    let [low, high] = extent(judged, () => true);
    if (column.limit !== null) high = Math.max(high, column.limit);
    const loose = column.maximise ? -Infinity : Infinity;
    return {column, judged, low, high, loose, value: column.limit ?? loose};
  }

  #controls(host) {
    const {model} = this;
    const keys = model.verified ? [["dot", "other networks, as searched"], ["open", "verified networks, as searched"]]
      : [["dot", "dominated"], ["full", "front"]];
    if (model.verified) {
      keys.push(["full", "verified: compiled file on the test split, with 95 % interval"]);
      if (model.notes.includes(NEAR)) keys.push(["near", `verified: ${NEAR} by its interval`]);
      if (model.notes.some((text) => text && text !== NEAR)) {
        keys.push(["cross", "verified: off the front, or beyond the budget"]);
      }
    }
    if (model.marked.size) keys.push(["frame", model.marks]);
    if (model.columns.some((column) => column.limit !== null)) keys.push(["dash", "budget of the search"]);
    if (model.beside) keys.push(["beside", model.beside.label]);
    const style = model.groups.length === 1 ? look(model, 0)
      : {searched: "#555", verified: "#555", near: "#55555566", left: "#555"};
    host.append(element("div", {class: "legend"}, ...keys.map(([kind, text]) =>
      element("span", {}, this.#swatch(kind, style), ` ${text}`))));
    if (model.groups.length > 1) host.append(this.#groups());
    this.counts = element("p", {class: "counts", role: "status"});
    const sliders = this.limits.map((limit) => this.#slider(limit));
    if (sliders.length) host.append(element("div", {class: "sliders"}, ...sliders));
    host.append(this.counts);
    const check = (text, name) => {
      const box = element("input", {type: "checkbox",
        onchange: () => { this[name] = box.checked; this.changed(); }});
      box.checked = this[name];
      return element("label", {}, box, ` ${text}`);
    };
    host.append(element("div", {class: "controls"}, check("logarithmic costs", "log"),
                        check("zoom to the front", "zoomed"), check("intervals", "bars"),
                        ...(model.beside ? [check("baseline", "beside")] : [])));
  }

  #swatch(kind, style, mark = "circle") {
    const canvas = element("canvas", {width: 36, height: 28, class: "swatch"});
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.lineWidth = 1.4;
    context.strokeStyle = context.fillStyle = {
      open: style.searched, full: style.verified, near: style.near, cross: style.left,
      dot: GREY, frame: "#000", dash: LIMIT, beside: BESIDE,
    }[kind];
    if (kind === "dash") {
      context.setLineDash([3, 2]);
      context.beginPath(); context.moveTo(9, 0); context.lineTo(9, 14); context.stroke();
    } else if (kind === "frame") context.strokeRect(3, 1, 12, 12);
    else if (kind === "dot") context.fillRect(7, 5, 3, 3);
    else {
      trace(context, {cross: "cross", beside: "diamond"}[kind] ?? mark, 9, 7, 4);
      if (kind === "full" || kind === "near") context.fill(); else context.stroke();
    }
    return canvas;
  }

  #groups() {
    const {model} = this;
    const boxes = model.groups.map((group, number) => {
      const runs = model.runs.filter((run) => run.groupNumber === number);
      const box = element("input", {type: "checkbox", onchange: () => {
        if (box.checked) this.hidden.delete(number); else this.hidden.add(number);
        this.changed();
      }});
      box.checked = true;
      const style = look(model, number);
      const words = runs.length > 1 ? ` ${group} (${runs.length} runs)` : ` ${group}`;
      return element("label", {}, box, this.#swatch("full", style, style.mark), words);
    });
    const every = (text, on) => element("button", {type: "button", onclick: () => {
      for (const label of boxes) label.firstChild.checked = on;
      this.hidden = new Set(on ? [] : model.groups.keys());
      this.changed();
    }}, text);
    const buttons = boxes.length > 3 ? [every("all", true), every("none", false)] : [];
    return element("div", {class: "groups"}, ...boxes, ...buttons);
  }

  #slider(limit) {
    const {column, low, high} = limit, log = low > 0 && high / low > 20;
    const at = scale(low, high, 0, 1000, log), up = column.maximise;
    // Rounded outwards, so that the displayed limit is the one that applies.
    const round = (value) => {
      const unit = 10 ** (Math.floor(Math.log10(Math.abs(value) || 1)) - 3);
      return clean((up ? Math.floor(value / unit + 1e-9) : Math.ceil(value / unit - 1e-9)) * unit);
    };
    const loosest = up ? 0 : 1000;
    const words = `limit of ${column.label}`;
    const range = element("input", {type: "range", min: 0, max: 1000, "aria-label": words});
    const number = element("input", {type: "number", step: "any", "aria-label": `${words}, as a number`});
    const set = (value, from) => {
      limit.value = value;
      if (from !== number) number.value = Number.isFinite(value) ? value : round(up ? low : high);
      if (from !== range) range.value = Number.isFinite(value) ? Math.round(at(value)) : loosest;
      this.changed();
    };
    range.addEventListener("input", () => {
      const position = Number(range.value);
      set(position === loosest ? limit.loose : round(at.invert(position)), range);
    });
    number.addEventListener("change", () =>
      set(number.value === "" ? limit.loose : Number(number.value), number));
    number.value = Number.isFinite(limit.value) ? limit.value : round(up ? low : high);
    range.value = Number.isFinite(limit.value) ? Math.round(at(limit.value)) : loosest;
    limit.reset = () => set(column.limit ?? limit.loose);
    const name = [`${column.label} ${up ? "≥" : "≤"} `, number, ` ${column.unit}`];
    return element("div", {class: "slider"}, element("span", {class: "name"}, ...name), range);
  }

  #judge() {
    const {model, status} = this;
    const shownGroup = model.groups.map((_, number) => !this.hidden.has(number));
    for (let i = 0; i < model.n; i++) status[i] = shownGroup[model.groupOf[i]] ? FITS : HIDDEN;
    for (const {column, judged, value} of this.limits) {
      if (!Number.isFinite(value)) continue;
      const limit = Math.fround(value); // as the figures are
      for (let i = 0; i < model.n; i++) {
        const fits = column.maximise ? judged[i] >= limit : judged[i] <= limit;
        if (status[i] === FITS && !fits) status[i] = OVER;
      }
    }
  }

  #count() {
    const {model, status} = this, y = model.columns[model.plots[0]?.y ?? 0];
    let n = 0, fitting = 0, members = 0, fittingMembers = 0, best = -1;
    const better = (i, j) => y.maximise ? y.best[i] > y.best[j] : y.best[i] < y.best[j];
    for (let i = 0; i < model.n; i++) {
      if (status[i] === HIDDEN) continue;
      n += 1;
      if (model.member[i] >= 0) members += 1;
      if (status[i] !== FITS) continue;
      fitting += 1;
      if (model.member[i] < 0) continue;
      fittingMembers += 1;
      if (best < 0 || better(i, best)) best = i;
    }
    const kind = model.verified ? "verified networks" : "members of the front";
    const words = [element("b", {}, `${many(fitting)} of ${many(n)} networks fit`),
                   `, ${many(fittingMembers)} of ${many(members)} ${kind}. `];
    if (best >= 0) {
      const searched = model.verified && !y.verified.known ? " as searched" : "";
      const run = model.runs.length > 1 ? ` of ${model.run(best).name}` : "";
      words.push(`${y.maximise ? "Highest" : "Lowest"} ${y.label} of a member that fits: `
                 + `${shown(y.best[best], y)}${searched} (${model.id(best)}${run}).`);
    }
    const left = model.runs.reduce((sum, run) => sum + run.all - run.n, 0);
    if (left) {
      words.push(` ${many(left)} dominated networks are not on this page; it has those nearest to the `
                 + "front and a sample of the others.");
    }
    const refused = model.runs.reduce((sum, run) => sum + run.refused, 0);
    if (refused) words.push(` The search rejected ${many(refused)} more without evaluation.`);
    if (this.limits.length) {
      words.push(" ", element("button", {type: "button", onclick: () => {
        for (const limit of this.limits) limit.reset();
      }}, "Reset limits"));
    }
    this.counts.replaceChildren(...words);
  }

  changed() {
    this.#judge();
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.pending = 0;
    hideTooltip();
    this.#count();
    if (this.selection) {
      const words = `${networks(this.selection.size)} selected, in every plot and table. `;
      this.chosen.replaceChildren(element("b", {}, words),
        element("button", {type: "button", onclick: () => this.select([])}, "Clear selection"));
    } else {
      this.chosen.textContent = "Hover over a point for its figures and choices. Click or drag a box to select "
        + "(shift adds); all plots and tables show the selection.";
    }
    for (const view of this.views) view.draw();
    this.#highlight();
  }

  select(points, more = false, from = null) {
    const before = more && this.selection ? [...this.selection] : [];
    const all = new Set([...before, ...points]);
    this.#choose(all, from);
    for (const other of apps) if (other !== this) other.#follow(this);
  }

  #choose(points, from = null) {
    const filters = from && from === this.parallel && from.brushes.size; // none may pass them
    this.selection = points.size || filters ? points : null;
    if (this.parallel && from !== this.parallel) this.parallel.brushes.clear();
    this.changed();
  }

  // Selects the networks that another explorer of the page has selected, by their ids.
  #follow(other) {
    const found = new Set();
    for (const i of other.selection ?? []) {
      for (const j of this.model.byId.get(other.model.id(i)) ?? []) found.add(j);
    }
    this.#choose(found);
  }

  toggle(i) {
    const all = new Set(this.selection ?? []);
    if (!all.delete(i)) all.add(i);
    this.select([...all]);
  }

  #highlight() {
    for (const scatter of this.scatters) scatter.highlight(this.hovered);
    this.parallel?.highlight(this.hovered);
  }

  hover(i, x, y) {
    if (this.hovered !== i) {
      this.hovered = i;
      this.#highlight();
    }
    if (i >= 0 && x !== undefined) showTooltip(this.model, i, x, y); else hideTooltip();
  }
}

document.body.append(tooltip);
const apps = [];
for (const section of document.querySelectorAll("section.explorer")) {
  const data = section.querySelector("script");
  if (!data) continue;
  apps.push(new App(section, new Model(JSON.parse(data.textContent))));
  data.remove();
}
for (const table of document.querySelectorAll("table.sorted")) sortable(table);
for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
      button.textContent = "copied";
      setTimeout(() => { button.textContent = before; }, 1500);
    } catch { // pages opened as files may not write to the clipboard: show the command instead
      const text = element("code", {}, button.dataset.copy);
      button.replaceWith(text);
      getSelection().selectAllChildren(text);
    }
  });
}
for (const section of document.querySelectorAll("section.log")) {
  section.addEventListener("change", (event) => {
    for (const line of section.querySelectorAll("li")) {
      if (line.dataset.kind === event.target.dataset.kind) line.hidden = !event.target.checked;
    }
  });
}
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth !== width) for (const app of apps) app.changed();
  width = innerWidth;
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const app of apps) if (app.selection) app.select([]);
});
requestAnimationFrame(() => requestAnimationFrame(() => {
  document.documentElement.dataset.ready = Math.round(performance.now()); // ms since it was opened
}));
