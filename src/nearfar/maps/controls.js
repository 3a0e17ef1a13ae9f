"use strict";
// Mouse, fingers, keys, buttons and the legend, for the map of page.js.

const embedded = window !== window.parent;

// ---- mouse, pen and fingers ----
const fingers = new Map();
const at = (event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
canvas.addEventListener("pointerdown", (event) => {
  canvas.setPointerCapture(event.pointerId);
  fingers.set(event.pointerId, at(event));
  canvas.classList.add("moving");
});
canvas.addEventListener("pointermove", (event) => {
  const [x, y] = at(event), before = fingers.get(event.pointerId);
  if (!before) return select(nearest(x, y, 14));
  const others = [...fingers].filter(([id]) => id !== event.pointerId).map(([, place]) => place);
  if (others.length) {
    const [ox, oy] = others[0];
    const was = Math.hypot(before[0] - ox, before[1] - oy), is = Math.hypot(x - ox, y - oy);
    if (was > 0 && is > 0) zoom(is / was, (x + ox) / 2, (y + oy) / 2);
  }
  pan((x - before[0]) / fingers.size, (y - before[1]) / fingers.size);
  fingers.set(event.pointerId, [x, y]);
});
const lift = (event) => {
  const [x, y] = at(event);
  fingers.delete(event.pointerId);
  if (!fingers.size) canvas.classList.remove("moving");
  if (event.type === "pointerup") select(nearest(x, y, event.pointerType === "touch" ? 28 : 14));
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
  for (let i = 0; i < points.length; i++) {
    if (i === selected || !isShown(i)) continue;
    const [px, py] = toScreen(i), along = (px - x) * dx + (py - y) * dy, aside = Math.abs((px - x) * dy) + Math.abs((py - y) * dx);
    if (along > 0.5 && aside <= along && along + 2 * aside < least) [best, least] = [i, along + 2 * aside];
  }
  if (best < 0) return;
  select(best, true);
  const [sx, sy] = toScreen(best);
  if (sx < 20 || sy < 20 || sx > width - 20 || sy > height - 40) pan(width / 2 - sx, height / 2 - sy);
};
const keys = {
  "+": () => zoom(1.4, ...anchor()), "=": () => zoom(1.4, ...anchor()), "-": () => zoom(1 / 1.4, ...anchor()),
  "0": fit, i: () => element("pictures").click(), Escape: () => select(-1),
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

// ---- buttons and legend ----
element("in").onclick = () => zoom(1.4, ...anchor());
element("out").onclick = () => zoom(1 / 1.4, ...anchor());
element("fit").onclick = fit;
element("pictures").onclick = (event) => {
  drawImages = !drawImages;
  element("pictures").setAttribute("aria-pressed", drawImages);
  draw();
};
const rows = classes.map((one, c) => {
  const row = document.createElement("button"), part = {};
  for (const name of ["dot", "name", "number"]) {
    part[name] = document.createElement("span");
    part[name].className = name;
    row.append(part[name]);
  }
  part.dot.style.background = part.dot.style.borderColor = one.colour;
  part.name.textContent = one.name;
  part.number.textContent = number(labels.filter((label) => label === c).length);
  row.onclick = () => show((k) => (k === c ? !visible[k] : visible[k]));
  row.onmouseenter = row.onfocus = () => { highlighted = visible[c] ? c : -1; draw(); };
  row.onmouseleave = row.onblur = () => { highlighted = -1; draw(); };
  const item = document.createElement("li");
  item.append(row);
  element("classes").append(item);
  return row;
});
const show = (wanted) => {
  rows.forEach((_, c) => { visible[c] = wanted(c); });
  rows.forEach((row, c) => row.setAttribute("aria-pressed", visible[c]));
  if (selected >= 0 && !isShown(selected)) select(-1);
  highlighted = -1;
  draw();
};
element("all").onclick = () => show(() => true);
element("none").onclick = () => show(() => false);
element("legend").hidden = !labels;
const counted = number(points.length) + (points.length === 1 ? " image" : " images");
element("count").textContent = points.length < data.total
  ? number(points.length) + " of " + number(data.total) + " images shown, chosen at random" : counted;

if (embedded) element("keys").textContent = element("keys").textContent.replace("scroll to zoom", "click and scroll to zoom");

// ---- for scripts and tests ----
window.nearfar = {
  points: points.length, classes: classes.length, sheets: pictures.length,
  get loaded() { return loaded; },
  get scale() { return scale; },
  get shown() { return points.filter((_, i) => isShown(i)).length; },
  get selected() { return selected < 0 ? null : names[selected]; },
  screen(i) {
    const box = canvas.getBoundingClientRect(), [x, y] = toScreen(i);
    return [box.left + x, box.top + y];
  },
};

show(() => true);
new ResizeObserver(() => {
  const ratio = window.devicePixelRatio || 1;
  [width, height] = [canvas.clientWidth || 1, canvas.clientHeight || 1];
  for (const sheet of [canvas, mark]) [sheet.width, sheet.height] = [width * ratio, height * ratio];
  if (!moved) fit();
  paint(); // at once: a canvas is empty after it is resized
}).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
