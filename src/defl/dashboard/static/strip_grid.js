// The strip for keyboard, pointer and screen reader: a grid of transparent cells above the canvas.
// One tab stop; the cell that arrows move over is announced by aria-activedescendant.

import { element, name, plain } from "./dom.js";
import { WORDS } from "./marks.js";
import { linkCell, linkTitle } from "./strip_links.js";

// `on`: { inspect(row, number), open(number), key(event) }
export function stripGrid(on) {
  const titles = element("div", { role: "row", class: "strip-row strip-titles" });
  const grid = element("div", {
    role: "grid", class: "strip-grid", tabindex: "0", "data-strip": true,
    "aria-label": "Members by rounds. Arrows move, Enter opens the round, T shows the table.",
  }, titles);
  const member = element("span", { class: "visually-hidden" }, "member");
  const head = element("span", { role: "columnheader", class: "strip-name" }, member);
  const numbers = element("div", { class: "strip-cells", role: "presentation" });
  const kept = element("span", { role: "columnheader", class: "strip-kept" }, "rounds kept");
  const link = element("span", { role: "columnheader", class: "strip-link" });
  titles.append(head, numbers, kept, link);
  const rows = []; // { row, name, cells, kept, link }
  let active = null; // the cell's element

  const cellOf = (event) => event.target.closest?.("[data-round]");
  const inspect = ({ dataset }) => on.inspect(Number(dataset.row), Number(dataset.round));
  // Not pointerover: a page that scrolls under a resting pointer chooses nothing.
  grid.addEventListener("pointermove", (event) => {
    const cell = cellOf(event);
    if (cell && cell !== active && event.pointerType === "mouse") inspect(cell);
  });
  grid.addEventListener("click", (event) => {
    const cell = cellOf(event);
    if (!cell) return;
    inspect(cell);
    // A finger cannot hover: it inspects, and the inspector's link opens.
    if (event.pointerType !== "touch" && event.pointerType !== "pen") on.open(Number(cell.dataset.round));
  });
  grid.addEventListener("keydown", on.key);

  return {
    root: grid,
    update(picture, overview) {
      const { layout, columns, names, titles: words, open } = picture;
      fit(numbers, columns.length, () => element("span", { role: "columnheader" }, element("span")));
      columns.forEach((number, place) => {
        const title = numbers.children[place];
        set(title, "data-open", number === open ? "" : null);
        setText(title.firstChild, String(number));
        title.firstChild.classList.toggle("visually-hidden", words[place] === "");
      });
      setText(kept, layout.isCompact ? "kept" : "rounds kept");
      linkTitle(link, overview);
      while (rows.length > names.length) rows.pop().row.remove();
      while (rows.length < names.length) rows.push(newRow(grid));
      names.forEach((member, row) => updateRow(rows[row], row, member, picture, overview));
    },
    // `row`, `place`: of the inspected cell; place < 0: it is not in the window.
    activate(row, place) {
      active?.removeAttribute("aria-selected");
      active = rows[row]?.cells.children[place] ?? null;
      active?.setAttribute("aria-selected", "true");
      set(grid, "aria-activedescendant", active?.id ?? null);
    },
  };
}

function newRow(grid) {
  const made = {
    row: element("div", { role: "row", class: "strip-row" }),
    name: element("span", { role: "rowheader", class: "strip-name" }),
    cells: element("div", { class: "strip-cells", role: "presentation" }),
    kept: element("span", { role: "gridcell", class: "strip-kept" }),
    link: element("span", { role: "gridcell", class: "strip-link" }),
  };
  made.row.append(made.name, made.cells, made.kept, made.link);
  grid.append(made.row);
  return made;
}

function updateRow(parts, row, member, { layout, columns, letter }, overview) {
  const view = overview.members.find((candidate) => candidate.name === member);
  if (parts.name.textContent !== member) {
    parts.name.replaceChildren(name(member));
    parts.name.title = member;
    parts.row.dataset.member = member;
  }
  const spoken = plain(member);
  parts.name.classList.toggle("own", !overview.whole && (view?.is_this_node ?? false));
  fit(parts.cells, columns.length, () => element("span", { role: "gridcell" }));
  columns.forEach((number, place) => {
    const cell = parts.cells.children[place];
    const verdict = letter(row, number);
    set(cell, "id", `cell-${row}-${place}`);
    set(cell, "data-row", String(row));
    set(cell, "data-round", String(number));
    set(cell, "data-verdict", verdict);
    set(cell, "aria-label", `${spoken}, round ${number}, ${WORDS[verdict]}`);
  });
  const of = layout.isCompact ? "/" : " of ";
  setText(parts.kept, view?.judged ? `${view.kept}${of}${view.judged}` : "");
  linkCell(parts.link, view, overview);
}

function fit(parent, length, make) {
  while (parent.children.length > length) parent.lastChild.remove();
  while (parent.children.length < length) parent.append(make());
}

function set(node, attribute, value) {
  if (value === null) node.removeAttribute(attribute);
  else if (node.getAttribute(attribute) !== value) node.setAttribute(attribute, value);
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
