// The first objective over another one: all points, fronts with intervals, budget.

const MARGIN = {left: 62, right: 14, top: 12, bottom: 44};
const REACH = 12; // pixels within which the pointer finds a point

class Scatter {
  constructor(host, app, plot) {
    this.app = app;
    this.plot = plot;
    this.x = app.model.columns[plot.x];
    this.y = app.model.columns[plot.y];
    this.own = app.model.columns[plot.verified]; // verified figures of y
    this.layers = new Layers(host, `${this.y.label} over ${this.x.label}`);
    this.pixels = new Float32Array(2 * app.model.n);
    this.#listen();
  }

  draw() {
    const {app, x, y} = this, {model, status} = app;
    const width = Math.max(260, this.layers.box.parentElement.clientWidth);
    const height = Math.round(Math.min(440, Math.max(300, 0.72 * width)));
    [this.context, this.above] = this.layers.size(width, height);
    const [x0, x1] = this.#range(x, x, this.plot.x), [y0, y1] = this.#range(y, this.own, this.plot.y);
    this.log = app.log && x0 > 0;
    const pad = (low, high, log) => log ? [low / (high / low) ** 0.03, high * (high / low) ** 0.03]
      : [low - 0.03 * (high - low || high || 1), high + 0.03 * (high - low || high || 1)];
    const [xa, xb] = pad(x0, x1, this.log), [ya, yb] = pad(y0, y1, false);
    this.sx = scale(xa, xb, MARGIN.left, width - MARGIN.right, this.log);
    this.sy = scale(ya, yb, height - MARGIN.bottom, MARGIN.top, false);
    this.#axes(xa, xb, ya, yb);
    this.context.save();
    this.context.beginPath();
    this.context.rect(MARGIN.left, MARGIN.top, width - MARGIN.left - MARGIN.right,
                      height - MARGIN.top - MARGIN.bottom);
    this.context.clip();
    for (let i = 0; i < model.n; i++) {
      this.pixels[2 * i] = this.sx(x.searched.value[i]);
      this.pixels[2 * i + 1] = this.sy(y.searched.value[i]);
    }
    this.#crowd(1, FAINT);
    this.#crowd(2, GREY);
    if (app.selection) this.#crowd(2, "#444", app.selection);
    this.#limit();
    if (app.beside) model.beside.draw(this, this.plot);
    for (const run of model.runs) this.#stairs(run);
    model.front.forEach((point, member) => { if (status[point]) this.#member(point, member); });
    this.#selected();
    this.context.restore();
  }

  #range(column, own, number) {
    const {model, status, zoomed} = this.app;
    const accepts = (i) => status[i] && (!zoomed || model.member[i] >= 0);
    const ends = [extent(column.searched.value, accepts),
                  extent(own.verified.value, (m) => status[model.front[m]])];
    if (zoomed || this.app.bars) {
      const seen = (m) => status[model.front[m]];
      ends.push(extent(own.verified.low, seen), extent(own.verified.high, seen));
    }
    if (this.app.beside && !zoomed) ends.push(...model.beside.extents(number, this.app.bars));
    const low = Math.min(...ends.map((end) => end[0]));
    let high = Math.max(...ends.map((end) => end[1]));
    const near = column.limit !== null && !zoomed && column.limit < 2 * high; // worth its room
    if (near) high = Math.max(high, column.limit);
    return low <= high ? [low, high] : [0, 1];
  }

  #axes(xa, xb, ya, yb) {
    const {context, layers: {width, height}, x, y} = this;
    const bottom = height - MARGIN.bottom, right = width - MARGIN.right;
    context.strokeStyle = "#eee";
    context.fillStyle = "#555";
    context.lineWidth = 1;
    context.textAlign = "center";
    for (const tick of ticks(xa, xb, this.log, width < 420 ? 4 : 7)) {
      const at = Math.round(this.sx(tick)) + 0.5;
      context.beginPath(); context.moveTo(at, MARGIN.top); context.lineTo(at, bottom);
      context.stroke();
      context.fillText(tickText(tick, x), at, bottom + 16);
    }
    context.textAlign = "right";
    for (const tick of ticks(ya, yb, false, 6)) {
      const at = Math.round(this.sy(tick)) + 0.5;
      context.beginPath(); context.moveTo(MARGIN.left, at); context.lineTo(right, at);
      context.stroke();
      context.fillText(tickText(tick, y), MARGIN.left - 6, at + 4);
    }
    context.strokeStyle = "#999";
    context.strokeRect(MARGIN.left + 0.5, MARGIN.top + 0.5, right - MARGIN.left,
                       bottom - MARGIN.top);
    context.fillStyle = INK;
    context.textAlign = "center";
    const title = this.log ? `${x.title}, logarithmic` : x.title;
    context.fillText(title, (MARGIN.left + right) / 2, height - 8);
    context.save();
    context.translate(13, (MARGIN.top + bottom) / 2);
    context.rotate(-Math.PI / 2);
    context.fillText(y.title, 0, 0);
    context.restore();
  }

