"use strict";
// What is known of the images, in parts. A page in one file holds all of them; a folder's are scripts and pictures beside
// the page, loaded when they are asked for: a page from disk may load nothing else.

const element = (id) => document.getElementById(id);
const number = (n) => n.toLocaleString("en").replace(/,/g, "\u202f");
const data = JSON.parse(element("data").textContent);
const { count, square, sheets } = data;
const inFolder = !data.parts;

// ---- parts ----
const parts = new Map();
const part = (key) => {
  if (!inFolder) return data.parts[key];
  if (!parts.has(key)) {
    const script = document.createElement("script"), one = {};
    one.promise = new Promise((resolve, reject) => { one.resolve = resolve; one.reject = reject; });
    one.promise.catch(() => say("A part of this map is missing: " + script.getAttribute("src")));
    parts.set(key, one);
    script.src = "parts/" + key + ".js";
    script.onload = () => script.remove(); // its text is not needed again
    script.onerror = () => { parts.delete(key); one.reject(new Error(key)); };
    document.head.append(script);
  }
  return parts.get(key).promise;
};
window.nearfarPart = (key, value) => parts.get(key).resolve(value);
const TYPES = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
const unpacked = ({ type, bytes }) => {
  if (Uint8Array.fromBase64) return new TYPES[type](Uint8Array.fromBase64(bytes).buffer);
  const text = atob(bytes), raw = new Uint8Array(text.length);
  for (let i = 0; i < raw.length; i++) raw[i] = text.charCodeAt(i);
  return new TYPES[type](raw.buffer);
};

// ---- places: x and y by turns ----
let places = new Float32Array(2 * count);
let slots = null; // of a folder: where each image lies among the thumbnails of all sheets; in a file they are in order
const loadPlaces = async () => {
  const packed = await Promise.all((inFolder ? ["points", "slots"] : ["points"]).map(part));
  [places, slots = null] = packed.map(unpacked);
};

// ---- names and neighbours, by blocks ----
const names = Array.from({ length: Math.ceil(count / data.block) }, (_, b) => (inFolder ? null : part("names-" + b)));
const blockOf = (i) => Math.floor(i / data.block);
const nameOf = (i) => (names[blockOf(i)] ? names[blockOf(i)][i % data.block] : null);
const loadNames = async (block) => {
  if (!names[block]) { names[block] = await part("names-" + block); parts.delete("names-" + block); }
};
const withNames = async (ids, each = () => {}) => {
  const blocks = [...new Set(Array.from(ids, blockOf))];
  for (let k = 0; k < blocks.length; k += 8) { // a few at a time, so that the page stays alive
    await Promise.all(blocks.slice(k, k + 8).map(loadNames));
    each(Math.min(k + 8, blocks.length) / blocks.length);
  }
};
const neighbourBlocks = new Map();
const neighboursOf = async (i) => {
  const block = blockOf(i), { k } = data.neighbours;
  if (!neighbourBlocks.has(block)) neighbourBlocks.set(block, unpacked(await part("neighbours-" + block)));
  const row = i % data.block;
  return [...neighbourBlocks.get(block).subarray(row * k, row * k + k)].filter((j) => j >= 0);
};

// ---- columns: values are class numbers, or numbers with NaN where there is none ----
const columns = data.columns;
const valuesOf = async (column) => {
  column.values = column.values || unpacked(await part("column-" + columns.indexOf(column)));
  return column.values;
};
const rounded = (value, { low, high }, digits) => { // whole numbers stay, others differ where the column does
  const offset = Math.max(0, Math.ceil(Math.log10(Math.max(Math.abs(low), Math.abs(high)) / (high - low))));
  return String(Number.isInteger(value) ? value : Number(value.toPrecision(Math.min(15, digits + offset))));
};
const shownValue = (column, i) => {
  if (!column || !column.values) return "";
  if (column.classes) return column.classes[column.values[i]].name;
  return Number.isNaN(column.values[i]) ? "none" : rounded(column.values[i], column, 4);
};

// ---- representatives of regions, by zoom ----
const { levels } = data;
const levelAt = (depth) => { // the one at this depth, if it is here; null before that
  const level = levels.find((one) => one.depth === depth);
  if (level && !level.points && !level.asked) {
    level.asked = true;
    Promise.resolve(part("level-" + depth)).then(({ points, counts }) => {
      [level.points, level.counts] = [unpacked(points), unpacked(counts)];
      draw();
    });
  }
  return level && level.points ? level : null;
};

// ---- thumbnails ----
const perSheet = sheets.perRow * sheets.perRow, MOST_SHEETS = 96;
const pictures = new Map();
let loaded = 0, paints = 0;
const sheetAt = (k) => {
  const key = inFolder ? "pictures/" + k + "." + sheets.ending : String(k);
  let picture = pictures.get(key);
  if (picture) pictures.delete(key); // and to the end: the first is the one that was asked for longest ago
  else {
    picture = new Image();
    picture.onload = () => { loaded++; drawPicture(); draw(); };
    picture.src = inFolder ? key : sheets.urls[k];
  }
  pictures.set(key, picture);
  picture.paint = paints;
  const [oldest, { paint }] = pictures.entries().next().value;
  if (inFolder && pictures.size > MOST_SHEETS && paint !== paints) pictures.delete(oldest); // none that is in view
  return picture;
};
if (!inFolder) sheets.urls.forEach((_, k) => sheetAt(k));
const thumbnail = (target, i, x, y, size) => {
  const slot = slots ? slots[i] : i;
  const picture = sheetAt(Math.floor(slot / perSheet)), at = slot % perSheet;
  if (!picture.complete || !picture.naturalWidth) return picture;
  const column = at % sheets.perRow, row = Math.floor(at / sheets.perRow);
  target.drawImage(picture, column * sheets.cell, row * sheets.cell, sheets.size, sheets.size, x, y, size, size);
  return null;
};
// A canvas that shows image i as soon as its sheet is there.
const canvasOf = (i, side) => {
  const one = document.createElement("canvas");
  one.width = one.height = sheets.size;
  one.style.width = one.style.height = side + "px";
  const fill = () => {
    const missing = thumbnail(one.getContext("2d"), i, 0, 0, sheets.size);
    if (missing) missing.addEventListener("load", fill, { once: true });
  };
  fill();
  return one;
};
