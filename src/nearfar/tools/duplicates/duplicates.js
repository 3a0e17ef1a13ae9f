// The groups of copies at the distance of the slider, differences of their images, and the files that are not kept.

const told = JSON.parse(document.getElementById("data").textContent);
const { images, links, near_duplicate: nearDuplicate } = told;
const slider = document.getElementById("far");
const MOST_GROUPS = 150, MOST_MEMBERS = 24, AMPLIFIED = 4, NOISE = 8; // of 255, of the page's JPEG
const say = (text) => { document.getElementById("live").textContent = text; };

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
  const larger = (i, j) => images[j].archived - images[i].archived || images[i].link - images[j].link
    || size(j) - size(i) || images[j].bytes - images[i].bytes || images[j].annexed - images[i].annexed
    || letters(i) - letters(j) || i - j;
  return [...groups.values()].filter((group) => group.length > 1).map((group) => group.sort(larger));
}

function element(tag, properties = {}, children = []) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

const inKilobytes = (bytes) => `${(bytes / 1e3).toFixed(bytes < 1e4 ? 1 : 0)} kB`;
const facts = ({ width, height, bytes }) => `${width}\u00d7${height}` + (bytes ? `, ${inKilobytes(bytes)}` : "");

/* Paint the absolute difference of two pictures, amplified; the second in the orientation in which it shows the first. */
function paint(canvas, first, second, turn) {
  const side = canvas.width = canvas.height = Math.max(first.naturalWidth, second.naturalWidth);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  const pixels = (picture, at) => {
    context.setTransform(1, 0, 0, 1, side / 2, side / 2);
    context.rotate(-at % 4 * Math.PI / 2);
    context.scale(at < 4 ? 1 : -1, 1);
    context.drawImage(picture, -side / 2, -side / 2, side, side);
    return context.getImageData(0, 0, side, side);
  };
  const [one, other] = [pixels(first, 0), pixels(second, turn)];
  one.data.forEach((value, i) => { if (i % 4 < 3) one.data[i] = AMPLIFIED * (Math.abs(value - other.data[i]) - NOISE); });
  context.putImageData(one, 0, 0);
}

/* Of a group of copies those that can stand for an image: as it is, not turned or stretched, else with the same bytes. */
const isChanged = ({ turn, stretched, edit }) => turn || stretched || edit;
const standsFor = (row, other) => (isChanged(images[row]) ? twin[row] === twin[other] : !isChanged(images[other]));

/* A button that keeps a file or not: for files that another one can stand for, never for those of the archive. */
function addKeeper(item, row, group) {
  const others = group.filter((other) => other !== row && standsFor(row, other));
  if (!images[row].href || images[row].archived || !others.length) return;
  const button = element("button", { type: "button", textContent: "Keep" });
  button.setAttribute("aria-label", `Keep ${images[row].name}`);
  const mark = () => {
    button.setAttribute("aria-pressed", images[row].kept);
    item.classList.toggle("gone", !images[row].kept);
  };
  button.addEventListener("click", () => {
    if (images[row].kept && !others.some((other) => images[other].kept)) return say("One of these copies is always kept.");
    images[row].kept = !images[row].kept;
    mark();
    list();
  });
  mark();
  item.append(button);
}

function shown(group, title, copies) {
  const pictures = group.slice(0, MOST_MEMBERS).map((row) => element("img", { src: images[row].url, alt: images[row].name, loading: "lazy" }));
  const figures = pictures.map((picture, place) => {
    const row = group[place], { name, href, kind, turn, archived, why, stretched, edit } = images[row];
    const inside = href ? element("a", { href }, [picture]) : picture;
    const difference = element("canvas", { width: 1, height: 1, role: "img" });
    difference.setAttribute("aria-label", `difference of ${name} from the first`);
    const apart = stretched || edit;
    if (!apart) picture.addEventListener("load", () => pictures[0].decode().then(() => paint(difference, pictures[0], picture, copies ? turn : 0)));
    const said = archived ? "in the archive" : copies && place ? kind + (edit ? `: ${edit}` : "") + (why ? `, kept: ${why}` : "") : "";
    const caption = element("figcaption", { title: name }, [
      element("b", { textContent: name.split("/").slice(-2).join("/") }), element("br"), facts(images[row]), ...(said ? [element("br"), element("span", { className: "whole", textContent: said })] : []),
    ]);
    const figure = element("figure", {}, [element("div", { className: "beside" }, place && !apart ? [inside, difference] : [inside]), caption]);
    const item = element("li", { className: place ? "" : "marked" }, [figure]);
    if (copies) addKeeper(item, row, group);
    return item;
  });
  const more = group.length - figures.length;
  const head = element("h3", {}, [title, element("small", { textContent: more > 0 ? `${more} more not shown` : "" })]);
  return element("section", {}, [head, element("ul", { className: "gallery" }, figures)]);
}

