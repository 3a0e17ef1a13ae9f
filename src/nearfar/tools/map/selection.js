// Colours of the points, and the set of images that is selected.

// ---- colours ----
let colouring = null, visible = [], highlighted = -1, someHidden = false, faint = false;
const keptColumn = columns.find((column) => column.name === "kept" && !column.classes);
const LOW = [47, 111, 219], MIDDLE = [184, 87, 159], HIGH = [242, 163, 27]; // lighter upwards, seen on light and dark
const ramp = (t) => {
  const [a, b, s] = t < 0.5 ? [LOW, MIDDLE, 2 * t] : [MIDDLE, HIGH, 2 * t - 1];
  return a.map((one, k) => Math.round(one + (b[k] - one) * s));
};
const RAMP = Array.from({ length: 256 }, (_, k) => ramp(k / 255));
const rgb = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
const recolour = () => {
  const { classes, values } = colouring || {}, palette = classes && classes.map((one) => rgb(one.colour));
  const grey = rgb(data.grey), any = chosenCount > 0;
  someHidden = Boolean(palette) && visible.includes(false);
  for (let i = 0; i < count; i++) {
    let colour = grey, alpha = 217;
    if (palette) {
      colour = palette[values[i]];
      if (!visible[values[i]]) alpha = 0;
      else if (highlighted >= 0 && values[i] !== highlighted) alpha = 31;
    } else if (values && !Number.isNaN(values[i])) {
      const t = (values[i] - colouring.low) / (colouring.high - colouring.low);
      colour = RAMP[Math.min(255, Math.max(0, Math.round(255 * t)))];
    }
    if (any && !chosen[i]) alpha = Math.min(alpha, 40);
    if (faint && alpha) alpha = Math.max(8, Math.round(alpha * Math.min(1, 0.06 + keptColumn.values[i] || 0.06)));
    tints[4 * i] = colour[0];
    tints[4 * i + 1] = colour[1];
    tints[4 * i + 2] = colour[2];
    tints[4 * i + 3] = alpha;
  }
  if (painter) painter.recolour();
  draw();
};
const colourBy = async (column) => {
  if (column) await valuesOf(column);
  colouring = column;
  visible = column && column.classes ? column.classes.map(() => true) : [];
  highlighted = -1;
  showLegend();
  recolour();
  fillTable();
};

// ---- the set ----
const chosen = new Uint8Array(count);
let chosenCount = 0;
// Shift adds and Alt keeps what is in both; else as the panel says.
const wayOf = (event) => (event && event.shiftKey ? "add" : event && event.altKey ? "intersect" : element("how").value);
const combine = (belongs, way) => {
  chosenCount = 0;
  for (let i = 0; i < count; i++) {
    const had = chosen[i] === 1;
    const has = way === "add" ? had || belongs(i) : way === "intersect" ? had && belongs(i) : belongs(i);
    chosen[i] = has ? 1 : 0;
    chosenCount += chosen[i];
  }
  showChosen();
  recolour();
};
const chosenIds = () => {
  const ids = new Int32Array(chosenCount);
  for (let i = 0, k = 0; i < count; i++) if (chosen[i]) ids[k++] = i;
  return ids;
};
const showChosen = () => {
  const text = chosenCount ? number(chosenCount) + " selected" : "Nothing selected";
  element("chosen").textContent = text;
  say(text);
  for (const id of ["none-chosen", "save-list", "save-csv", "copy"]) element(id).disabled = !chosenCount;
  fillTable();
};

// ---- lasso and box ----
let tool = "move", outline = [];
const paintOutline = (pen) => {
  if (outline.length < 2) return;
  const style = getComputedStyle(document.documentElement);
  pen.beginPath();
  outline.forEach(([x, y], k) => (k ? pen.lineTo(x, y) : pen.moveTo(x, y)));
  pen.closePath();
  pen.globalAlpha = 0.12;
  pen.fillStyle = pen.strokeStyle = style.getPropertyValue("--accent");
  pen.fill();
  pen.globalAlpha = 1;
  pen.lineWidth = 1.5;
  pen.stroke();
};
const isInside = (x, y, shape) => { // even-odd rule
  let inside = false;
  for (let a = 0, b = shape.length - 1; a < shape.length; b = a++) {
    const [ax, ay] = shape[a], [bx, by] = shape[b];
    if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) inside = !inside;
  }
  return inside;
};
const selectInside = (shape, way) => {
  const xs = shape.map(([x]) => x), ys = shape.map(([, y]) => y);
  const [left, right] = [Math.min(...xs), Math.max(...xs)], [top, bottom] = [Math.min(...ys), Math.max(...ys)];
  combine((i) => {
    if (!isShown(i)) return false;
    const x = toX(i), y = toY(i);
    return x >= left && x <= right && y >= top && y <= bottom && isInside(x, y, shape);
  }, way);
};

// ---- what is saved and copied ----
const quoted = (value) => (/[",\r\n]/.test(value) ? '"' + value.replace(/"/g, '""') + '"' : value);
const guarded = (text) => (/^'*[=+\-@\t\r]/.test(text) && isNaN(text) ? "'" + text : text); // no formula in a spreadsheet
const listText = async () => {
  const ids = chosenIds();
  await withNames(ids);
  return Array.from(ids, (i) => nameOf(i) + "\n").join("");
};
const csvText = async () => {
  const ids = chosenIds();
  await withNames(ids);
  await Promise.all(columns.map(valuesOf));
  const rows = [["name", "x", "y", ...columns.map((column) => guarded(column.name))]];
  const exact = (column, i) => {
    if (column.classes) return guarded(shownValue(column, i));
    return Number.isNaN(column.values[i]) ? "" : String(column.values[i]);
  };
  for (const i of ids) {
    const [x, y] = places.subarray(2 * i, 2 * i + 2);
    rows.push([guarded(nameOf(i)), String(x), String(y), ...columns.map((column) => exact(column, i))]);
  }
  return rows.map((row) => row.map(quoted).join(",") + "\r\n").join("");
};
