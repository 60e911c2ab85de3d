// The list of tensors, and the boxes in which both sides cut the selected one.

const MOST_NAMES = 400;

let largest = null;

function firstOf(family) {
  const [group, index] = families.get(family)[0];
  return { group, index, name: nameOf(group, index) };
}

function kindRow([name, members]) {
  const bytes = members.reduce((sum, [group]) => sum + numElementsOf(group) * group.first, 0);
  const shapes = new Set(members.map(([group]) =>
    data.geometries[group.kind.geometry].shape.join(" \u00d7 ")));
  const button = make("button", { type: "button", class: "link name", "data-family": name,
    onclick: () => select({ tensor: firstOf(name) }) }, breakable(name));
  const shape = make("small", {}, [...shapes].slice(0, 2).join("; ") || "one element");
  return { bytes, name, row: [make("div", {}, button, shape), members.length, formatBytes(bytes)] };
}

function drawKinds() {
  const rows = [...families].map(kindRow).sort((a, b) => b.bytes - a.bytes);
  const columns = [{ title: "Name" }, { title: "Count", isNumber: true },
    { title: "Bytes", isNumber: true }];
  if (rows.length) largest = firstOf(rows[0].name);
  byId("kinds").replaceChildren(makeTable(
    `${data.numTensors.toLocaleString("en")} tensors, the largest first`, columns,
    rows.map(({ row }) => row)));
}

/** Returns the element that picks one of all tensors of a template. */
function memberPicker(tensor) {
  const members = families.get(tensor.group.name);
  if (members.length === 1) return null;
  const names = members.slice(0, MOST_NAMES).map(([group, index]) => nameOf(group, index));
  if (!names.includes(tensor.name)) names.unshift(tensor.name);
  const picker = make("select", { id: "member",
    onchange: (event) => select({ tensor: findTensor(event.target.value) }) },
    names.map((name) => make("option", { value: name, selected: name === tensor.name }, name)));
  const more = members.length > names.length ? `, ${names.length} of ${members.length} listed` : "";
  const label = make("label", { for: "member" }, `One of ${members.length}${more}: `);
  return make("p", { class: "picker" }, label, picker);
}

/** Returns the dims to show: at most two, those with the most cuts, in order. */
function shownDims({ shape, src, dst }) {
  const cuts = shape.map((size, dim) => {
    const bounds = new Set();
    for (const { regions } of [src, dst]) {
      for (const region of regions) {
        for (const [start, stop] of boxesOf(region, shape.length)) {
          bounds.add(start[dim]).add(stop[dim]);
        }
      }
    }
    return { dim, size, count: bounds.size };
  });
  const chosen = cuts.sort((a, b) => b.count - a.count || b.size - a.size).slice(0, 2);
  return chosen.map(({ dim }) => dim).sort((a, b) => a - b);
}

function dimsText({ dims, shape }, shown) {
  if (!shape.length) return "One element, without dims.";
  const name = (dim) => `${dims[dim]} (${shape[dim]})`;
  const others = dims.map((_, dim) => dim).filter((dim) => !shown.includes(dim));
  const text = shown.length === 1 ? `Across: dim ${name(shown[0])}.`
    : `Down: dim ${name(shown[0])}. Across: dim ${name(shown[1])}.`;
  return others.length ? `${text} Not shown: ${others.map(name).join(", ")}.` : text;
}

/** Returns the ranks that hold each distinct box, as far as the shown dims tell boxes apart. */
function shownBoxes(geometry, side, list, shown) {
  const found = new Map();
  const ndim = geometry.shape.length;
  const holders = geometry[side].regions.map(() => []);
  geometry[side].held.forEach((region, position) => holders[region].push(list[position]));
  geometry[side].regions.forEach((region, number) => {
    for (const [start, stop] of boxesOf(region, ndim)) {
      const bounds = shown.map((dim) => [start[dim], stop[dim]]);
      const key = bounds.join();
      if (!found.has(key)) {
        found.set(key, { bounds, ranks: new Set(), text: boxText([start, stop]) });
      }
      for (const rank of holders[number]) found.get(key).ranks.add(rank);
    }
  });
  return [...found.values()];
}

/** Returns the size of a picture: as the tensor, but never thin. */
function pictureSize(lengths, width) {
  if (lengths.length < 2) return [width, 56];
  const ratio = Math.min(0.8, Math.max(0.45, lengths[0] / (lengths[1] || 1)));
  return [width, Math.round(width * ratio)];
}

