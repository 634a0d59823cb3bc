// Parallel coordinates: a line for each network, an axis for each choice and each objective.

const BEHIND = 800; // grey lines: more are only a darker grey
const SELECTED = 1500; // lines of a selection
const HEAD = 150, FOOT = 26, BODY = 260, SPACE = 35, RIGHT = 80;

class Parallel {
  constructor(host, app) {
    this.app = app;
    const {model} = app;
    const choices = model.choices.map((choice) => this.#choice(choice));
    const objectives = model.columns.filter((column) => column.objective && column.searched.known)
      .map((column) => this.#objective(column));
    this.axes = [...choices, ...objectives];
    this.brushes = new Map();
    this.layers = new Layers(host, "parallel coordinates over choices and objectives");
    this.behind = this.#sample();
    this.#listen();
  }

  #choice(choice) {
    const {model} = this.app, n = choice.options.length;
    const known = (i) => model.run(i).choices;
    const inactive = choice.codes.some((code, i) => code === 0 && known(i));
    const slots = n + (inactive ? 1 : 0), first = inactive ? 0 : 1;
    const middle = (code) => (code - first + 0.5) / slots;
    return {
      title: choice.name,
      at: (i) => known(i)
        ? middle(choice.codes[i]) + (((i * 2654435761 >>> 8) % 1000) / 1000 - 0.5) * 0.4 / slots : NaN,
      labels: [...(inactive ? [["–", middle(0)]] : []),
               ...choice.options.map((option, k) => [String(option), middle(k + 1)])],
    };
  }

  #objective(column) {
    const [low, high] = extent(column.best, () => true);
    const at = scale(low, high, 0, 1, !column.maximise && low > 0 && high > 10 * low);
    return {
      title: column.title, objective: true,
      at: (i) => at(column.best[i]),
      labels: [[shown(low, column), 0], [shown(high, column), 1]],
    };
  }

  #sample() {
    const {model} = this.app, others = [];
    for (let i = 0; i < model.n; i++) if (model.member[i] < 0) others.push(i);
    const step = Math.max(1, others.length / BEHIND);
    return Array.from({length: Math.min(BEHIND, others.length)}, (_, k) => others[Math.floor(k * step)]);
  }

  draw() {
    const {app, axes} = this, {model, status, selection} = app;
    const room = this.layers.box.parentElement.clientWidth;
    const width = Math.max(room, 30 + RIGHT + SPACE * (axes.length - 1));
    [this.context, this.above] = this.layers.size(width, HEAD + BODY + FOOT);
    this.gap = (width - 30 - RIGHT) / Math.max(1, axes.length - 1);
    const {context} = this;
    context.lineWidth = 1;
    const lines = (points, colour, alpha) => {
      context.globalAlpha = alpha;
      for (const i of points) { context.strokeStyle = colour(i); this.#line(context, i); }
      context.globalAlpha = 1;
    };
    const members = model.front.filter((i) => status[i] === 2);
    lines(this.behind.filter((i) => status[i]), (i) => status[i] === 2 ? GREY : FAINT, 0.25);
    const colour = (i) => look(model, model.groupOf[i])[outcome(model, model.member[i])];
    lines(members, colour, selection ? 0.08 : Math.max(0.05, Math.min(0.8, 40 / members.length)));
    if (selection) {
      const chosen = [...selection].filter((i) => status[i] === 2).slice(0, SELECTED);
      lines(chosen, (i) => model.member[i] < 0 ? "#333" : colour(i),
            Math.max(0.15, Math.min(1, 60 / chosen.length)));
    }
    axes.forEach((axis, k) => this.#axis(axis, k));
  }

  x(k) { return 30 + k * this.gap; }

  y(share) { return HEAD + BODY * (1 - share); }

  #line(context, i) {
    context.beginPath();
    let down = false;
    this.axes.forEach((axis, k) => {
      const share = axis.at(i);
      if (Number.isNaN(share)) { down = false; return; }
      if (down) context.lineTo(this.x(k), this.y(share));
      else context.moveTo(this.x(k), this.y(share));
      down = true;
    });
    context.stroke();
  }

  #axis(axis, k) {
    const {context} = this, x = this.x(k);
    context.strokeStyle = axis.objective ? "#333" : "#999";
    context.beginPath(); context.moveTo(x, HEAD - 4); context.lineTo(x, HEAD + BODY + 4);
    context.stroke();
    context.save();
    context.translate(x, HEAD - 10);
    context.rotate(-Math.PI / 3.4);
    context.fillStyle = INK;
    context.textAlign = "left";
    context.font = `${axis.objective ? "600 " : ""}11px system-ui, sans-serif`;
    context.fillText(axis.title, 0, 0, axis.objective ? 130 : 175);
    context.restore();
    context.font = "10px system-ui, sans-serif";
    for (const [text, share] of axis.labels) {
      const y = this.y(share) + (axis.objective ? (share ? -2 : 14) : 3);
      const w = Math.min(context.measureText(text).width, this.gap - 8);
      context.fillStyle = "rgba(255,255,255,.85)";
      context.fillRect(x + 3, y - 9, w + 2, 12);
      context.fillStyle = "#333";
      context.fillText(text, x + 4, y, Math.max(10, this.gap - 8));
    }
    const brush = this.brushes.get(k);
    if (brush) {
      context.fillStyle = "rgba(170,51,119,.25)";
      context.strokeStyle = LIMIT;
      const top = this.y(brush[1]), height = this.y(brush[0]) - top;
      context.fillRect(x - 7, top, 14, height);
      context.strokeRect(x - 7, top, 14, height);
    }
  }

  highlight(i) {
    this.above.clearRect(0, 0, this.layers.width, this.layers.height);
    if (i < 0) return;
    this.above.strokeStyle = "#000";
    this.above.lineWidth = 2.5;
    this.#line(this.above, i);
  }

  // Selects the networks within all filters.
  #brush() {
    const {app: {model, status}} = this, found = [];
    if (!this.brushes.size) { this.app.select([]); return; }
    for (let i = 0; i < model.n; i++) {
      if (status[i] !== 2) continue;
      let passes = true;
      for (const [k, [low, high]] of this.brushes) {
        const share = this.axes[k].at(i);
        if (!(share >= low && share <= high)) { passes = false; break; }
      }
      if (passes) found.push(i);
    }
    this.app.select(found, false, this);
  }

  #listen() {
    const {box} = this.layers;
    let axis = -1, start = 0;
    const place = (event) => {
      const bounds = box.getBoundingClientRect();
      const k = Math.round((event.clientX - bounds.left - 30) / this.gap);
      return [k, 1 - (event.clientY - bounds.top - HEAD) / BODY];
    };
    box.addEventListener("pointerdown", (event) => {
      [axis, start] = place(event);
      if (axis < 0 || axis >= this.axes.length) axis = -1;
      if (event.pointerType === "mouse") box.setPointerCapture(event.pointerId);
    });
    const move = (event, done) => {
      if (axis < 0) return;
      const share = place(event)[1];
      if (Math.abs(share - start) * BODY < 4) this.brushes.delete(axis);
      else this.brushes.set(axis, [Math.min(start, share), Math.max(start, share)]);
      if (done) { axis = -1; this.#brush(); } else this.draw();
    };
    box.addEventListener("pointermove", (event) => { if (event.buttons) move(event, false); });
    box.addEventListener("pointerup", (event) => move(event, true));
    box.addEventListener("pointercancel", () => { axis = -1; });
  }
}