function fill(id, groups) {
  const place = document.getElementById(id);
  place.replaceChildren(...groups.slice(0, MOST_GROUPS).map((group) => shown(group, `${group.length} images`, id === "copies")));
  if (groups.length > MOST_GROUPS) place.append(element("p", { className: "note", textContent: `and ${groups.length - MOST_GROUPS} more groups` }));
  if (!groups.length) place.append(element("p", { className: "note", textContent: "None at this distance." }));
}

/* The files that are not kept, and what removes them once the list is saved. */
function list() {
  const gone = images.filter((one) => one.href && !one.kept);
  const size = inKilobytes(gone.reduce((sum, one) => sum + one.bytes, 0));
  say(gone.length ? `${gone.length} file${gone.length > 1 ? "s" : ""} to remove, ${size}` : "All files are kept.");
  const paths = gone.map((one) => new TextDecoder().decode(bytesOf(one)).replaceAll("\n", "\\n"));
  document.getElementById("files").textContent = paths.join("\n");
  for (const id of ["save", "copy"]) document.getElementById(id).disabled = !gone.length;
  return gone;
}

/* The path of a file, exactly: its address holds every byte of it. */
const bytesOf = ({ href }) => Uint8Array.from(
  href.slice("file://".length).replace(/%(..)/g, (_, code) => String.fromCharCode(parseInt(code, 16))), (letter) => letter.charCodeAt());

const counted = (count, one, many = one + "s") => `${count} ${count === 1 ? one : many}`;

/* Slider position n: up to the distance of the n-th link of near-duplicates; copies are there always. */
function draw() {
  const at = Number(slider.value);
  const distance = at === usual ? told.distance : at ? likenesses[at - 1][0] : 0;
  const near = links.filter((link) => link[3] < nearDuplicate || link[0] <= distance);
  const first = images.map((_, i) => i);
  for (const group of copies) for (const row of group) first[row] = group[0];
  const ends = near.filter((link) => link[3] === nearDuplicate).map(([, a, b]) => [first[a], first[b]]).filter(([a, b]) => a !== b);
  const others = collected(grouped(ends), ends);
  fill("near-duplicates", others);
  const gone = copies.reduce((sum, group) => sum + group.length - 1, 0);
  const exact = Number(distance.toPrecision(4));
  document.getElementById("said").textContent =
    `${exact}: ${counted(gone, "copy", "copies")} in ${counted(copies.length, "group")}, ${listed} of them listed for removal; ` +
    `${counted(others.length, "group")} of near-duplicates`;
  document.getElementById("command").textContent = `${told.command} --distance ${Number((distance * 1.000001).toPrecision(7))}`;
  slider.setAttribute("aria-valuetext", `distance ${exact}`);
}

const identical = links.filter((link) => link[3] === 0).map(([, a, b]) => [a, b]);
const twin = grouped(identical);
const listed = images.filter((one) => !one.kept).length;
const sure = links.filter((link) => link[3] < nearDuplicate).map(([, a, b]) => [a, b]);
const copies = collected(grouped(sure), sure);
const likenesses = links.filter((link) => link[3] === nearDuplicate);
const usual = likenesses.filter((link) => link[0] <= told.distance).length;
slider.max = likenesses.length;
slider.value = usual;
slider.addEventListener("input", draw);
document.getElementById("removing").textContent = told.removing;
document.getElementById("save").addEventListener("click", () => {
  save(new Blob(list().flatMap((one) => [bytesOf(one), "\0"])), told.files, "application/octet-stream");
});
document.getElementById("copy").addEventListener("click", () => copy(told.removing));
document.getElementById("chosen").hidden = !images.some((one) => one.href);
fill("copies", copies);
draw();
list();
