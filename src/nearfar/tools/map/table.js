// The images as a table: what the map shows for those who do not see it, or who like lists.

const PAGE = 100;
const table = { first: 0, ids: null, by: "", what: "shown" };
const tableIds = () => {
  const ids = [];
  for (let i = 0; i < count; i++) if (chosenCount ? chosen[i] : isShown(i)) ids.push(i);
  const { values } = colouring || {};
  if (table.by && values) {
    const sign = table.by === "up" ? 1 : -1;
    const last = (value) => (Number.isNaN(value) ? Infinity : sign * value); // those without a value
    ids.sort((a, b) => last(values[a]) - last(values[b]) || a - b);
  }
  return ids;
};
const fillTable = async (keep = false) => {
  if (element("table").hidden) return;
  if (!keep) Object.assign(table, { first: 0, ids: tableIds(), what: chosenCount ? "selected" : "shown" });
  const { ids } = table, some = ids.slice(table.first, table.first + PAGE), shown = table.first;
  await withNames(some);
  if (shown !== table.first || ids !== table.ids) return;
  element("value-title").textContent = colouring ? colouring.name : "";
  element("rows").replaceChildren(...some.map((i) => {
    const row = document.createElement("tr"), cells = Array.from({ length: 4 }, () => document.createElement("td"));
    const box = document.createElement("input"), name = document.createElement("button");
    Object.assign(box, { type: "checkbox", checked: chosen[i] === 1 });
    box.setAttribute("aria-label", "Selected: " + nameOf(i));
    box.onchange = () => {
      chosen[i] = box.checked ? 1 : 0;
      chosenCount += box.checked ? 1 : -1;
      const kept = table.ids;
      element("table").hidden = true; // the rows stay as they are while boxes are ticked
      showChosen();
      element("table").hidden = false;
      table.ids = kept;
      recolour();
    };
    name.textContent = nameOf(i);
    name.onclick = () => { toggleTable(false); walkTo(i); };
    cells[0].append(box);
    cells[1].append(canvasOf(i, 32));
    cells[2].append(name);
    cells[3].textContent = shownValue(colouring, i);
    row.append(...cells);
    return row;
  }));
  const end = Math.min(table.first + PAGE, ids.length);
  element("table-count").textContent = (ids.length ? number(table.first + 1) + "\u2013" + number(end) + " of " : "")
    + number(ids.length) + " " + table.what;
  element("earlier").disabled = table.first === 0;
  element("later").disabled = end >= ids.length;
};
const turn = (by) => {
  table.first += by * PAGE;
  element("table-scroll").scrollTop = 0;
  fillTable(true);
};
const toggleTable = (open = element("table").hidden) => {
  element("table").hidden = !open;
  element("table-button").setAttribute("aria-expanded", open);
  fillTable();
};
element("table-button").onclick = () => toggleTable();
element("earlier").onclick = () => turn(-1);
element("later").onclick = () => turn(1);
element("order").onchange = () => { table.by = element("order").value; fillTable(); };
