// Static tables, sorted by a click on a heading.

function sortable(table) {
  const [body] = table.tBodies, before = [...body.rows], heads = [...table.tHead.rows[0].cells];
  const number = /^[-+]?[\d.,]+(e[-+]?\d+)?(?=$|[\s%(])/i;
  const value = (row, k) => { // a number, or else the text
    const text = row.cells[k].textContent.replace(/^below /, "");
    return number.test(text) ? parseFloat(text.replaceAll(",", "")) : text;
  };
  const compare = (a, b, sign) => {
    if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // unknown values last
    return sign * (typeof a === "number" ? b - a : a.localeCompare(b));
  };
  heads.forEach((head, k) => {
    let turned = false;
    const click = () => {
      turned = head.hasAttribute("aria-sort") && !turned;
      for (const other of heads) other.removeAttribute("aria-sort");
      const sign = turned ? -1 : 1;
      const rows = [...before].sort((a, b) => compare(value(a, k), value(b, k), sign));
      const falls = (typeof value(rows[0], k) === "number") !== turned;
      head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      body.replaceChildren(...rows);
    };
    const text = head.textContent;
    if (!text) return;
    head.replaceChildren(element("button", {type: "button", onclick: click, title: "sort by this column"}, text));
  });
}
