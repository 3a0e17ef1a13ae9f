"use strict";
// The data, the view of it and how it is painted. controls.js follows and shares these names.

const element = (id) => document.getElementById(id);
const data = JSON.parse(element("data").textContent);
const { points, names, labels, classes, sheets } = data;
const canvas = element("map"), pen = canvas.getContext("2d"), mark = element("mark");
const colourOf = (i) => (labels ? classes[labels[i]].colour : data.grey);
const labelOf = (i) => (labels ? classes[labels[i]].name : "");
const visible = classes.map(() => true);
const isShown = (i) => !labels || visible[labels[i]];
const number = (n) => n.toLocaleString("en").replace(/,/g, "\u202f");

// Points are drawn in a scattered order, so that no class lies on top of all others.
const order = points.map((_, i) => i);
for (let i = order.length - 1, seed = 1; i > 0; i--) {
  seed = (seed * 48271) % 2147483647;
  const j = seed % (i + 1);
  [order[i], order[j]] = [order[j], order[i]];
}

// ---- the view: screen = (place - centre) * scale + middle, y upwards ----
let width = 1, height = 1, scale = 1, centre = [0, 0], fitScale = 1;
let selected = -1, highlighted = -1, drawImages = false, moved = false;
const toScreen = (i) => [
  (points[i][0] - centre[0]) * scale + width / 2,
  (centre[1] - points[i][1]) * scale + height / 2,
];
const fit = () => {
  const low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const p of points)
    for (const k of [0, 1]) {
      low[k] = Math.min(low[k], p[k]);
      high[k] = Math.max(high[k], p[k]);
    }
  centre = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
  const spans = [high[0] - low[0] || 1e-9, high[1] - low[1] || 1e-9];
  fitScale = scale = Math.min((width - 64) / spans[0], (height - 96) / spans[1], 1e7);
  centre[1] -= 12 / scale; // room for the line about the keys
  moved = false;
  draw();
};
const zoom = (factor, x = width / 2, y = height / 2) => {
  const next = Math.min(Math.max(scale * factor, fitScale / 4), fitScale * 400);
  const shift = 1 / scale - 1 / next;
  centre = [centre[0] + (x - width / 2) * shift, centre[1] - (y - height / 2) * shift];
  scale = next;
  moved = true;
  draw();
};
const pan = (dx, dy) => {
  centre = [centre[0] - dx / scale, centre[1] + dy / scale];
  moved = true;
  draw();
};

