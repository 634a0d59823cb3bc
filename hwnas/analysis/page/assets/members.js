// The table of members of the front, or of the selection: sorted by any column, saved as CSV.

const ROWS = 100; // shown before all are asked for

class Members {
  constructor(host, app) {
    this.app = app;
    this.order = {key: 0, down: false};
    this.whole = false;
    this.columns = this.#columns();
    const cost = this.columns.findIndex((column) => column.first);
    if (cost >= 0) this.order.key = cost;
    this.only = element("input", {type: "checkbox", onchange: () => this.draw()});
    this.onlyWords = element("span");
    this.save = element("button", {type: "button", onclick: () => this.download()});
    this.more = element("button", {type: "button", onclick: () => { this.whole = true; this.draw(); }});
    this.head = element("tr");
    this.body = element("tbody");
    host.append(
      element("div", {class: "controls"}, this.save,
              element("label", {class: "only"}, this.only, " ", this.onlyWords)),
      element("div", {class: "scroll tall"},
              element("table", {class: "members"}, element("thead", {}, this.head), this.body)),
      this.more);
  }

  // A cell: value to sort by, text, small text.
  #columns() {
    const {model} = this.app, plain = (title, text) => ({title, sort: text, text, left: true});
    const found = [plain("id", (i) => model.id(i))];
    if (model.runs.length > 1) found.push(plain("run", (i) => model.run(i).name));
    if (model.groups.length > 1 && model.groups.length < model.runs.length) {
      found.push(plain("group", (i) => model.run(i).group));
    }
    if (model.trials.some((trial) => !Number.isNaN(trial))) {
      const text = (i) => Number.isNaN(model.trials[i]) ? "–" : String(model.trials[i]);
      found.push({title: "trial", sort: (i) => model.trials[i], text});
    }
    if (model.verified) {
      found.push(plain("after verification", (i) => model.verdict(i)));
    }
    let first = true;
    const whole = !model.checked.includes(false); // else searched figures are all that some have
    for (const column of model.columns) {
      const {searched, verified} = column;
      if (searched.known && (!verified.known || column.quality || !whole)) {
        found.push({
          title: model.verified ? `${column.title} searched` : column.title,
          sort: (i) => searched.value[i], text: (i) => shown(searched.value[i], column),
          small: (i) => interval(searched, i, column),
          first: first && column.objective && !column.quality && !column.maximise,
        });
      }
      if (verified.known) {
        found.push({
          title: `${column.title} verified`,
          sort: (i) => this.#value(verified, i), text: (i) => shown(this.#value(verified, i), column),
          small: (i) => this.#change(column, i),
          first: first && column.objective && !column.quality && !column.maximise,
        });
      }
      if (found.some((each) => each.first)) first = false;
    }
    return found;
  }

  #value(figures, i) {
    const member = this.app.model.member[i];
    return member < 0 ? NaN : figures.value[member];
  }

  #change(column, i) {
    const {searched, verified} = column, member = this.app.model.member[i];
    if (member < 0 || Number.isNaN(verified.value[member])) return "";
    if (column.quality || !searched.known) return interval(verified, member, column);
    const change = 100 * (verified.value[member] / searched.value[i] - 1);
    return Number.isFinite(change) ? `${change < 0 ? "−" : "+"}${Math.abs(change).toFixed(1)}%` : "";
  }

  rows() {
    const {model, status, selection} = this.app;
    const source = selection && this.only.checked ? [...selection] : model.front;
    const found = source.filter((i) => status[i] === 2);
    const {key, down} = this.order, sort = this.columns[key].sort;
    const values = new Map(found.map((i) => [i, sort(i)]));
    const missing = (value) => typeof value === "number" && Number.isNaN(value);
    return found.sort((i, j) => {
      const a = values.get(i), b = values.get(j);
      if (missing(a) || missing(b)) return missing(a) - missing(b) || i - j; // last, either way
      const order = a < b ? -1 : a > b ? 1 : 0;
      return (down ? -order : order) || i - j;
    });
  }

  draw() {
    const {app} = this, {selection, model} = app, rows = this.rows();
    this.save.textContent = `Download these ${many(rows.length)} rows as CSV`;
    this.onlyWords.textContent = selection
      ? `show the selection instead of the front (${networks(selection.size)})` : "";
    this.onlyWords.parentElement.hidden = !selection;
    if (!selection) this.only.checked = false;
    this.head.replaceChildren(element("th", {class: "pick"}), ...this.columns.map((column, key) => {
      const on = this.order.key === key;
      const click = () => {
        this.order = {key, down: on && !this.order.down};
        this.draw();
      };
      const arrow = on ? (this.order.down ? " ▼" : " ▲") : "";
      return element("th", {
        class: column.left ? "left" : "",
        "aria-sort": on ? (this.order.down ? "descending" : "ascending") : "none",
      }, element("button", {type: "button", onclick: click, title: "sort by this column"},
                 column.title + arrow));
    }));
    const visible = this.whole ? rows : rows.slice(0, ROWS);
    this.body.replaceChildren(...visible.map((i) => this.#row(i, model, selection)));
    this.more.hidden = visible.length === rows.length;
    this.more.textContent = `Show all ${many(rows.length)} rows`;
  }

  #row(i, model, selection) {
    const cells = this.columns.map((column) => {
      const small = column.small ? column.small(i) : "";
      return element("td", {class: column.left ? "left" : ""}, column.text(i),
                     ...(small ? [element("small", {}, ` ${small}`)] : []));
    });
    const chosen = Boolean(selection && selection.has(i));
    const pick = element("input", {
      type: "checkbox", "aria-label": `select ${model.id(i)}`,
      onchange: () => this.app.toggle(i),
    });
    pick.checked = chosen;
    const member = model.member[i];
    const found = member >= 0 ? outcome(model, member) : "";
    const kind = [chosen ? "chosen" : "", {left: "left-front", near: "near-front"}[found] ?? ""];
    return element("tr", {class: kind.join(" ").trim(), "data-point": i,
                          onmouseenter: () => this.app.hover(i),
                          onmouseleave: () => this.app.hover(-1)},
                   element("td", {class: "pick"}, pick), ...cells);
  }

  csv() {
    const {model} = this.app;
    const number = (value) => Number.isFinite(value) ? String(clean(value)) : "";
    const columns = [["id", (i) => model.id(i)], ["run", (i) => model.run(i).name],
                     ["group", (i) => model.run(i).group], ["trial", (i) => number(model.trials[i])],
                     [model.verified ? "verified" : "on_front", (i) => String(model.member[i] >= 0)],
                     ["after_verification", (i) => model.notes[model.member[i]] ?? ""]];
    for (const {name, searched, verified} of model.columns) {
      for (const [prefix, figures, at] of [["", searched, (i) => i],
                                           ["verified_", verified, (i) => model.member[i]]]) {
        if (!figures.known) continue;
        for (const [part, suffix] of [["value", ""], ["low", "_low"], ["high", "_high"]]) {
          columns.push([prefix + name + suffix, (i) => number(figures[part][at(i)] ?? NaN)]);
        }
      }
    }
    for (const choice of model.choices) {
      columns.push([choice.name, (i) => String(choice.options[choice.codes[i] - 1] ?? "")]);
    }
    const quoted = (text) => /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    const lines = [columns.map(([name]) => name), ...this.rows().map((i) => columns.map(([, of]) => of(i)))];
    return lines.map((line) => line.map(quoted).join(",") + "\n").join("");
  }

  download() {
    const address = URL.createObjectURL(new Blob([this.csv()], {type: "text/csv"}));
    const link = element("a", {href: address, download: "front.csv"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }
}
