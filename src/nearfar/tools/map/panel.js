// The panel beside the map: colours and legend, search, the selection; and the strip of nearest images.

// ---- colour by ----
const options = [null, ...columns];
options.forEach((column, k) => element("colour").append(new Option(column ? column.name : "nothing", k)));
element("colour").onchange = () => colourBy(options[element("colour").value]);
element("colour-by").hidden = !columns.length;
element("faint-line").hidden = !keptColumn;
element("faint").onchange = async () => {
  await valuesOf(keptColumn);
  faint = element("faint").checked;
  recolour();
};

// ---- legend: hide, highlight or select a class; select a range of a scale ----
let rows = [];
const legendRow = (one, c, counts) => {
  const row = document.createElement("button"), pick = document.createElement("input"), part = {};
  for (const name of ["dot", "name", "number"]) {
    part[name] = document.createElement("span");
    part[name].className = name;
    row.append(part[name]);
  }
  part.dot.style.background = part.dot.style.borderColor = one.colour;
  part.name.textContent = one.name;
  part.number.textContent = number(counts[c]);
  row.title = "Show or hide";
  row.setAttribute("aria-pressed", "true");
  row.onclick = () => show((k) => (k === c ? !visible[k] : visible[k]));
  row.onmouseenter = row.onfocus = () => highlight(visible[c] ? c : -1);
  row.onmouseleave = row.onblur = () => highlight(-1);
  Object.assign(pick, { type: "button", value: "Select" });
  pick.setAttribute("aria-label", "Select " + one.name);
  pick.onclick = (event) => combine((i) => colouring.values[i] === c && isShown(i), wayOf(event));
  const item = document.createElement("li");
  item.append(row, pick);
  element("classes").append(item);
  return row;
};
const highlight = (c) => {
  if (c === highlighted) return;
  highlighted = c;
  recolour();
};
const show = (wanted) => {
  rows.forEach((_, c) => { visible[c] = wanted(c); });
  rows.forEach((row, c) => row.setAttribute("aria-pressed", visible[c]));
  highlighted = -1;
  recolour();
  fillTable();
  if (selected >= 0 && !isShown(selected)) select(-1);
};
const showLegend = () => {
  const { classes } = colouring || {};
  element("colour").value = options.indexOf(colouring);
  element("legend").hidden = !classes;
  element("scale").hidden = !colouring || Boolean(classes);
  element("classes").replaceChildren();
  rows = [];
  if (classes) {
    const counts = new Array(classes.length).fill(0);
    for (const c of colouring.values) counts[c]++;
    rows = classes.map((one, c) => legendRow(one, c, counts));
  } else if (colouring) {
    for (const end of ["low", "high"]) element(end).textContent = rounded(colouring[end], colouring, 3);
    element("from").value = element("to").value = "";
    element("ramp").style.background = `linear-gradient(to right, ${[LOW, MIDDLE, HIGH].map((c) => `rgb(${c})`)})`;
  }
};
element("all").onclick = () => show(() => true);
element("none").onclick = () => show(() => false);
element("scale").onsubmit = (event) => {
  event.preventDefault();
  const [from, to] = ["from", "to"].map((id) => element(id).value);
  combine((i) => (from === "" || colouring.values[i] >= from) && (to === "" || colouring.values[i] <= to)
    && !Number.isNaN(colouring.values[i]) && isShown(i), wayOf());
};

// ---- search ----
let searching = 0;
const find = async (text) => {
  const wanted = text.toLowerCase(), mine = ++searching, found = new Set();
  const size = data.block, starts = Array.from(names, (_, block) => block * size);
  await withNames(starts, (share) => {
    if (mine === searching && share < 1) element("found").textContent = "reading names: " + Math.round(100 * share) + " %";
  });
  if (mine !== searching) return null;
  names.forEach((block, b) => block.forEach((name, k) => {
    if (name.toLowerCase().includes(wanted)) found.add(b * size + k);
  }));
  return found;
};
let pause = 0;
element("search").oninput = () => {
  clearTimeout(pause);
  pause = setTimeout(async () => {
    const text = element("search").value, found = text && await find(text);
    if (found || !text) element("found").textContent = text ? number(found.size) + " found; Enter selects" : "";
  }, 250);
};
element("search").onkeydown = async (event) => {
  if (event.key !== "Enter" || !element("search").value) return;
  clearTimeout(pause);
  event.preventDefault();
  const way = wayOf(event), found = await find(element("search").value);
  if (!found) return;
  element("found").textContent = number(found.size) + " found";
  combine((i) => found.has(i), way);
};

// ---- selection ----
element("none-chosen").onclick = () => combine(() => false, "replace");
element("invert").onclick = () => combine((i) => !chosen[i], "replace");
element("save-list").onclick = async () => save(await listText(), "selection.txt", "text/plain");
element("save-csv").onclick = async () => save(await csvText(), "selection.csv", "text/csv");
element("copy").onclick = async () => copy(await listText());

// ---- the strip: an image and its nearest ones in feature space, each of which leads on to its own ----
const strip = { of: -1, ids: [], walked: [] };
const walkTo = async (i, back = false) => {
  if (strip.of >= 0 && strip.of !== i && !back) strip.walked.push(strip.of);
  const ids = data.neighbours ? (await neighboursOf(i)).filter((j) => j !== i) : [];
  await withNames([i, ...ids]);
  [strip.of, strip.ids] = [i, ids];
  element("strip").hidden = false;
  element("back").disabled = !strip.walked.length;
  element("strip-name").textContent = nameOf(i);
  element("strip-note").hidden = Boolean(data.neighbours);
  element("strip-images").replaceChildren(...[i, ...ids].map((j, place) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.append(canvasOf(j, 72));
    const label = place ? place + ". nearest: " + nameOf(j) : nameOf(j);
    button.setAttribute("aria-label", label);
    button.title = label;
    button.onmouseenter = button.onfocus = () => select(j);
    button.onclick = () => (place ? walkTo(j) : bringIn(i));
    item.append(button);
    return item;
  }));
  element("strip-images").scrollLeft = 0;
  say(nameOf(i) + (ids.length ? ", and the " + ids.length + " images nearest to it" : ""));
  bringIn(i);
  paintMark();
};
const bringIn = (i) => {
  const [x, y] = toScreen(i);
  if (x < 20 || y < 20 || x > width - 20 || y > height - 160) pan(width / 2 - x, height / 2 - y);
  select(i);
};
const closeStrip = () => {
  Object.assign(strip, { of: -1, ids: [], walked: [] });
  element("strip").hidden = true;
  paintMark();
};
element("back").onclick = () => walkTo(strip.walked.pop(), true);
element("copy-path").onclick = () => copy(nameOf(strip.of));
element("select-strip").onclick = (event) => {
  const all = new Set([strip.of, ...strip.ids]);
  combine((i) => all.has(i), wayOf(event));
};
element("close-strip").onclick = () => { closeStrip(); canvas.focus(); };
