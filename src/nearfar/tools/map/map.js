// The view of the map and when it is painted; the card of the image that is looked at. The scripts share their names.

const canvas = element("map"), over = element("over"), mark = element("mark");
let painter = null;

// ---- the view: screen = (place - centre) * scale + middle, y upwards ----
let width = 1, height = 1, scale = 1, centre = [0, 0], fitScale = 1;
let selected = -1, drawImages = false, drawRegions = false, moved = false;
const toX = (i) => (places[2 * i] - centre[0]) * scale + width / 2;
const toY = (i) => (centre[1] - places[2 * i + 1]) * scale + height / 2;
const toScreen = (i) => [toX(i), toY(i)];
const isShown = (i) => tints[4 * i + 3] > 0;

// Runs of points with the box around them, so that what is out of view costs nothing.
const RUN = 4096;
let boxes = [];
const findBoxes = () => {
  for (let start = 0; start < count; start += RUN) {
    const box = [start, Math.min(start + RUN, count), Infinity, Infinity, -Infinity, -Infinity];
    for (let i = start; i < box[1]; i++) {
      const x = places[2 * i], y = places[2 * i + 1];
      if (x < box[2]) box[2] = x;
      if (y < box[3]) box[3] = y;
      if (x > box[4]) box[4] = x;
      if (y > box[5]) box[5] = y;
    }
    boxes.push(box);
  }
};
// Runs that reach into a rectangle of the screen, neighbouring ones joined.
const runsIn = (left, top, right, bottom) => {
  const low = [(left - width / 2) / scale + centre[0], centre[1] - (bottom - height / 2) / scale];
  const high = [(right - width / 2) / scale + centre[0], centre[1] - (top - height / 2) / scale], runs = [];
  for (const [start, end, x0, y0, x1, y1] of boxes) {
    if (x1 < low[0] || y1 < low[1] || x0 > high[0] || y0 > high[1]) continue;
    if (runs.length && runs[runs.length - 1][1] === start) runs[runs.length - 1][1] = end;
    else runs.push([start, end]);
  }
  return runs;
};
const fit = () => {
  const low = [Infinity, Infinity], high = [-Infinity, -Infinity];
  for (const box of boxes)
    for (const k of [0, 1]) {
      low[k] = Math.min(low[k], box[2 + k]);
      high[k] = Math.max(high[k], box[4 + k]);
    }
  centre = [(low[0] + high[0]) / 2, (low[1] + high[1]) / 2];
  const spans = [high[0] - low[0] || 1e-9, high[1] - low[1] || 1e-9];
  fitScale = scale = Math.min((width - 64) / spans[0], (height - 96) / spans[1], 1e7);
  centre[1] -= 12 / scale; // room for the line about the keys
  moved = false;
  draw();
};
const zoom = (factor, x = width / 2, y = height / 2) => {
  const next = Math.min(Math.max(scale * factor, fitScale / 4), fitScale * Math.max(400, Math.sqrt(count)));
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

// ---- painting ----
const dotRadius = () => {
  const byNumber = Math.min(4.5, Math.max(1.6, 160 / Math.sqrt(count)), Math.max(0.75, 800 / Math.sqrt(count)));
  const bySize = Math.min(1, Math.max(0.6, Math.min(width, height) / 500));
  const most = count > 50_000 ? 6 : 2; // far in, few of many points are in view
  return byNumber * bySize * Math.min(most, Math.max(1, (scale / fitScale) ** 0.35));
};
const imageSide = () => Math.max(16, Math.min(56, 16 * (scale / fitScale) ** 0.5));
let waiting = false, pass = 0, stride = 1, last = 0, idle = 0, smooth = 0;
const draw = () => {
  pass = 0;
  if (waiting || !painter) return;
  waiting = true;
  last = idle = 0;
  requestAnimationFrame(frame);
};
const frame = (now) => {
  if (last && !idle) keepPace(now - last);
  last = now;
  idle = pass < stride ? 0 : idle + 1;
  if (!idle) paint();
  waiting = idle < 10; // frames go on for a moment, so that the time between them says how long painting takes
  if (waiting) requestAnimationFrame(frame);
};
// As many points to a frame as let the next one come in time.
const keepPace = (gap) => {
  if (gap > 20) {
    painter.perFrame = Math.max(painter.least, count / painter.most, Math.min(painter.perFrame, count) * 0.8);
    smooth = 0;
  } else if (++smooth > 8 && stride > 1) painter.perFrame *= 1.05;
};
// One pass: the first one after a change clears the canvas, each adds its share of the points.
const paint = () => {
  if (!painter) return;
  paints++;
  if (painter.layered) over.hidden = !drawImages && !drawRegions; // an empty canvas costs a frame time too
  const runs = runsIn(-8, -8, width + 8, height + 8);
  if (pass === 0) {
    stride = 1;
    if (!drawImages) {
      const inView = runs.reduce((sum, [start, end]) => sum + end - start, 0);
      stride = Math.min(painter.most, Math.max(1, Math.ceil(inView / painter.perFrame)));
    }
    const ratio = window.devicePixelRatio || 1;
    painter.ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    painter.clear();
  }
  painter.ink.imageSmoothingEnabled = true;
  if (!drawImages) painter.paint(runs, stride, pass, dotRadius());
  painter.ink.imageSmoothingEnabled = sheets.size > 16;
  if (drawImages) paintImages(runs);
  else if (drawRegions && (pass === 0 || !painter.layered)) paintRegions();
  if (pass++ === 0) paintMark();
};
const framed = (i, side, colour) => {
  const x = toX(i), y = toY(i), ink = painter.ink;
  ink.fillStyle = colour;
  ink.fillRect(x - side / 2 - 2, y - side / 2 - 2, side + 4, side + 4);
  thumbnail(ink, i, x - side / 2, y - side / 2, side);
};
const cssOf = (i) => `rgb(${tints[4 * i]} ${tints[4 * i + 1]} ${tints[4 * i + 2]})`;
const ends = (all) => [all[0].depth, all[all.length - 1].depth];
const depthFor = (side) => Math.ceil(Math.log2(square.side * scale / side));
// One image for each cell of a grid that moves with the map; zooming in brings out the others.
const paintImages = (runs) => {
  const side = imageSide(), depth = depthFor(side), [coarsest, finest] = ends(levels), taken = new Set();
  // Where some images are hidden, those of finer cells stand in for them; a file can as well look through all.
  const few = depth > finest || (someHidden && !inFolder);
  const level = few ? null : levelAt(Math.max(coarsest, Math.min(finest, depth + (someHidden ? 2 : 0))));
  if (!few && !level) return; // it is painted when it is here
  const one = (i) => {
    if (!isShown(i)) return;
    const x = toX(i), y = toY(i);
    if (x < -side || y < -side || x > width + side || y > height + side) return;
    const cell = Math.floor(places[2 * i] * scale / side) * 1e6 + Math.floor(places[2 * i + 1] * scale / side);
    if (taken.has(cell)) return;
    taken.add(cell);
    painter.ink.globalAlpha = tints[4 * i + 3] < 64 ? 0.2 : 1;
    if (colouring) framed(i, side, cssOf(i));
    else thumbnail(painter.ink, i, x - side / 2, y - side / 2, side);
  };
  if (level) level.points.forEach((i) => one(i));
  else for (const [start, end] of runs) for (let i = start; i < end; i++) one(i);
  painter.ink.globalAlpha = 1;
};
// Regions that are fuller than those around them, each by the image that stands for it.
const paintRegions = () => {
  const side = 48, apart = 72, [coarsest, finest] = ends(levels);
  const depth = Math.max(coarsest, Math.min(finest, depthFor(apart / 2)));
  const level = levelAt(depth), cells = 2 ** depth, countOf = new Map(), put = [];
  if (!level) return;
  const cellOf = (i) => [square.left, square.bottom].map((low, k) =>
    Math.min(cells - 1, Math.floor((places[2 * i + k] - low) / square.side * cells)));
  const around = [];
  level.points.forEach((i, r) => {
    const x = toX(i), y = toY(i);
    if (x < -2 * apart || y < -2 * apart || x > width + 2 * apart || y > height + 2 * apart) return;
    const [column, row] = cellOf(i);
    countOf.set(row * cells + column, level.counts[r]);
    const whole = x > side / 2 && y > side / 2 && x < width - side / 2 && y < height - side / 2;
    if (whole && isShown(i)) around.push([r, x, y, column, row]);
  });
  around.sort((a, b) => level.counts[b[0]] - level.counts[a[0]]);
  for (const [r, x, y, column, row] of around) {
    if (level.counts[r] < 0.03 * level.counts[around[0][0]]) break;
    const beside = [-1, 0, 1].flatMap((dx) => [-1, 0, 1].map((dy) => countOf.get((row + dy) * cells + column + dx)));
    const covered = put.some(([px, py]) => Math.abs(px - x) < apart && Math.abs(py - y) < apart);
    if (covered || beside.some((other) => other > level.counts[r])) continue;
    put.push([x, y]);
    framed(level.points[r], side, getComputedStyle(document.body).color);
  }
};
// The mark lies on a canvas of its own, so that hovering does not paint the whole map again.
const paintMark = () => {
  const ratio = window.devicePixelRatio || 1, markPen = mark.getContext("2d");
  const marked = [...new Set([...strip.ids, strip.of, selected])].filter((i) => i >= 0);
  mark.hidden = !marked.length && !outline.length;
  if (mark.hidden) return;
  markPen.setTransform(ratio, 0, 0, ratio, 0, 0);
  markPen.clearRect(0, 0, width, height);
  paintOutline(markPen);
  const style = getComputedStyle(document.documentElement), side = imageSide(), radius = dotRadius();
  markPen.imageSmoothingEnabled = sheets.size > 16;
  for (const i of marked) {
    const x = toX(i), y = toY(i), near = i !== selected && i !== strip.of;
    if (drawImages && i === selected) thumbnail(markPen, i, x - side / 2, y - side / 2, side);
    for (const [colour, extra] of [["--paper", 1], [near ? "--accent" : "--ink", 3]]) {
      markPen.strokeStyle = style.getPropertyValue(colour);
      markPen.lineWidth = 2;
      markPen.beginPath();
      if (drawImages) markPen.rect(x - side / 2 - extra, y - side / 2 - extra, side + 2 * extra, side + 2 * extra);
      else markPen.arc(x, y, radius + 1.5 + extra, 0, 7);
      markPen.stroke();
    }
  }
  if (selected >= 0) placeCard(...toScreen(selected));
};

// ---- the card of the image that is looked at ----
const card = element("card"), picture = element("picture");
const placeCard = (x, y) => {
  const [w, h] = [card.offsetWidth, card.offsetHeight], below = height - element("strip").offsetHeight;
  card.style.left = Math.max(4, x + 16 + w < width ? x + 16 : x - 16 - w) + "px";
  card.style.top = Math.max(4, Math.min(y - h / 2, below - h - 4)) + "px";
};
const drawPicture = () => {
  if (selected < 0) return;
  picture.width = picture.height = sheets.size;
  thumbnail(picture.getContext("2d"), selected, 0, 0, sheets.size);
};
const say = (text) => { element("live").textContent = text; };
const select = (i, spoken = false) => {
  if (i === selected) return;
  selected = i;
  card.hidden = i < 0;
  if (i >= 0) {
    drawPicture();
    const name = nameOf(i), value = shownValue(colouring, i);
    const label = colouring && colouring.name !== "label" ? colouring.name + ": " + value : value;
    element("name").textContent = name === null ? "\u2026" : name;
    element("label").textContent = label;
    element("label").hidden = !colouring;
    const tell = () => { if (spoken) say(nameOf(i) + (colouring ? ", " + label : "")); };
    if (name === null)
      withNames([i]).then(() => { if (selected === i) { element("name").textContent = nameOf(i); tell(); } });
    else tell();
  }
  paintMark();
};
const nearest = (x, y, reach) => {
  let best = -1, least = reach * reach;
  for (const [start, end] of runsIn(x - reach, y - reach, x + reach, y + reach))
    for (let i = start; i < end; i++) {
      if (!isShown(i)) continue;
      const px = toX(i) - x, py = toY(i) - y, distance = px * px + py * py;
      if (distance < least) [best, least] = [i, distance];
    }
  return best;
};
