"use strict";
// The numbers of an explorer, unpacked.

const ARRAYS = {f4: Float32Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array};

function unpacked(packed, n) {
  if (!packed) return new Float32Array(n).fill(NaN);
  if (!("data" in packed)) return new Float32Array(n).fill(packed.constant);
  const text = atob(packed.data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return new ARRAYS[packed.type](bytes.buffer);
}

function figures(raw, n) {
  return {
    known: raw.value !== null,
    value: unpacked(raw.value, n),
    low: unpacked(raw.low, n),
    high: unpacked(raw.high, n),
    sources: raw.sources,
    source: raw.source ? unpacked(raw.source, n) : null,
  };
}

class Model {
  constructor(raw) {
    this.n = raw.n;
    this.front = raw.front; // indices of points
    this.notes = raw.notes; // of members of the front
    this.marked = new Set(raw.marked); // members that are framed
    this.marks = raw.marks;
    this.plots = raw.plots;
    this.beside = raw.beside && new Beside(raw.beside);
    this.member = new Int32Array(raw.n).fill(-1); // of a point: which member, or -1
    raw.front.forEach((point, member) => { this.member[point] = member; });
    this.columns = raw.columns.map((column) => ({
      ...column,
      title: column.unit ? `${column.label} [${column.unit}]` : column.label,
      searched: figures(column.searched, raw.n),
      verified: figures(column.verified, raw.front.length),
    }));
    for (const column of this.columns) column.best = this.#best(column);
    this.checked = raw.front.map((_, member) => // whether anything of a member is verified
      this.columns.some((column) => !Number.isNaN(column.verified.value[member])));
    this.verified = this.checked.includes(true);
    this.trials = unpacked(raw.trials, raw.n);
    this.stopped = unpacked(raw.stopped, raw.n);
    this.choices = raw.choices.map((choice) => ({...choice, codes: unpacked(choice.codes, raw.n)}));
    this.ids = Array.isArray(raw.ids) ? raw.ids : null;
    this.packedIds = this.ids ? null : unpacked(raw.ids);
    this.groups = [...new Set(raw.runs.map((run) => run.group))];
    let start = 0;
    this.runs = raw.runs.map((run, number) => {
      const whole = {...run, number, start, groupNumber: this.groups.indexOf(run.group)};
      start += run.n;
      return whole;
    });
    this.runOf = new Uint16Array(raw.n);
    this.groupOf = new Uint16Array(raw.n);
    for (const run of this.runs) {
      this.runOf.fill(run.number, run.start, run.start + run.n);
      this.groupOf.fill(run.groupNumber, run.start, run.start + run.n);
    }
  }

  id(i) {
    if (this.ids) return this.ids[i];
    return [...this.packedIds.subarray(6 * i, 6 * i + 6)]
      .map((byte) => byte.toString(16).padStart(2, "0")).join("");
  }

  // Points by id: a network may be in several runs.
  get byId() {
    if (!this.index) {
      this.index = new Map();
      for (let i = 0; i < this.n; i++) {
        const id = this.id(i);
        if (this.index.has(id)) this.index.get(id).push(i); else this.index.set(id, [i]);
      }
    }
    return this.index;
  }

  run(i) { return this.runs[this.runOf[i]]; }

  // Verification status of a point.
  verdict(i) {
    const member = this.member[i];
    if (member < 0) return this.verified ? "not verified" : "dominated";
    return this.notes[member] || (this.checked[member] ? "on the front" : "not verified");
  }

  // Figures of each point: verified, else searched.
  #best(column) {
    const best = Float32Array.from(column.searched.value);
    this.front.forEach((point, member) => {
      const value = column.verified.value[member];
      if (!Number.isNaN(value)) best[point] = value;
    });
    return best;
  }

  // The value that a limit applies to: the worse end of the interval.
  judged(column) {
    const judged = Float32Array.from(column.searched.value);
    const worse = (figures, i) => {
      const end = (column.maximise ? figures.low : figures.high)[i];
      return Number.isNaN(end) ? figures.value[i] : end;
    };
    for (let i = 0; i < this.n; i++) judged[i] = worse(column.searched, i);
    this.front.forEach((point, member) => {
      const value = worse(column.verified, member);
      if (!Number.isNaN(value)) judged[point] = value;
    });
    return judged;
  }
}

const clean = (value) => Number(value.toPrecision(7)); // of 32-bit floats: their noise

function shown(value, column) {
  if (!Number.isFinite(value)) return "–";
  return column.percent ? `${(100 * value).toFixed(2)}%` : String(Number(value.toPrecision(4)));
}

function interval(figures, i, column) {
  if (Number.isNaN(figures.low[i]) || Number.isNaN(figures.high[i])) return "";
  return `${shown(figures.low[i], column)} to ${shown(figures.high[i], column)}`;
}

function sourceOf(figures, i) {
  return figures.sources[figures.source ? figures.source[i] : 0];
}

function extent(values, accepts) {
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < values.length; i++) {
    if (!Number.isFinite(values[i]) || !accepts(i)) continue;
    if (values[i] < low) low = values[i];
    if (values[i] > high) high = values[i];
  }
  return [low, high];
}