// ---- drawing ----
let loaded = 0;
const pictures = sheets.urls.map((url) => {
  const picture = new Image();
  picture.onload = () => { loaded++; drawPicture(); draw(); };
  picture.src = url;
  return picture;
});
const thumbnail = (target, i, x, y, size) => {
  const perSheet = sheets.perRow * sheets.perRow, at = i % perSheet;
  const picture = pictures[Math.floor(i / perSheet)];
  if (!picture.complete) return;
  const column = at % sheets.perRow, row = Math.floor(at / sheets.perRow);
  target.drawImage(picture, column * sheets.cell, row * sheets.cell, sheets.size, sheets.size, x, y, size, size);
};
const dotRadius = () => {
  const byNumber = Math.min(4.5, Math.max(1.6, 160 / Math.sqrt(points.length)));
  const bySize = Math.min(1, Math.max(0.6, Math.min(width, height) / 500));
  return byNumber * bySize * Math.min(2, Math.max(1, (scale / fitScale) ** 0.35));
};
const dotOf = (colour, radius, ratio) => {
  const stamp = document.createElement("canvas");
  stamp.width = stamp.height = Math.ceil(2 * (radius + 1) * ratio);
  const ink = stamp.getContext("2d");
  ink.fillStyle = colour;
  ink.beginPath();
  ink.arc(stamp.width / 2, stamp.height / 2, radius * ratio, 0, 7);
  ink.fill();
  return stamp;
};
let waiting = false;
const draw = () => {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; paint(); });
};
const imageSide = () => Math.max(16, Math.min(56, 16 * (scale / fitScale) ** 0.5));
const paint = () => {
  const ratio = window.devicePixelRatio || 1;
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  pen.imageSmoothingEnabled = sheets.size > 16;
  const side = imageSide(), taken = new Set();
  const dots = (labels ? classes.map((one) => one.colour) : [data.grey]).map((c) => dotOf(c, dotRadius(), ratio));
  const dotSide = dots[0].width / ratio;
  for (const i of order) {
    if (!isShown(i)) continue;
    const [x, y] = toScreen(i);
    if (x < -side || y < -side || x > width + side || y > height + side) continue;
    pen.globalAlpha = highlighted >= 0 && labels[i] !== highlighted ? 0.12 : drawImages ? 1 : 0.85;
    if (drawImages) {
      // One image for each cell of a grid that moves with the map; zooming in brings out the others.
      const cell = Math.floor(points[i][0] * scale / side) + ":" + Math.floor(points[i][1] * scale / side);
      if (taken.has(cell)) continue;
      taken.add(cell);
      if (labels) {
        pen.fillStyle = colourOf(i);
        pen.fillRect(x - side / 2 - 2, y - side / 2 - 2, side + 4, side + 4);
      }
      thumbnail(pen, i, x - side / 2, y - side / 2, side);
    } else pen.drawImage(dots[labels ? labels[i] : 0], x - dotSide / 2, y - dotSide / 2, dotSide, dotSide);
  }
  pen.globalAlpha = 1;
  paintMark();
};
// The mark lies on a canvas of its own, so that hovering does not paint the whole map again.
const paintMark = () => {
  const ratio = window.devicePixelRatio || 1, markPen = mark.getContext("2d");
  markPen.setTransform(ratio, 0, 0, ratio, 0, 0);
  markPen.clearRect(0, 0, width, height);
  if (selected < 0) return;
  const style = getComputedStyle(document.documentElement);
  const [x, y] = toScreen(selected), side = imageSide(), radius = dotRadius();
  markPen.imageSmoothingEnabled = pen.imageSmoothingEnabled;
  if (drawImages) thumbnail(markPen, selected, x - side / 2, y - side / 2, side);
  for (const [colour, extra] of [["--paper", 1], ["--ink", 3]]) {
    markPen.strokeStyle = style.getPropertyValue(colour);
    markPen.lineWidth = 2;
    markPen.beginPath();
    if (drawImages) markPen.rect(x - side / 2 - extra, y - side / 2 - extra, side + 2 * extra, side + 2 * extra);
    else markPen.arc(x, y, radius + 1.5 + extra, 0, 7);
    markPen.stroke();
  }
  placeCard(x, y);
};

// ---- the card of the selected image ----
const card = element("card"), picture = element("picture");
const placeCard = (x, y) => {
  const [w, h] = [card.offsetWidth, card.offsetHeight];
  card.style.left = Math.max(4, x + 16 + w < width ? x + 16 : x - 16 - w) + "px";
  card.style.top = Math.max(4, Math.min(y - h / 2, height - h - 4)) + "px";
};
const drawPicture = () => {
  if (selected < 0) return;
  picture.width = picture.height = sheets.size;
  thumbnail(picture.getContext("2d"), selected, 0, 0, sheets.size);
};
const select = (i, spoken = false) => {
  if (i === selected) return;
  selected = i;
  card.hidden = i < 0;
  if (i >= 0) {
    drawPicture();
    element("name").textContent = names[i];
    element("label").textContent = labelOf(i);
    element("label").hidden = !labels;
    if (spoken) element("live").textContent = labels ? names[i] + ", " + labelOf(i) : names[i];
  }
  paintMark();
};
const nearest = (x, y, reach) => {
  let best = -1, least = reach * reach;
  for (let i = 0; i < points.length; i++) {
    if (!isShown(i)) continue;
    const [px, py] = toScreen(i), distance = (px - x) ** 2 + (py - y) ** 2;
    if (distance < least) [best, least] = [i, distance];
  }
  return best;
};
