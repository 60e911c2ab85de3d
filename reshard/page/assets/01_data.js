// What the page knows: the plan's data, and small questions about ranks and tensors.
"use strict";

const data = JSON.parse(document.getElementById("plan-data").textContent);

/** Returns ranks of flat (first, count) runs. */
function expandRuns(flat) {
  const ranks = [];
  for (let at = 0; at < flat.length; at += 2) {
    for (let index = 0; index < flat[at + 1]; index++) ranks.push(flat[at] + index);
  }
  return ranks;
}

const ranks = expandRuns(data.figures.ranks);
const indexOfRank = new Map(ranks.map((rank, index) => [rank, index]));
const sides = { src: expandRuns(data.src), dst: expandRuns(data.dst) };
const isOn = { src: new Set(sides.src), dst: new Set(sides.dst) };
const rankLists = data.rankLists.map(expandRuns);
const positionsOf = rankLists.map((list) => new Map(list.map((rank, at) => [rank, at])));

const domainOf = (rank) => (data.topology ? data.topology.domains[indexOfRank.get(rank)] : 0);
const hostOf = (rank) => (data.topology ? data.topology.hosts[indexOfRank.get(rank)] : 0);

/** Returns what bytes between two ranks go over. */
function linkBetween(a, b) {
  if (a === b) return "same rank";
  if (!data.topology) return "link";
  return domainOf(a) === domainOf(b) ? "domain" : "network";
}

/** Tensors of one template and one kind: equal in all but the numbers in their names. */
const groups = data.kinds.flatMap((kind, kindNumber) =>
  kind.groups.map((group) => {
    const template = data.templates[group.template];
    const width = group.numbers.length / group.turns.length;
    return { ...group, kind, kindNumber, name: template, width };
  }),
);

function nameOf(group, index) {
  if (!group.width) return group.name;
  let at = index * group.width;
  return group.name.replaceAll("*", () => group.numbers[at++]);
}

/** Per template its tensors, as [group, index] each. */
const families = new Map();
for (const group of groups) {
  if (!families.has(group.name)) families.set(group.name, []);
  const members = families.get(group.name);
  group.turns.forEach((_, index) => members.push([group, index]));
}

let byName = null;

/** Returns the tensor of a name, or null. */
function findTensor(name) {
  if (!byName) {
    byName = new Map();
    for (const members of families.values()) {
      for (const [group, index] of members) byName.set(nameOf(group, index), { group, index });
    }
  }
  const found = byName.get(name);
  return found ? { ...found, name } : null;
}

const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const numElementsOf = (group) => product(data.geometries[group.kind.geometry].shape);

function boxesOf(region, ndim) {
  const boxes = [];
  for (let at = 0; at < region.length; at += 2 * ndim) {
    boxes.push([region.slice(at, at + ndim), region.slice(at + ndim, at + 2 * ndim)]);
  }
  // A tensor without dims is one element, whose box has no bounds.
  return ndim ? boxes : [[[], []]];
}

const boxText = ([start, stop]) => `[${start.map((a, i) => `${a}:${stop[i]}`).join(", ")}]`;

const numElementsIn = (boxes) =>
  boxes.reduce((sum, [start, stop]) => sum + product(start.map((a, i) => stop[i] - a)), 0);

function formatBytes(nbytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (Math.abs(nbytes) >= 1024 && unit < units.length - 1) {
    nbytes /= 1024;
    unit++;
  }
  return `${shortNumber(nbytes)} ${units[unit]}`;
}

function formatSeconds(seconds) {
  if (seconds === 0) return "0 s";
  if (seconds >= 1) return `${shortNumber(seconds)} s`;
  if (seconds >= 1e-3) return `${shortNumber(seconds * 1e3)} ms`;
  if (seconds >= 1e-6) return `${shortNumber(seconds * 1e6)} \u00b5s`;
  return `${shortNumber(seconds * 1e9)} ns`;
}

function shortNumber(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : value.toPrecision(3);
}

const countText = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** Returns ascending ranks in few words, such as `0-7, 16`. */
function ranksText(list, most = Infinity) {
  const runs = [];
  for (const rank of [...list].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const words = runs.map(([a, b]) => {
    if (a === b) return `${a}`;
    return b === a + 1 ? `${a}, ${b}` : `${a}\u2013${b}`;
  });
  if (words.length <= most) return words.join(", ");
  return `${words.slice(0, most).join(", ")}, \u2026`;
}
