"use strict";
// Mouse, fingers, keys and buttons; and the start.

const embedded = window !== window.parent;

// ---- mouse, pen and fingers ----
const fingers = new Map();
const at = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
let pressed = null;
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, at(event));
  pressed = fingers.size > 1 ? null : at(event);
  if (tool === "move" || fingers.size > 1) canvas.classList.add("moving");
  else outline = [at(event)];
  if (fingers.size > 1) outline = [];
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = at(event), before = fingers.get(event.pointerId);
  if (!before) return painter && select(nearest(x, y, 14));
  if (pressed && Math.hypot(x - pressed[0], y - pressed[1]) > 4) pressed = null; // no longer a click
  if (outline.length) return drawOutline(x, y);
  const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
  if (others.length) {
    const [ox, oy] = others[0];
    const was = Math.hypot(before[0] - ox, before[1] - oy), is = Math.hypot(x - ox, y - oy);
    if (was > 0 && is > 0) zoom(is / was, (x + ox) / 2, (y + oy) / 2);
  }
  pan((x - before[0]) / fingers.size, (y - before[1]) / fingers.size);
  fingers.set(event.pointerId, [x, y]);
});
const drawOutline = (x, y) => {
  const [left, top] = outline[0], [lx, ly] = outline[outline.length - 1];
  if (tool === "box") outline = [[left, top], [x, top], [x, y], [left, y]];
  else if (Math.hypot(x - lx, y - ly) > 3) outline.push([x, y]);
  paintMark();
};
const lift = (event) => {
  const [x, y] = at(event), shape = outline;
  fingers.delete(event.pointerId);
  outline = [];
  if (!fingers.size) canvas.classList.remove("moving");
  if (event.type !== "pointerup") return paintMark();
  if (shape.length > 2 && !pressed) return selectInside(shape, wayOf(event));
  const i = nearest(x, y, event.pointerType === "touch" ? 28 : 14);
  select(i);
  if (pressed && i >= 0) walkTo(i);
  pressed = null;
};
canvas.addEventListener("pointerup", lift);
canvas.addEventListener("pointercancel", lift);
canvas.addEventListener("pointerleave", () => { if (!fingers.size) select(-1); });
canvas.addEventListener("wheel", (event) => {
  if (embedded && document.activeElement !== canvas) return; // let the page around it scroll
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...at(event));
}, { passive: false });
canvas.addEventListener("dblclick", (event) => zoom(2, ...at(event)));

// ---- keyboard ----
const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const go = (dx, dy) => {
  if (selected < 0) return select(nearest(width / 2, height / 2, Infinity), true);
  const [x, y] = toScreen(selected);
  let best = -1, least = Infinity;
  for (let i = 0; i < count; i++) {
    if (i === selected || !isShown(i)) continue;
    const px = toX(i) - x, py = toY(i) - y, along = px * dx + py * dy, aside = Math.abs(px * dy) + Math.abs(py * dx);
    if (along > 0.5 && aside <= along && along + 2 * aside < least) [best, least] = [i, along + 2 * aside];
  }
  if (best < 0) return;
  select(best, true);
  const [sx, sy] = toScreen(best);
  if (sx < 20 || sy < 20 || sx > width - 20 || sy > height - 40) pan(width / 2 - sx, height / 2 - sy);
};
const keys = {
  "+": () => zoom(1.4, ...anchor()), "=": () => zoom(1.4, ...anchor()), "-": () => zoom(1 / 1.4, ...anchor()),
  "0": fit, i: () => element("pictures").click(), r: () => element("regions").click(), t: () => { toggleTable(true); element("table-scroll").focus(); },
  m: () => element("move").click(), b: () => element("box").click(), l: () => element("lasso").click(),
  Enter: async () => {
    if (selected < 0) return;
    await walkTo(selected);
    element("strip-images").querySelector("button").focus();
  },
  " ": () => { if (selected >= 0) combine((i) => (i === selected) !== (chosen[i] === 1), "replace"); },
  Escape: () => { outline = []; closeStrip(); select(-1); },
};
const anchor = () => (selected < 0 ? [width / 2, height / 2] : toScreen(selected));
canvas.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const step = steps[event.key], action = keys[event.key] || keys[event.key.toLowerCase()];
  if (step && event.shiftKey) pan(-step[0] * 60, -step[1] * 60);
  else if (step) go(...step);
  else if (action) action();
  else return;
  event.preventDefault();
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.target === canvas) return;
  if (!element("table").hidden) { toggleTable(false); element("table-button").focus(); }
  else if (strip.of >= 0) { closeStrip(); canvas.focus(); }
});

