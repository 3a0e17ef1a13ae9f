"use strict";
const told = JSON.parse(document.getElementById("data").textContent);
const { images, links, kinds, alike } = told;
const slider = document.getElementById("far");
const MOST_GROUPS = 150, MOST_MEMBERS = 24;

/* Union-find over the links up to a distance: for each image the smallest number in its group. */
function grouped(pairs) {
  const above = images.map((_, i) => i);
  const top = (i) => { while (above[i] !== i) i = above[i] = above[above[i]]; return i; };
  for (const [a, b] of pairs) {
    const [x, y] = [top(a), top(b)];
    above[Math.max(x, y)] = Math.min(x, y);
  }
  return images.map((_, i) => top(i));
}

/* Groups of at least two, largest image first in each, in the order of their nearest links. */
function collected(label, pairs) {
  const groups = new Map();
  for (const row of new Set(pairs.flat())) {
    if (!groups.has(label[row])) groups.set(label[row], []);
    groups.get(label[row]).push(row);
  }
  const size = (i) => images[i].width * images[i].height;
  const letters = (i) => [...images[i].name].length;
  const larger = (i, j) => images[i].link - images[j].link || size(j) - size(i) || images[j].bytes - images[i].bytes
    || letters(i) - letters(j) || i - j;
  return [...groups.values()].filter((group) => group.length > 1).map((group) => group.sort(larger));
}

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function facts({ width, height, bytes }) {
  return `${width}\u00d7${height}` + (bytes ? `, ${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB` : "");
}

function shown(group, near, title, marked) {
  const figures = group.slice(0, MOST_MEMBERS).map((row, place) => {
    const { name, url, href } = images[row];
    const closest = near.filter(([, a, b, kind]) => kind && [twin[a], twin[b]].includes(twin[row])).map((link) => link[3]);
    const kind = listed.has(row) ? 0 : Math.min(...closest);
    const caption = element("figcaption", { title: name }, [
      element("b", { textContent: name.split("/").pop() }), element("br"), facts(images[row]),
      ...(marked && place ? [element("br"), kinds[kind]] : []),
    ]);
    const figure = element("figure", {}, [element("img", { src: url, alt: name, loading: "lazy" }), caption]);
    const inside = href ? element("a", { href }, [figure]) : figure;
    return element("li", { className: marked && !place ? "marked" : "" }, [inside]);
  });
  const more = group.length - figures.length;
  const head = element("h3", {}, [title, element("small", { textContent: more > 0 ? `${more} more not shown` : "" })]);
  return element("section", {}, [head, element("ul", { className: "gallery" }, figures)]);
}

function fill(id, groups, near, marked) {
  const place = document.getElementById(id);
  place.replaceChildren(...groups.slice(0, MOST_GROUPS).map((group) => {
    const inside = near.filter(([, a, b]) => group.includes(a) || group.includes(b));
    return shown(group, inside, `${group.length} images`, marked);
  }));
  if (groups.length > MOST_GROUPS) place.append(element("p", { className: "note", textContent: `and ${groups.length - MOST_GROUPS} more groups` }));
  if (!groups.length) place.append(element("p", { className: "note", textContent: "None at this distance." }));
}

/* Slider position n: up to the distance of the n-th link of images that are merely alike; copies are there always. */
function draw() {
  const at = Number(slider.value);
  const distance = at === usual ? told.distance : at ? likenesses[at - 1][0] : 0;
  const near = links.filter((link) => link[3] < alike || link[0] <= distance);
  const label = grouped(sure.map(([, a, b]) => [a, b]));
  const copies = collected(label, sure.map(([, a, b]) => [a, b]));
  const first = images.map((_, i) => i);
  for (const group of copies) for (const row of group) first[row] = group[0];
  const ends = near.filter((link) => link[3] === alike).map(([, a, b]) => [first[a], first[b]]).filter(([a, b]) => a !== b);
  const others = collected(grouped(ends), ends);
  fill("copies", copies, sure, true);
  fill("alike", others, near, false);
  const gone = copies.reduce((sum, group) => sum + group.length - 1, 0);
  const exact = Number(distance.toPrecision(4));
  document.getElementById("said").textContent =
    `${exact}: ${gone} copies in ${copies.length} groups, ${listed.size} of them the same file; ${others.length} groups that are merely alike`;
  document.getElementById("command").textContent = `${told.command} --distance ${Number((distance * 1.000001).toPrecision(7))}`;
  slider.setAttribute("aria-valuetext", `distance ${exact}`);
}

const identical = links.filter((link) => link[3] === 0).map(([, a, b]) => [a, b]);
const twin = grouped(identical);
const listed = new Set(collected(twin, identical).flatMap((group) => group.slice(1)));
const sure = links.filter((link) => link[3] < alike);
const likenesses = links.filter((link) => link[3] === alike);
const usual = likenesses.filter((link) => link[0] <= told.distance).length;
slider.max = likenesses.length;
slider.value = usual;
slider.addEventListener("input", draw);
draw();
