// Networks of a baseline, drawn in addition to the front; they cannot be selected.

const BESIDE = "#8A6D3B";

class Beside {
  constructor(raw) {
    this.label = raw.label;
    this.n = raw.n;
    this.columns = raw.columns.map((column) => figures(column, raw.n));
  }

  // Range of a column, optionally with intervals.
  extents(number, ends) {
    const column = this.columns[number], all = () => true;
    const found = ends ? [column.value, column.low, column.high] : [column.value];
    return found.map((values) => extent(values, all));
  }

  // Draws the networks with both figures, and the best of them up to each cost.
  draw(scatter, plot) {
    const {context, sx, sy, app} = scatter, x = this.columns[plot.x], y = this.columns[plot.y];
    const known = [];
    for (let i = 0; i < this.n; i++) {
      if (!Number.isNaN(x.value[i]) && !Number.isNaN(y.value[i])) known.push(i);
    }
    const down = scatter.x.maximise ? -1 : 1, up = scatter.y.maximise ? 1 : -1;
    known.sort((i, j) => down * (x.value[i] - x.value[j]) || up * (y.value[j] - y.value[i]));
    context.strokeStyle = BESIDE;
    context.lineWidth = 1;
    context.globalAlpha = 0.55;
    context.beginPath();
    let best = null;
    for (const i of known) {
      if (best !== null && up * (y.value[i] - y.value[best]) <= 0) continue;
      const px = sx(x.value[i]), py = sy(y.value[i]);
      if (best === null) context.moveTo(px, py); else context.lineTo(px, sy(y.value[best]));
      context.lineTo(px, py);
      best = i;
    }
    context.stroke();
    for (const i of known) {
      const px = sx(x.value[i]), py = sy(y.value[i]);
      if (app.bars && !Number.isNaN(y.low[i] + y.high[i])) {
        context.lineWidth = 0.8;
        context.beginPath();
        context.moveTo(px, sy(y.low[i])); context.lineTo(px, sy(y.high[i]));
        context.stroke();
      }
      context.lineWidth = 1.2;
      trace(context, "diamond", px, py, 4.8);
      context.fillStyle = "#fff";
      context.globalAlpha = 1;
      context.fill();
      context.globalAlpha = 0.8;
      context.stroke();
    }
    context.globalAlpha = 1;
  }
}