// ---- buttons ----
element("in").onclick = () => zoom(1.4, ...anchor());
element("out").onclick = () => zoom(1 / 1.4, ...anchor());
element("fit").onclick = fit;
element("pictures").onclick = () => {
  drawImages = !drawImages;
  element("pictures").setAttribute("aria-pressed", drawImages);
  draw();
};
element("regions").onclick = () => {
  drawRegions = !drawRegions;
  element("regions").setAttribute("aria-pressed", drawRegions);
  draw();
};
for (const id of ["move", "box", "lasso"])
  element(id).onclick = () => {
    tool = id;
    for (const other of ["move", "box", "lasso"]) element(other).setAttribute("aria-pressed", other === id);
    canvas.classList.toggle("drawing", id !== "move");
  };
const showPanel = (open) => {
  element("panel").hidden = !open;
  element("panel-button").setAttribute("aria-expanded", open);
};
element("panel-button").onclick = () => showPanel(element("panel").hidden);
const counted = number(count) + (count === 1 ? " image" : " images");
element("count").textContent = count < data.total
  ? number(count) + " of " + number(data.total) + " images shown, chosen at random" : counted;
if (embedded)
  element("keys").textContent = element("keys").textContent.replace("scroll to zoom", "click and scroll to zoom");

element("pictures").click(); // what lies together is seen at once; labels are the colours of the frames

// ---- for scripts and tests ----
window.nearfar = {
  points: count, classes: (columns.length && columns[0].name === "label" && columns[0].classes || []).length,
  get sheets() { return inFolder ? pictures.size : sheets.urls.length; },
  get loaded() { return loaded; },
  get painter() { return painter && (painter.layered ? "webgl" : "plain"); },
  get perFrame() { return painter.perFrame; },
  get settled() { return Boolean(painter) && pass > 0 && pass >= stride; },
  get scale() { return scale; },
  get shown() { let n = 0; for (let i = 0; i < count; i++) n += isShown(i); return n; },
  get selected() { return selected < 0 ? null : nameOf(selected); },
  get chosen() { return Array.from(chosenIds(), nameOf); },
  get strip() { return strip.of < 0 ? null : [strip.of, ...strip.ids].map(nameOf); },
  find(name) { for (let i = 0; i < count; i++) if (nameOf(i) === name) return i; return -1; },
  tint(i) { return [...tints.slice(4 * i, 4 * i + 4)]; },
  screen(i) {
    const box = canvas.getBoundingClientRect();
    return [box.left + toX(i), box.top + toY(i)];
  },
  namesOf: withNames, search: find, select: combine, pan, zoom, fit, csvText, listText,
};

// ---- the start ----
const resize = () => {
  const ratio = window.devicePixelRatio || 1;
  [width, height] = [canvas.clientWidth || 1, canvas.clientHeight || 1];
  for (const sheet of [canvas, over, mark]) [sheet.width, sheet.height] = [width * ratio, height * ratio];
  if (!painter) return;
  painter.resize();
  if (!moved) fit();
  pass = 0;
  paint(); // at once: a canvas is empty after it is resized
  if (pass < stride) draw();
};
const start = async () => {
  if (innerWidth <= 640 || embedded) showPanel(false);
  await loadPlaces();
  findBoxes();
  await colourBy(columns[0] && columns[0].name === "label" ? columns[0] : null);
  resize();
  painter = (inFolder && webglPainter(canvas, over)) || plainPainter(inFolder ? over : canvas);
  showChosen();
  say("");
  resize();
  requestAnimationFrame(() => setTimeout(() => performance.mark("first picture")));
};
start();
new ResizeObserver(resize).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
