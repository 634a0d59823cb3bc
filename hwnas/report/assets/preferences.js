// Which options the front takes more often, or less often, than all candidates do.

const FEW = 5; // networks of which no share is told from chance

class Preferences {
  constructor(host, app) {
    this.app = app;
    this.words = note("");
    this.cards = element("div", {class: "cards"});
    host.append(this.words, this.cards);
  }

  draw() {
    const {app} = this, {model, status, selection} = app;
    const seen = model.runs.filter((run) => !app.hidden.has(run.groupNumber));
    const members = selection ? [...selection].filter((i) => status[i] === 2)
      : model.front.filter((i, member) => status[i] === 2 && !model.notes[member]);
    const who = selection ? "the selection" : "the front";
    const all = seen.reduce((sum, run) => sum + run.all, 0);
    this.words.textContent =
      `Upper bar: share among the ${networks(members.length)} of ${who}; grey bar: `
      + `share among all ${many(all)} candidates with an accuracy. Shares are of those in `
      + "which the choice is active (as many as stand beside its name). What least looks like chance "
      + "comes first (Pearson's chi-squared by degrees of freedom); fewer than 5 networks, which say "
      + "nothing, last. A share of 20 networks is uncertain by some 20 points.";
    const cards = model.choices.filter((choice) => choice.options.length > 1).map((choice) => {
      const chosen = new Array(choice.options.length).fill(0);
      for (const i of members) if (choice.codes[i]) chosen[choice.codes[i] - 1] += 1;
      const every = choice.options.map((_, k) => seen.reduce((sum, r) => sum + choice.all[r.number][k], 0));
      const total = (counts) => counts.reduce((a, b) => a + b, 0) || 1;
      const share = chosen.map((count) => count / total(chosen));
      const usual = every.map((count) => count / total(every));
      // Pearson's statistic by its degrees of freedom: about 1 where nothing is preferred.
      const n = chosen.reduce((a, b) => a + b, 0);
      const difference = n < FEW ? 0 : n / (share.length - 1)
        * share.reduce((sum, s, k) => sum + (usual[k] ? (s - usual[k]) ** 2 / usual[k] : 0), 0);
      return {choice, share, usual, difference, n};
    });
    cards.sort((a, b) => b.difference - a.difference);
    const colour = selection ? "#333" : "#009E73";
    this.cards.replaceChildren(...cards.map((card) => this.#card(card, colour)));
  }

  #card({choice, share, usual, n}, colour) {
    const percent = (value) => `${Math.round(100 * value)}%`;
    const bar = (value, fill) => {
      const made = element("i", {class: "bar"});
      made.style.width = percent(value);
      made.style.background = fill;
      return made;
    };
    const rows = choice.options.map((option, k) => element("tr", {},
      element("td", {}, String(option)),
      element("td", {class: "bars"}, bar(share[k], colour), bar(usual[k], GREY)),
      element("td", {}, `${percent(share[k])}`, element("small", {}, ` of ${percent(usual[k])}`))));
    return element("div", {class: "card"}, element("h4", {}, choice.name, element("small", {}, ` ${n}`)),
                   element("table", {}, ...rows));
  }
}