function boxPicture(geometry, side, list, shown, width) {
  const boxes = shownBoxes(geometry, side, list, shown);
  const lengths = shown.map((dim) => geometry.shape[dim]);
  const [across, down] = pictureSize(lengths, width);
  const name = side === "src" ? "source" : "destination";
  const picture = draw("svg", { viewBox: `-1 -1 ${across + 2} ${down + 2}`, role: "img",
    class: "boxes", "aria-label": `${boxes.length} boxes of the ${name}; the table lists them` });
  for (const { bounds, ranks: holders, text } of boxes) {
    const rows = bounds.length > 1 ? bounds[0] : [0, 1];
    const columns = bounds.at(-1) || [0, 1];
    const [height, length] = [lengths.length > 1 ? lengths[0] : 1, lengths.at(-1) ?? 1];
    const x = (across * columns[0]) / length;
    const y = (down * rows[0]) / height;
    const w = (across * (columns[1] - columns[0])) / length;
    const h = (down * (rows[1] - rows[0])) / height;
    const isChosen = holders.has(state.rank);
    const label = ranksText(holders, 2);
    const noun = holders.size === 1 ? "rank" : "ranks";
    const first = Math.min(...holders);
    const block = draw("g", { class: isChosen ? "block chosen" : "block",
      onclick: () => select({ rank: first, side }) },
      draw("rect", { x, y, width: w, height: h }),
      draw("title", {}, `${text}: ${noun} ${ranksText(holders, 12)}`));
    if (h >= 13 && w >= 7 * label.length + 6) {
      block.append(draw("text", { x: x + w / 2, y: y + h / 2, class: "block-name" }, label));
    }
    picture.append(block);
  }
  return picture;
}

function boxTable(geometry, side, list) {
  const dims = geometry.shape.map((_, dim) => dim);
  const rows = shownBoxes(geometry, side, list, dims).map(({ ranks: holders, text }) => [
    text, holders.size, ranksText(holders)]);
  return makeTable(`Boxes in dims (${geometry.dims.join(", ") || "none"})`,
    [{ title: "Box" }, { title: "Ranks", isNumber: true }, { title: "Which" }], rows);
}

function sidePicture(tensor, side, shown) {
  const { kind } = tensor.group;
  const geometry = data.geometries[kind.geometry];
  const list = rankLists[kind[side]];
  const frame = make("div", { class: "picture" });
  onWidth(frame, (width) => {
    frame.replaceChildren(boxPicture(geometry, side, list, shown, width - 4));
  });
  return make("div", {}, make("h4", {}, side === "src" ? "Source" : "Destination"),
    make("p", { class: "layout" }, kind[`${side}Text`]), frame,
    tableOnDemand("Boxes as a table", () => boxTable(geometry, side, list)));
}

function drawTensor({ rank, tensor: chosen }) {
  const tensor = chosen || largest;
  for (const button of byId("kinds").querySelectorAll("[data-family]")) {
    const isChosen = chosen && button.dataset.family === chosen.group.name;
    button.setAttribute("aria-pressed", Boolean(isChosen));
  }
  const panel = byId("tensor-panel");
  if (!tensor) return;
  const geometry = data.geometries[tensor.group.kind.geometry];
  const shown = shownDims(geometry);
  const loads = loadsOf(tensor);
  const total = sumOf([...loads.dst.values()]);
  const parts = [
    make("h3", { class: "name" }, breakable(tensor.name)),
    make("p", { class: "muted" }, chosen ? "The grids above show the bytes of this tensor alone."
      : "The first of the largest. Select one to see it here, and its bytes in the grids above."),
    memberPicker(tensor),
    make("dl", { class: "facts" },
      fact("Size on the wire", numElementsOf(tensor.group) * tensor.group.first, null, "size"),
      fact("Moved between ranks", total, null, "moved")),
    make("p", { class: "muted" }, dimsText(geometry, shown)),
    make("div", { class: "pictures" }, sidePicture(tensor, "src", shown),
      sidePicture(tensor, "dst", shown)),
  ];
  if (rank === null) parts.push(make("p", { class: "muted" }, "Select a rank to see its part."));
  else {
    const { sent, received, copied } = trafficOf(rank, tensor);
    const tables = [peerTable(`Rank ${rank} receives it from`, received, rank, false),
      peerTable(`Rank ${rank} sends it to`, sent, rank, true)].filter((table) => table);
    const none = copied.total ? `Rank ${rank} has it already and copies it in place.`
      : `Rank ${rank} neither sends nor receives this tensor.`;
    parts.push(tables.length ? make("div", { class: "pictures" }, tables) : make("p", {}, none));
  }
  panel.replaceChildren(...parts.filter((part) => part));
}
