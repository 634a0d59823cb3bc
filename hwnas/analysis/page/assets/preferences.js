// Options that a front has more or less often than all candidates.

const FEW = 5; // networks of which no share is told from chance
const SIDE_BY_SIDE = 6; // fronts that are told apart in one card

class Preferences {
  constructor(host, app) {
    this.app = app;
    this.words = note("");
    this.cards = element("div", {class: "cards"});
    host.append(this.words, this.cards);
  }

  // Fractions of the selection, of each front, or of all fronts together.
  #sets() {
    const {model, status, selection, hidden} = this.app;
    const known = (i) => status[i] === 2 && model.run(i).choices;
    if (selection) return [{members: [...selection].filter(known), colour: "#333"}];
    const members = model.front.filter((i, member) => known(i) && !model.notes[member]);
    const groups = model.groups.map((_, g) => g).filter((g) => !hidden.has(g)
      && model.runs.some((run) => run.groupNumber === g && run.choices));
    if (groups.length < 2 || groups.length > SIDE_BY_SIDE) return [{members, colour: "#009E73"}];
    return groups.map((g) => ({
      members: members.filter((i) => model.groupOf[i] === g), colour: look(model, g).verified,
    }));
  }

  draw() {
    const {app} = this, {model, selection} = app, sets = this.#sets();
    const seen = model.runs.filter((run) => run.choices && !app.hidden.has(run.groupNumber));
    const all = seen.reduce((sum, run) => sum + run.all, 0);
    const n = sets.reduce((sum, set) => sum + set.members.length, 0);
    const fronts = model.runs.length > 1 ? "all fronts together" : "the front";
    const whose = sets.length > 1
      ? "Coloured bars: fractions of the networks of each front (in the colours above)"
      : `Upper bar: fraction of the ${networks(n)} of ${selection ? "the selection" : fronts}`;
    const apart = !selection && sets.length === 1 && model.groups.length > SIDE_BY_SIDE
      ? ` Show ${SIDE_BY_SIDE} names or fewer above to see their fronts side by side.` : "";
    this.words.textContent =
      `${whose}; grey bar: fraction of all ${many(all)} evaluated candidates, among those in which the `
      + `choice is active${sets.length > 3 ? "" : " (number next to its name)"}. Most significant choices first `
      + "(Pearson's chi-squared per degree of freedom), those of fewer than 5 networks last. "
      + `A fraction of 20 networks is uncertain by about 20 points.${apart}`;
    const total = (counts) => counts.reduce((a, b) => a + b, 0);
    const cards = model.choices.filter((choice) => choice.options.length > 1).map((choice) => {
      const every = choice.options.map((_, k) => seen.reduce((sum, r) => sum + choice.all[r.number][k], 0));
      const usual = every.map((count) => count / (total(every) || 1));
      const bars = sets.map(({members, colour}) => {
        const chosen = new Array(choice.options.length).fill(0);
        for (const i of members) if (choice.codes[i]) chosen[choice.codes[i] - 1] += 1;
        const active = total(chosen);
        return {colour, n: active, share: chosen.map((count) => count / (active || 1))};
      });
      return {choice, bars, usual, difference: Math.max(...bars.map((bar) => this.#difference(bar, usual)))};
    });
    cards.sort((a, b) => b.difference - a.difference);
    this.cards.replaceChildren(...cards.map((card) => this.#card(card)));
  }

  // Pearson's statistic divided by its degrees of freedom: about 1 without preference.
  #difference({n, share}, usual) {
    if (n < FEW) return 0;
    return n / (share.length - 1)
      * share.reduce((sum, s, k) => sum + (usual[k] ? (s - usual[k]) ** 2 / usual[k] : 0), 0);
  }

  #card({choice, bars, usual}) {
    const percent = (value) => `${Math.round(100 * value)}%`;
    const bar = (value, fill) => {
      const made = element("i", {class: "bar"});
      made.style.width = percent(value);
      made.style.background = fill;
      return made;
    };
    const rows = choice.options.map((option, k) => {
      const shares = bars.map(({share, n}) => n ? percent(share[k]) : "–"), few = bars.length <= 3;
      const texts = shares.map((text, j) =>
        element("span", bars.length > 1 ? {style: `color: ${bars[j].colour}`} : {}, `${text} `));
      return element("tr", few ? {} : {title: shares.join(", ")},
        element("td", {}, String(option)),
        element("td", {class: "bars"}, ...bars.map(({share, colour}) => bar(share[k], colour)),
                bar(usual[k], GREY)),
        element("td", {}, ...(few ? texts : []), element("small", {}, `of ${percent(usual[k])}`)));
    });
    const counts = bars.length > 3 ? "" : bars.map(({n}) => many(n)).join(", ");
    return element("div", {class: "card"}, element("h4", {}, choice.name, element("small", {}, ` ${counts}`)),
                   element("table", {}, ...rows));
  }
}