  // Points off the front, one per pixel.
  #crowd(wanted, colour, among = null) {
    const {context, pixels, app: {model, status}, layers: {width, height}} = this;
    const taken = new Uint8Array(width * height), size = model.n > 20_000 ? 2 : 3;
    context.fillStyle = colour;
    for (let i = 0; i < model.n; i++) {
      if (status[i] !== wanted || model.member[i] >= 0 || (among && !among.has(i))) continue;
      const px = pixels[2 * i] | 0, py = pixels[2 * i + 1] | 0;
      if (px < 0 || py < 0 || px >= width || py >= height || taken[py * width + px]) continue;
      taken[py * width + px] = 1;
      context.fillRect(px - 1, py - 1, size, size);
    }
  }

  #limit() {
    const limit = this.app.limitOf(this.x), {context, layers: {width, height}} = this;
    const line = (value, dash) => {
      const at = this.sx(value);
      context.strokeStyle = LIMIT;
      context.setLineDash(dash);
      context.beginPath(); context.moveTo(at, MARGIN.top);
      context.lineTo(at, height - MARGIN.bottom); context.stroke();
      context.setLineDash([]);
      return at;
    };
    if (this.x.limit !== null) {
      const at = line(this.x.limit, [6, 4]), late = at > width - 130;
      context.fillStyle = LIMIT;
      context.textAlign = late ? "right" : "left";
      const text = `budget ${Number(this.x.limit.toPrecision(4))} ${this.x.unit}`;
      context.fillText(text, at + (late ? -5 : 5), height - MARGIN.bottom - 8);
    }
    if (Number.isFinite(limit) && limit !== this.x.limit) line(limit, [2, 3]);
  }

  // Positions of a member: verified, if known, and searched.
  #place(point, member) {
    const vx = this.x.verified.value[member], vy = this.own.verified.value[member];
    const verified = !Number.isNaN(vx) && !Number.isNaN(vy);
    return verified ? [this.sx(vx), this.sy(vy), true]
      : [this.pixels[2 * point], this.pixels[2 * point + 1], false];
  }

  // The best value up to each cost, in this plane.
  #stairs(run) {
    const {context, app: {model, status, selection}} = this;
    const steps = [];
    model.front.forEach((point, member) => {
      if (model.runOf[point] !== run.number || status[point] !== 2 || model.notes[member]) return;
      const [px, py] = this.#place(point, member);
      steps.push([this.x.maximise ? -px : px, this.y.maximise ? py : -py]);
    });
    steps.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
    context.strokeStyle = look(model, run.groupNumber).verified;
    context.globalAlpha = selection ? 0.15 : 0.45;
    context.lineWidth = 1;
    context.beginPath();
    let best = Infinity;
    for (const [sx, sy] of steps) {
      if (sy >= best) continue;
      const px = this.x.maximise ? -sx : sx, py = this.y.maximise ? sy : -sy;
      if (best === Infinity) context.moveTo(px, py);
      else context.lineTo(px, this.y.maximise ? best : -best);
      context.lineTo(px, py);
      best = sy;
    }
    context.stroke();
    context.globalAlpha = 1;
  }

  #member(point, member) {
    const {context, app} = this, {model, status, selection} = app;
    const style = look(model, model.groupOf[point]), fits = status[point] === 2;
    const found = outcome(model, member), left = found === "left";
    const [px, py, verified] = this.#place(point, member);
    context.globalAlpha = selection && !selection.has(point) ? 0.18 : 1;
    const size = model.front.length <= 400 ? 4 : model.front.length <= 1500 ? 3 : 2.2;
    context.lineWidth = size < 3 ? 1 : 1.4;
    context.strokeStyle = fits ? style.searched : FAINT;
    trace(context, style.mark, this.pixels[2 * point], this.pixels[2 * point + 1], size);
    context.stroke();
    if (!model.verified) { context.fillStyle = context.strokeStyle; context.fill(); }
    const colour = fits ? style[found] : FAINT;
    context.strokeStyle = context.fillStyle = colour;
    if (app.bars) {
      const [fx, fy, x, y] = verified
        ? [this.x.verified, this.own.verified, member, member]
        : [this.x.searched, this.y.searched, point, point];
      this.#bar(this.sx(fx.low[x]), py, this.sx(fx.high[x]), py);
      this.#bar(px, this.sy(fy.low[y]), px, this.sy(fy.high[y]));
    }
    if (verified) {
      trace(context, left ? "cross" : style.mark, px, py, 0.9 * size);
      if (left) context.stroke(); else context.fill();
    }
    if (model.marked.has(member)) {
      context.strokeStyle = fits ? "#000" : FAINT;
      context.strokeRect(px - 7, py - 7, 14, 14);
    }
    context.globalAlpha = 1;
  }

  #bar(x0, y0, x1, y1) {
    if (Number.isNaN(x0 + x1 + y0 + y1)) return;
    this.context.lineWidth = 0.8;
    this.context.beginPath();
    this.context.moveTo(x0, y0); this.context.lineTo(x1, y1);
    this.context.stroke();
    this.context.lineWidth = 1.4;
  }

  #selected() {
    const {context, app: {model, status, selection}} = this;
    if (!selection) return;
    context.strokeStyle = "#000";
    context.lineWidth = 1;
    for (const point of selection) {
      if (!status[point] || model.member[point] < 0) continue;
      const sx = this.pixels[2 * point], sy = this.pixels[2 * point + 1];
      const [px, py, verified] = this.#place(point, model.member[point]);
      if (verified && selection.size <= 60) {
        context.globalAlpha = 0.5;
        context.beginPath(); context.moveTo(sx, sy); context.lineTo(px, py); context.stroke();
        context.globalAlpha = 1;
      }
      trace(context, "circle", px, py, 6.5);
      context.stroke();
    }
  }

  // The nearest point, preferably of a front.
  at(px, py) {
    const {pixels, app: {model, status}} = this;
    let found = -1, nearest = REACH ** 2;
    const look = (i, x, y) => {
      const distance = (x - px) ** 2 + (y - py) ** 2;
      if (distance < nearest) { nearest = distance; found = i; }
    };
    model.front.forEach((point, member) => {
      if (!status[point]) return;
      const [x, y] = this.#place(point, member);
      look(point, x, y);
      look(point, pixels[2 * point], pixels[2 * point + 1]);
    });
    if (found >= 0) return found;
    for (let i = 0; i < model.n; i++) if (status[i]) look(i, pixels[2 * i], pixels[2 * i + 1]);
    return found;
  }

  point(i) {
    const member = this.app.model.member[i];
    return member < 0 ? [this.pixels[2 * i], this.pixels[2 * i + 1]] : this.#place(i, member);
  }

  highlight(i) {
    const {above, layers: {width, height}} = this;
    above.clearRect(0, 0, width, height);
    if (i < 0) return;
    const [px, py] = this.point(i);
    above.strokeStyle = "#000";
    above.lineWidth = 2;
    trace(above, "circle", px, py, 7);
    above.stroke();
  }

  #listen() {
    const {app, layers: {box}} = this;
    let start = null;
    const place = (event) => {
      const bounds = box.getBoundingClientRect();
      return [event.clientX - bounds.left, event.clientY - bounds.top];
    };
    box.addEventListener("pointerdown", (event) => {
      start = place(event);
      if (event.pointerType === "mouse") box.setPointerCapture(event.pointerId);
    });
    box.addEventListener("pointermove", (event) => {
      const [px, py] = place(event);
      if (start && event.buttons && event.pointerType === "mouse") {
        this.highlight(-1);
        this.above.fillStyle = "rgba(0,0,0,.08)";
        this.above.fillRect(start[0], start[1], px - start[0], py - start[1]);
        return;
      }
      app.hover(this.at(px, py), event.clientX, event.clientY);
    });
    box.addEventListener("pointerup", (event) => {
      if (!start) return;
      const [px, py] = place(event), [sx, sy] = start;
      start = null;
      if (Math.hypot(px - sx, py - sy) < 5) {
        const found = this.at(px, py);
        app.select(found < 0 ? [] : [found], event.shiftKey);
      } else if (event.pointerType === "mouse") {
        const inside = [];
        for (let i = 0; i < app.model.n; i++) {
          if (app.status[i] !== 2) continue;
          const [x, y] = this.point(i);
          if ((x - px) * (x - sx) <= 0 && (y - py) * (y - sy) <= 0) inside.push(i);
        }
        app.select(inside, event.shiftKey);
      }
    });
    box.addEventListener("pointercancel", () => { start = null; });
    box.addEventListener("pointerleave", () => app.hover(-1));
  }
}
